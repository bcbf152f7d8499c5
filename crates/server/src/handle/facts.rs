//! What never changes about the model that is served.

use std::sync::Arc;

use overdraft_engine::{Bounds, Engine};
use overdraft_formats::tokenizer::Tokenizer;

/// What the caller knows of the model and the engine does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub name: String,
    /// Of the draft; `None` without one.
    pub draft_name: Option<String>,
    /// Source of the chat template.
    pub template: Option<String>,
}

pub struct ModelFacts {
    pub about: About,
    pub vocab: usize,
    /// Positions a request may have, prompt and answer together.
    pub context: usize,
    /// Positions the model was trained for.
    pub trained_context: usize,
    /// Tokens that the draft guesses at once, its anchor included; `None` without a draft.
    pub draft_block: Option<usize>,
    /// What runs it ("cpu, avx2, 8 threads").
    pub device: String,
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end a text by themselves.
    pub stop_ids: Vec<u32>,
    /// Bytes that are held for it, line by line.
    pub memory: Vec<(&'static str, usize)>,
}

impl ModelFacts {
    pub(crate) fn new(engine: &Engine, about: About) -> Self {
        let Bounds { vocab, context, trained } = engine.bounds();
        Self {
            about,
            vocab,
            context,
            trained_context: trained,
            draft_block: engine.draft().map(|d| d.settings.block_size),
            device: engine.describe(),
            tokenizer: engine.tokenizer().clone(),
            stop_ids: engine.tokenizer().end_ids().to_vec(),
            memory: engine.ledger().lines.clone(),
        }
    }

    pub fn bounds(&self) -> Bounds {
        Bounds { vocab: self.vocab, context: self.context, trained: self.trained_context }
    }
}
