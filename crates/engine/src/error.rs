//! What the engine refuses or fails at. Messages say what would have worked.

use overdraft_plan::BackendError;

use crate::request::SeqId;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("the prompt is empty; give at least one token of text")]
    EmptyPrompt,
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}; shorten the prompt or raise --ctx (this model was trained for {trained})"
    )]
    PromptTooLong { prompt: usize, context: usize, trained: usize },
    #[error("token id {token} is outside the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("{name} = {value}: {allowed}")]
    Parameter { name: &'static str, value: String, allowed: &'static str },
    #[error("all {slots} sequences are taken; wait for one to finish")]
    NoSlot { slots: usize },
    #[error(
        "this request may need {needed} pages of context and {free} are free; lower its length or wait for another to finish"
    )]
    NoPages { needed: usize, free: usize },
    #[error("{0}")]
    Memory(String),
    /// The sequence is over, the others are not: step on.
    #[error(
        "no token can be chosen at position {position}: all logits are NaN or infinite; the file may be damaged, or bias and constraint forbid every token"
    )]
    Logits { seq: SeqId, position: u32 },
    /// The sequence is over, the others are not: step on.
    #[error("the constraint refused token {token} at position {position}, which its own mask had allowed")]
    Constraint { seq: SeqId, position: u32, token: u32 },
}

impl EngineError {
    /// The sequence that alone is over; `None` where the engine is, or nothing.
    pub fn failed_sequence(&self) -> Option<SeqId> {
        match self {
            EngineError::Logits { seq, .. } | EngineError::Constraint { seq, .. } => Some(*seq),
            _ => None,
        }
    }
}

pub type Result<T, E = EngineError> = std::result::Result<T, E>;
