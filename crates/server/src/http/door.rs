//! The way every request with a body goes: received, read on a thread that may take its time, answered.

use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, header};
use serde_json::Value;

use super::app::App;
use super::error::{ApiError, ApiResult, Fault, Shape};
use super::fields::{Fields, header_text};
use super::journal::Journal;
use super::keys::Caller;
use super::receive::receive;

pub(crate) type Answered = Response<Body>;

/// One API's endpoint.
pub(crate) trait Door: 'static {
    /// Whose errors it speaks.
    const SHAPE: Shape;
    type Prepared: Send + 'static;

    /// Reads the request, and names what was left unread. Parsing, rendering, encoding and compiling happen here, on a
    /// thread of its own: neither the engine nor other connections wait for it.
    fn prepare(app: &App, fields: Fields) -> ApiResult<(Self::Prepared, Vec<String>)>;

    fn answer(prepared: Self::Prepared, reply: Reply<'_>)
    -> impl Future<Output = ApiResult<Answered>> + Send;
}

/// What an answer needs to know beside the request.
pub(crate) struct Reply<'a> {
    pub(crate) app: &'a App,
    pub(crate) caller: Caller,
    pub(crate) journal: Arc<Journal>,
}

impl Reply<'_> {
    pub(crate) fn json(&self, value: &Value) -> Answered {
        json(value)
    }
}

pub(crate) fn json(value: &Value) -> Answered {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) async fn enter<D: Door>(State(app): State<Arc<App>>, request: Request) -> Answered {
    enter_inner::<D>(&app, request).await.unwrap_or_else(|error| error.response(D::SHAPE))
}

async fn enter_inner<D: Door>(app: &Arc<App>, request: Request) -> ApiResult<Answered> {
    let (parts, body) = request.into_parts();
    // The guard put both there; without it nobody comes in.
    let missing = || ApiError::new(Fault::Internal, "the request was not announced");
    let caller = *parts.extensions.get::<Caller>().ok_or_else(missing)?;
    let journal = parts.extensions.get::<Arc<Journal>>().ok_or_else(missing)?.clone();
    let received = receive(app, &parts.headers, body).await?;
    let for_reading = app.clone();
    let reading =
        tokio::task::spawn_blocking(move || D::prepare(&for_reading, Fields::of_body(&received.bytes)?));
    // Only a panic ends it otherwise; it was printed where it happened.
    let broken = |_| ApiError::new(Fault::Internal, "the request could not be read");
    let (prepared, ignored) = reading.await.map_err(broken)??;
    app.log_ignored(&ignored);
    let mut response = D::answer(prepared, Reply { app, caller, journal }).await?;
    if let Some(value) = header_text(&ignored).and_then(|names| HeaderValue::from_str(&names).ok()) {
        response.headers_mut().insert("x-overdraft-ignored", value);
    }
    Ok(response)
}
