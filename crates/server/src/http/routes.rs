//! Every route there is, once: the router, `/openapi.json` and the tests of keys are made from this list.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use super::app::App;
use super::chat::Chat;
use super::completions::Completions;
use super::door::enter;
use super::messages::{CountTokens, Messages};
use super::openapi::Body;
use super::responses::Responses;
use super::tokens::{ApplyTemplate, Detokenize, Tokenize};
use super::{about, guard, metrics, openapi};

pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) about: &'static str,
    /// What is posted; `None` for what is only read.
    pub(crate) body: Option<Body>,
    handler: MethodRouter<Arc<App>>,
}

pub(crate) fn routes() -> Vec<Route> {
    let read = |path, about, handler| Route { path, about, body: None, handler };
    let sent = |path, about, body, handler| Route { path, about, body: Some(body), handler };
    vec![
        read("/", "A page to talk with the model", get(crate::page::page)),
        read("/page/{file}", "The page's style and scripts", get(crate::page::file)),
        sent("/v1/chat/completions", "Answer a conversation (OpenAI)", Body::Chat, post(enter::<Chat>)),
        sent("/v1/completions", "Continue raw text (OpenAI)", Body::Completions, post(enter::<Completions>)),
        sent(
            "/v1/responses",
            "Answer a conversation (OpenAI's Responses)",
            Body::Responses,
            post(enter::<Responses>),
        ),
        sent("/v1/messages", "Answer a conversation (Anthropic)", Body::Messages, post(enter::<Messages>)),
        sent(
            "/v1/messages/count_tokens",
            "Tokens of a conversation",
            Body::CountTokens,
            post(enter::<CountTokens>),
        ),
        read("/v1/models", "The models served", get(about::models)),
        // A model's name may have slashes.
        read("/v1/models/{*name}", "One of them", get(about::one_model)),
        sent("/tokenize", "Text to tokens", Body::Tokenize, post(enter::<Tokenize>)),
        sent("/detokenize", "Tokens to text", Body::Detokenize, post(enter::<Detokenize>)),
        sent(
            "/apply-template",
            "A conversation to its prompt",
            Body::ApplyTemplate,
            post(enter::<ApplyTemplate>),
        ),
        read("/tokenizer_info", "What the tokenizer adds", get(about::tokenizer_info)),
        read("/live", "The process works", get(about::live)),
        read("/health", "The model answers", get(about::health)),
        read("/v1/health", "The model answers", get(about::health)),
        read("/ready", "The model answers", get(about::health)),
        read("/metrics", "Figures for Prometheus", get(metrics::metrics)),
        read("/props", "Settings as run", get(about::props)),
        read("/version", "Which version this is", get(about::version)),
        read("/openapi.json", "This description", get(openapi::document)),
    ]
}

pub(crate) fn router(app: Arc<App>) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
        .fallback(about::not_found)
        .method_not_allowed_fallback(about::wrong_method)
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}
