//! What every request passes before its route: a name, the right host and origin, a key.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, Response, header};
use axum::middleware::Next;

use super::app::App;
use super::error::{ApiError, ApiResult, Fault, Refused, Shape};
use super::journal::{Journal, Journalled, Opening};
use super::request_id::RequestId;
use super::trace::Span;

/// What answers without a key. Probes have none, and learn nothing but that we live.
const OPEN: [&str; 2] = ["/live", "/health"];

/// What needs no key though it is only for our own names: files that are the same for everybody, and that ask for the key.
/// Behind a browser's own question for a password they would be out of reach of whoever has a key and no user name, and the
/// browser would then send the password along with whatever any page makes it ask of us.
const KEYLESS: [&str; 2] = ["/", "/page/{file}"];

pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let id = RequestId::of(request.headers());
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", |path| path.as_str()).to_owned();
    let shape = Shape::of_path(request.uri().path());
    let tracer = &app.config.tracer;
    let begin = || Span::begin(&route, app.model_name(), request.headers());
    let journal = Journal::open(Opening {
        log: app.config.log.clone(),
        counts: app.counts.clone(),
        id,
        method: request.method().clone(),
        route: route.clone(),
        span: tracer.is_on().then(begin).flatten().map(|span| (tracer.clone(), span)),
    });
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = match admit(&app, &mut request, &route) {
        Ok(None) => {
            request.extensions_mut().insert(journal.clone());
            next.run(request).await
        }
        Ok(Some(preflight)) => preflight,
        Err(error) => error.response(shape),
    };
    app.config.origins.permit(origin.as_ref(), &mut response);
    if let Ok(value) = HeaderValue::from_str(&journal.id().0) {
        // Anthropic's clients look for the second name.
        response.headers_mut().insert("x-request-id", value.clone());
        response.headers_mut().insert("request-id", value);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    journal.status(response.status());
    if let Some(Refused(code)) = response.extensions().get() {
        journal.note("refused", *code);
    }
    response.map(|body| Body::new(Journalled { body, journal }))
}

/// `Some` answers at once.
fn admit(app: &App, request: &mut Request, route: &str) -> ApiResult<Option<Response<Body>>> {
    if OPEN.contains(&route) {
        return Ok(None);
    }
    app.config.origins.check(request.headers())?;
    if request.method() == Method::OPTIONS
        && let Some(response) = app.config.origins.preflight(request.headers())
    {
        return Ok(Some(response));
    }
    if KEYLESS.contains(&route) {
        return Ok(None);
    }
    let caller = app.config.keys.caller(request.headers()).ok_or_else(|| {
        let message = "a valid API key is needed, as `Authorization: Bearer KEY` or `x-api-key: KEY`";
        ApiError::new(Fault::Unauthorized, message).code("invalid_api_key")
    })?;
    request.extensions_mut().insert(caller);
    Ok(None)
}
