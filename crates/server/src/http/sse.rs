//! Server-sent events: one loop that carries any API's events from the engine to the socket.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::time::timeout;

use super::error::{ApiError, ApiResult};
use super::figures::Figures;
use super::journal::Journal;
use super::running::{Happening, Running};

/// Events that wait to be sent, as text.
#[derive(Debug, Default)]
pub(crate) struct Events {
    text: String,
}

impl Events {
    /// OpenAI's kind: data alone.
    pub(crate) fn data(&mut self, value: &Value) {
        // JSON has no raw line feeds, so one line is one event.
        self.text.push_str(&format!("data: {value}\n\n"));
    }

    /// A named event.
    pub(crate) fn named(&mut self, name: &str, value: &Value) {
        self.text.push_str(&format!("event: {name}\ndata: {value}\n\n"));
    }

    pub(crate) fn done(&mut self) {
        self.text.push_str("data: [DONE]\n\n");
    }

    /// What clients skip: keeps proxies from taking a long prompt for a dead server.
    pub(crate) fn comment(&mut self) {
        self.text.push_str(": ping\n\n");
    }

    /// Takes all of `other`'s.
    pub(crate) fn append(&mut self, other: &mut Events) {
        self.text.push_str(&std::mem::take(&mut other.text));
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// An API's way to tell what happens.
pub(crate) trait Writer: Send + 'static {
    fn happened(&mut self, happening: Happening, figures: &Figures, out: &mut Events);
    /// All answers are over.
    fn end(&mut self, figures: &Figures, out: &mut Events);
    /// The stream breaks off; clients must see that it did.
    fn fail(&mut self, error: &ApiError, out: &mut Events);
    fn ping(&mut self, out: &mut Events) {
        out.comment();
    }
}

struct Streaming<W> {
    running: Running,
    writer: W,
    ping: Duration,
    journal: Arc<Journal>,
    is_over: bool,
}

/// The answer as a stream. When the client leaves, hyper drops this, and with it the engine's work.
pub(crate) fn stream<W: Writer>(
    running: Running,
    writer: W,
    ping: Duration,
    journal: Arc<Journal>,
) -> Response<Body> {
    let streaming = Streaming { running, writer, ping, journal, is_over: false };
    let body = Body::from_stream(unfold(streaming, |mut streaming| async move {
        let events = streaming.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(events.text)), streaming))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx then streams without being configured to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<W: Writer> Streaming<W> {
    async fn next(&mut self) -> Option<Events> {
        if self.is_over {
            return None;
        }
        let mut out = Events::default();
        while out.text.is_empty() && !self.is_over {
            match timeout(self.ping, self.running.next()).await {
                Err(_) => self.writer.ping(&mut out),
                Ok(happened) => self.take(happened, &mut out),
            }
        }
        Some(out)
    }

    fn take(&mut self, happened: Option<ApiResult<Happening>>, out: &mut Events) {
        match happened {
            Some(Ok(happening)) => self.writer.happened(happening, &self.running.figures, out),
            Some(Err(error)) => {
                self.journal.note("failed", error.code.unwrap_or("error"));
                self.writer.fail(&error, out);
                self.is_over = true;
            }
            None => {
                self.journal.figures(&self.running.figures);
                self.writer.end(&self.running.figures, out);
                self.is_over = true;
            }
        }
    }
}
