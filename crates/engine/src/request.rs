//! What is asked of the engine, and how it ends.

use crate::error::{EngineError, Result};
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

/// What an engine can serve, as far as it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub vocab: usize,
    /// Positions a sequence may have.
    pub context: usize,
    /// Positions the model was trained for.
    pub trained: usize,
}

impl Request {
    /// Refuses what no engine of these bounds can ever serve, by name.
    pub fn check(&self, bounds: &Bounds) -> Result<()> {
        let (n, Bounds { vocab, context, trained }) = (self.prompt.len(), *bounds);
        if n == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if n >= context {
            return Err(EngineError::PromptTooLong { prompt: n, context, trained });
        }
        if let Some(token) = self.prompt.iter().find(|t| **t as usize >= vocab) {
            return Err(EngineError::Token { token: *token, vocab });
        }
        if self.max_tokens == 0 {
            let allowed = "must be at least 1";
            return Err(EngineError::Parameter { name: "max_tokens", value: "0".into(), allowed });
        }
        self.sampling.check(vocab)
    }

    /// Positions its text can fill: of prompt and answer, up to the context.
    pub(crate) fn limit(&self, context: usize) -> usize {
        context.min(self.prompt.len().saturating_add(self.max_tokens))
    }
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
    /// The request's constraint allows nothing more.
    Constraint,
}

impl Finish {
    pub fn name(self) -> &'static str {
        match self {
            Finish::EndToken => "end-token",
            Finish::StopString => "stop-string",
            Finish::MaxTokens => "max-tokens",
            Finish::Context => "context",
            Finish::Constraint => "constraint",
        }
    }
}
