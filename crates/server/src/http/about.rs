//! What the server says of itself: models, health, settings, version.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::app::App;
use super::chat::FINGERPRINT;
use super::door::{Answered, json};
use super::error::{ApiError, Fault, Shape};
use crate::handle::Health;

pub(crate) async fn models(State(app): State<Arc<App>>) -> Answered {
    let names = std::iter::once(app.model_name()).chain(app.config.aliases.iter().map(String::as_str));
    let models: Vec<Value> = names.filter(|n| *n != "*").map(|name| model(&app, name)).collect();
    // Anthropic's clients page through the same list.
    let edge = |m: Option<&Value>| m.map_or(Value::Null, |m| m["id"].clone());
    let (first, last) = (edge(models.first()), edge(models.last()));
    json(&json!({"object": "list", "data": models, "has_more": false, "first_id": first, "last_id": last}))
}

pub(crate) async fn one_model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Answered {
    // A name that is not UTF-8 is none of ours.
    match app.served_name(Some(name.map_or_else(|_| String::new(), |Path(name)| name))) {
        Ok(name) => json(&model(&app, &name)),
        Err(error) => error.response(Shape::OpenAi),
    }
}

fn model(app: &App, name: &str) -> Value {
    let facts = app.handle.facts();
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "overdraft",
        "root": app.model_name(),
        "parent": null,
        "max_model_len": facts.context,
        // Anthropic's words.
        "type": "model",
        "display_name": name,
        "meta": {"n_vocab": facts.vocab, "n_ctx_train": facts.trained_context},
    })
}

/// The process works, whatever the model does: nobody should restart it for draining.
pub(crate) async fn live() -> Answered {
    json(&json!({"status": "ok"}))
}

/// The model answers.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Answered {
    let (status, word) = match app.handle.health() {
        Health::Ready => return json(&json!({"status": "ok"})),
        Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        // What a device said is for the log.
        Health::Stuck { .. } => (StatusCode::SERVICE_UNAVAILABLE, "stuck"),
        Health::Dead { .. } => (StatusCode::SERVICE_UNAVAILABLE, "stopped"),
    };
    self::status(status, word)
}

/// One word, for probes.
pub(crate) fn status(status: StatusCode, word: &str) -> Answered {
    let mut response = json(&json!({"status": word}));
    *response.status_mut() = status;
    response
}

/// Everything that decides texts and speed, so that a report can say which mode ran.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Answered {
    let (facts, limits, config) = (app.handle.facts(), app.handle.limits(), &app.config);
    let r = &app.defaults.recommended;
    let memory: serde_json::Map<String, Value> =
        facts.memory.iter().map(|(what, bytes)| ((*what).to_owned(), (*bytes).into())).collect();
    json(&json!({
        "build_info": FINGERPRINT,
        "model_alias": app.model_name(),
        "aliases": config.aliases,
        "draft": facts.about.draft_name,
        "draft_block": facts.draft_block,
        "device": facts.device,
        "total_slots": limits.max_streams,
        "default_generation_settings": {
            "n_ctx": facts.context,
            "params": {
                "temperature": r.temperature.unwrap_or(1.0),
                "top_k": r.top_k.unwrap_or(0),
                "top_p": r.top_p.unwrap_or(1.0),
                "min_p": r.min_p.unwrap_or(0.0),
                "repeat_penalty": r.repetition_penalty.unwrap_or(1.0),
            },
        },
        "n_ctx_train": facts.trained_context,
        "n_vocab": facts.vocab,
        "chat_template": facts.about.template,
        "dialect": app.chat.as_ref().map(|chat| chat.dialect_name()),
        "memory_bytes": memory,
        "limits": {
            "queue": limits.queue,
            "max_body_bytes": config.max_body_bytes,
            "max_connections": config.max_connections,
            "head_timeout_s": config.head_timeout.as_secs_f64(),
            "body_timeout_s": config.body_timeout.as_secs_f64(),
            "request_timeout_s": config.request_timeout.map(|t| t.as_secs_f64()),
            "drain_timeout_s": config.drain_timeout.as_secs_f64(),
        },
        "keys_needed": config.keys.are_needed(),
    }))
}

pub(crate) async fn version() -> Answered {
    json(&json!({"version": env!("CARGO_PKG_VERSION"), "engine": "overdraft"}))
}

/// What evaluation tools ask before they encode by themselves.
pub(crate) async fn tokenizer_info(State(app): State<Arc<App>>) -> Answered {
    let facts = app.handle.facts();
    let text = |id: Option<u32>| id.and_then(|id| facts.tokenizer.token_text(id)).map(|t| t.into_owned());
    json(&json!({
        "bos_token": text(facts.tokenizer.bos()),
        "eos_token": text(facts.tokenizer.eos()),
        "pad_token": text(facts.tokenizer.special_ids().padding),
        "eos_token_id": facts.tokenizer.eos(),
        "vocab_size": facts.vocab,
        "chat_template": facts.about.template,
        "add_bos_token": facts.tokenizer.add_bos(),
    }))
}

pub(crate) async fn not_found(request: axum::extract::Request) -> Answered {
    let message = "there is no such route; /openapi.json lists them";
    ApiError::new(Fault::NotFound, message)
        .code("unknown_route")
        .response(Shape::of_path(request.uri().path()))
}

pub(crate) async fn wrong_method(request: axum::extract::Request) -> Answered {
    let message = "this route has another method; /openapi.json lists them";
    ApiError::new(Fault::Method, message).code("wrong_method").response(Shape::of_path(request.uri().path()))
}
