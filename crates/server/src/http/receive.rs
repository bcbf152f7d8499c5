//! A request's body: JSON by its own word, whole, in time, and within everybody's share of memory.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::app::App;
use super::error::{ApiError, ApiResult, Fault};

/// A body, and its share of the room for bodies for as long as it is kept.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

pub(crate) async fn receive(app: &App, headers: &HeaderMap, body: Body) -> ApiResult<Received> {
    check_type(headers)?;
    let limit = app.config.max_body_bytes;
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(too_large(limit));
    }
    let late = |_| {
        let message = format!("the body did not come within {} s", app.config.body_timeout.as_secs());
        ApiError::new(Fault::Timeout, message)
    };
    timeout(app.config.body_timeout, collect(app, body, limit)).await.map_err(late)?
}

async fn collect(app: &App, mut body: Body, limit: usize) -> ApiResult<Received> {
    let (mut bytes, mut room): (Vec<u8>, Option<OwnedSemaphorePermit>) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        let broken = |_| ApiError::new(Fault::Invalid, "the body broke off");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        reserve(app, &data, &mut room)?;
        bytes.extend_from_slice(&data);
    }
    Ok(Received { bytes, _room: room })
}

/// Room is taken as bytes come, so that a large body that is only announced keeps nobody out.
fn reserve(app: &App, data: &Bytes, room: &mut Option<OwnedSemaphorePermit>) -> ApiResult<()> {
    // Below the limit of a body, which is far below 4 GiB.
    let n = data.len() as u32;
    match (app.body_room.clone().try_acquire_many_owned(n), room) {
        (Ok(more), Some(room)) => room.merge(more),
        (Ok(more), room) => *room = Some(more),
        (Err(_), _) => {
            let message = "too many large requests at once; try again";
            return Err(ApiError::new(Fault::Busy, message).retry_after(std::time::Duration::from_secs(1)));
        }
    }
    Ok(())
}

/// A page can make a browser send forms and plain text anywhere, but JSON only where it is allowed to.
fn check_type(headers: &HeaderMap) -> ApiResult<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::new(Fault::MediaType, "the content type must be application/json"))
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(Fault::TooLarge, format!("the body has more than {limit} bytes"))
}
