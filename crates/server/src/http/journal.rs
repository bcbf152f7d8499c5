//! One log line and one count for each request, written when its answer has left, or when nobody waits for it any more.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, StatusCode};
use serde_json::Value;

use super::counts::Counts;
use super::log::Log;
use super::request_id::RequestId;
use super::settings::Settings;
use super::trace::{Ended, Span, Tracer};

/// What is known of a request so far. The line is written when the last one who holds it lets go.
pub(crate) struct Journal {
    opening: Opening,
    began: Instant,
    entry: Mutex<Entry>,
}

/// What is known of it at once.
pub(crate) struct Opening {
    pub(crate) log: Log,
    pub(crate) counts: Arc<Counts>,
    pub(crate) id: RequestId,
    pub(crate) method: Method,
    /// The router's pattern, never what a client wrote.
    pub(crate) route: String,
    /// Where requests are traced.
    pub(crate) span: Option<(Tracer, Span)>,
}

#[derive(Default)]
struct Entry {
    status: Option<StatusCode>,
    /// The whole answer was handed over.
    is_complete: bool,
    pairs: Vec<(&'static str, Value)>,
    /// For the trace alone.
    asked: Vec<(&'static str, Value)>,
}

impl Journal {
    pub(crate) fn open(opening: Opening) -> Arc<Self> {
        Arc::new(Self { opening, began: Instant::now(), entry: Mutex::default() })
    }

    fn entry(&self) -> MutexGuard<'_, Entry> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self, status: StatusCode) {
        self.entry().status = Some(status);
    }

    /// Numbers and words of our own; nothing of what a client wrote.
    pub(crate) fn note(&self, name: &'static str, value: impl Into<Value>) {
        self.entry().pairs.push((name, value.into()));
    }

    pub(crate) fn id(&self) -> &RequestId {
        &self.opening.id
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let seconds = took.as_secs_f64();
        let Entry { status, is_complete, pairs, asked } = std::mem::take(&mut *self.entry());
        let Opening { log, counts, id, method, route, span } = &mut self.opening;
        // Nobody looks at the body of an answer to HEAD.
        let is_complete = is_complete || *method == Method::HEAD;
        counts.request(method, route, status, seconds);
        if let Some((tracer, span)) = span.take() {
            let notes = [asked, pairs.clone()].concat();
            tracer.send(span.end(&Ended {
                method: method.as_str(),
                route,
                request_id: &id.0,
                status: status.map(|s| s.as_u16()),
                is_complete,
                took,
                notes: &notes,
            }));
        }
        // Probes come every second and say nothing new.
        if matches!(route.as_str(), "/health" | "/live" | "/ready" | "/metrics")
            && status == Some(StatusCode::OK)
        {
            return;
        }
        let mut line: Vec<(&str, Value)> = vec![
            ("id", id.0.as_str().into()),
            ("method", method.as_str().into()),
            ("route", route.as_str().into()),
            ("status", status.map(|s| s.as_u16()).into()),
            ("ms", ((seconds * 1e6).round() / 1e3).into()),
        ];
        if !is_complete {
            line.push(("left", true.into()));
        }
        line.extend(pairs);
        log.line("request", &line);
    }
}

/// A body that keeps its request's journal open.
pub(crate) struct Journalled {
    pub(crate) body: Body,
    pub(crate) journal: Arc<Journal>,
}

impl HttpBody for Journalled {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.journal.entry().is_complete = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let ended = self.body.is_end_stream();
        if ended {
            self.journal.entry().is_complete = true;
        }
        ended
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Journal {
    /// What the trace tells of the request's own wishes.
    pub(crate) fn asked(&self, settings: &Settings, choices: usize) {
        if self.opening.span.is_none() {
            return;
        }
        let drawing = &settings.sampling.drawing;
        let mut asked: Vec<(&'static str, Value)> = vec![
            ("temperature", drawing.temperature.into()),
            ("top_p", drawing.top_p.into()),
            ("top_k", drawing.top_k.into()),
            ("seed", drawing.seed.into()),
            ("choices", choices.into()),
        ];
        if settings.max_tokens < usize::MAX {
            asked.push(("max_tokens", settings.max_tokens.into()));
        }
        self.entry().asked = asked;
    }

    pub(crate) fn figures(&self, figures: &super::figures::Figures) {
        self.note("prompt_tokens", figures.prompt_tokens);
        self.note("cached_tokens", figures.cached_tokens);
        self.note("completion_tokens", figures.completion_tokens());
        self.note("tokens_per_round", (figures.stats.tokens_per_round() * 100.0).round() / 100.0);
        self.note("queue_ms", figures.timings.queued.as_millis() as u64);
        self.note("first_token_ms", figures.timings.first_token.as_millis() as u64);
        self.note("finish", figures.finished.clone());
    }
}
