//! What is asked of the handle, and why it may say no.

use std::time::{Duration, Instant};

use overdraft_engine::{EngineError, Options, Request};

/// A request with all that the engine should know of it.
pub struct Job {
    pub request: Request,
    /// Log-probabilities, speculation, constraint, cache salt.
    pub options: Options,
    /// Whose it is: callers take turns. 0 is anybody's.
    pub caller: u64,
    /// When it must be over; what is written by then was written.
    pub deadline: Option<Instant>,
}

impl From<Request> for Job {
    fn from(request: Request) -> Self {
        Self { request, options: Options::default(), caller: 0, deadline: None }
    }
}

/// How much the handle takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that may wait beyond those that run.
    pub queue: usize,
    /// Requests that run at once, at most as many as the engine has sequences.
    pub max_streams: usize,
    /// Bytes of updates that a reader may leave unread; then its request waits for it.
    pub stream_buffer_bytes: usize,
    /// How long a reader may leave a full buffer alone before its request is given up.
    pub reader_patience: Duration,
    /// A step that takes longer is taken for one that never returns.
    pub watchdog: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue: 256,
            max_streams: 64,
            stream_buffer_bytes: 256 << 10,
            reader_patience: Duration::from_secs(30),
            watchdog: Duration::from_secs(30),
        }
    }
}

/// Why a request was not taken on.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("all streams are taken and {waiting} requests wait; try again in {} s", .retry_after.as_secs_f64().ceil())]
    Busy { waiting: usize, retry_after: Duration },
    #[error(
        "the prompt has {prompt} tokens and at most {limit} can be read (the model was trained for a context of {trained}); shorten it"
    )]
    TooLong { prompt: usize, limit: usize, trained: usize },
    /// The request itself; the message names the field.
    #[error(transparent)]
    Invalid(EngineError),
    #[error("the server is shutting down")]
    Draining,
    #[error("the engine has stopped: {reason}")]
    Dead { reason: String },
}
