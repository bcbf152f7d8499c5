//! What a stream brings.

use std::time::Duration;

use overdraft_engine::{Finish, Logprobs, Origin, Stats};

/// In this order: once `Started`, `Scored` if the job asks for it, any number of `Tokens`, then `Finished` or `Failed`. `Failed` may come at any time.
#[derive(Clone, Debug)]
pub enum Update {
    Started {
        /// Tokens of the prompt that need not be read because they were found in the prefix cache.
        cached_tokens: usize,
        queued: Duration,
    },
    /// Log-probabilities of the prompt's tokens, from the second on.
    Scored(Vec<Logprobs>),
    /// Those of one step; of several where the reader was slower.
    Tokens(Vec<TokenOut>),
    Finished {
        finish: Finish,
        stats: Box<Stats>,
        timings: Timings,
    },
    /// Nothing comes after it.
    Failed {
        message: String,
        kind: FailKind,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenOut {
    pub id: u32,
    /// Text that is now certain; may be empty.
    pub text: String,
    pub origin: Origin,
    /// Of the target's distribution before any adjustment, where it was asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens of that distribution, best first.
    pub top: Vec<(u32, f32)>,
}

/// Wall time of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    pub queued: Duration,
    /// From submission to the first token.
    pub first_token: Duration,
    /// From admission to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// From submission to the end.
    pub total: Duration,
}

/// Whose fault, and whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailKind {
    /// This request cannot go on: no token could be chosen for it. Others do.
    Request,
    /// Its time was over.
    Deadline,
    /// Nobody read what it wrote.
    SlowReader,
    /// The device failed or the step never returned; no request can be served any more.
    Engine,
}
