//! The way of spans to the collector: a bounded queue, and a thread that empties it. Whoever serves never waits for it; what
//! does not fit, or cannot be delivered, is counted and forgotten.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::endpoint::Endpoint;
use crate::http::log::Log;

/// Spans that wait at most, some 2 KB each.
const QUEUE: usize = 2048;
/// Spans of one message, and how long the first of them may wait for the others.
const BATCH: usize = 256;
const BATCH_TIME: Duration = Duration::from_millis(500);
/// For each of connecting, writing and reading: a collector is near.
const PATIENCE: Duration = Duration::from_secs(2);

enum Message {
    Span(Value),
    /// Deliver what is here, then end.
    Stop,
}

/// Takes spans from any thread; cheap to clone. The default takes none.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Sending>>);

struct Sending {
    queue: SyncSender<Message>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl Tracer {
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn send(&self, span: Value) {
        if let Some(sending) = &self.0
            && sending.queue.try_send(Message::Span(span)).is_err()
        {
            sending.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Spans that the collector took, and those that it never saw.
    pub(crate) fn counts(&self) -> Option<(u64, u64)> {
        self.0.as_ref().map(|s| (s.counts.exported.load(Relaxed), s.counts.dropped.load(Relaxed)))
    }
}

/// The thread behind a [`Tracer`].
pub struct Exporter {
    queue: SyncSender<Message>,
    ended: Receiver<()>,
}

impl Exporter {
    pub fn start(endpoint: Endpoint, log: Log) -> io::Result<(Tracer, Exporter)> {
        let (queue, spans) = sync_channel(QUEUE);
        let (tell_end, ended) = channel();
        let counts = Arc::new(Counts::default());
        let sending = Sending { queue: queue.clone(), counts: counts.clone() };
        std::thread::Builder::new().name("trace export".into()).spawn(move || {
            export(&spans, &endpoint, &counts, &log);
            // Nobody may be waiting for it.
            let _ = tell_end.send(());
        })?;
        Ok((Tracer(Some(Arc::new(sending))), Exporter { queue, ended }))
    }

    /// Delivers what waits, for as long as `patience` lasts.
    pub fn finish(self, patience: Duration) {
        // A full queue is one that the collector does not take.
        if self.queue.try_send(Message::Stop).is_ok() {
            let _ = self.ended.recv_timeout(patience);
        }
    }
}

fn export(spans: &Receiver<Message>, endpoint: &Endpoint, counts: &Counts, log: &Log) {
    let mut is_failing = false;
    let mut is_over = false;
    while !is_over {
        let batch;
        (batch, is_over) = collect(spans);
        if batch.is_empty() {
            continue;
        }
        let n = batch.len() as u64;
        let sent = post(endpoint, &message(batch).to_string());
        let counted = if sent.is_ok() { &counts.exported } else { &counts.dropped };
        counted.fetch_add(n, Relaxed);
        // Once when it begins, and once when it is over.
        if sent.is_err() != std::mem::replace(&mut is_failing, sent.is_err()) {
            let kind = sent.err().map_or("none".into(), |e| e.kind().to_string());
            log.line("trace-export", &[("failing", is_failing.into()), ("error", kind.into())]);
        }
    }
}

/// The next spans, and whether they are the last.
fn collect(spans: &Receiver<Message>) -> (Vec<Value>, bool) {
    let mut batch = match spans.recv() {
        Ok(Message::Span(span)) => vec![span],
        Ok(Message::Stop) | Err(_) => return (Vec::new(), true),
    };
    let until = Instant::now() + BATCH_TIME;
    while batch.len() < BATCH {
        match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Message::Span(span)) => batch.push(span),
            Err(RecvTimeoutError::Timeout) => break,
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return (batch, true),
        }
    }
    (batch, false)
}

fn message(spans: Vec<Value>) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let resource = [text("service.name", "overdraft"), text("service.version", version)];
    let scope = json!({"name": "overdraft", "version": version});
    json!({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}]})
}

/// One request on a connection of its own: there is one every half second at most.
fn post(endpoint: &Endpoint, body: &str) -> io::Result<()> {
    let mut addresses = (endpoint.bare_host(), endpoint.port).to_socket_addrs()?;
    let address = addresses.next().ok_or(io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let Endpoint { host, port, path } = endpoint;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    // "HTTP/1.1 200": what else it says does not matter.
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    match status.starts_with(b"HTTP/1.") && status[9] == b'2' {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
