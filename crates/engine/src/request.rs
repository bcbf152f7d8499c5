//! What is asked of the engine, and how it ends.

use crate::sampling::Sampling;

/// A sequence's name for as long as the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId(pub u64);

#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// Tokens to write at most; the context may end it sooner.
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Tokens that end the text (and are not part of it).
    pub stop_ids: Vec<u32>,
    /// Texts that end the text (and are not part of it), wherever token boundaries fall.
    pub stop_strings: Vec<String>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-text token or one of the request's stop ids.
    EndToken,
    StopString,
    MaxTokens,
    /// The context is full.
    Context,
}

impl Finish {
    pub fn name(self) -> &'static str {
        match self {
            Finish::EndToken => "end-token",
            Finish::StopString => "stop-string",
            Finish::MaxTokens => "max-tokens",
            Finish::Context => "context",
        }
    }
}
