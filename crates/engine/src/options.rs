//! What a request may ask for beyond its text and sampling.

use crate::constraint::Constraint;
use crate::error::{EngineError, Result};
use crate::logprobs::MAX_TOP;

/// Whether a request's rounds draft. None of these changes its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculative {
    /// As the engine was set up.
    #[default]
    Auto,
    Off,
    /// As the engine was set up, within these limits.
    Limited {
        /// Tokens drafted one after another.
        max_depth: usize,
        /// Tokens drafted in one round.
        max_nodes: usize,
    },
}

#[derive(Default)]
pub struct Options {
    /// The log-probability of every token, and so many of the most likely ones beside it.
    pub logprobs: Option<usize>,
    /// The same of the prompt's tokens, all but the first. Such a prompt is read whole, whatever is cached of it, a page
    /// at a time in steps of its own: no step has logits for more.
    pub prompt_logprobs: Option<usize>,
    pub speculative: Speculative,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Prefixes are only ever shared between requests of one salt.
    pub cache_salt: u64,
    /// Control tokens are part of the text too.
    pub keep_specials: bool,
}

impl Options {
    /// Refuses what no engine gives, by name.
    pub fn check(&self) -> Result<()> {
        for (name, asked) in [("top_logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(n) = asked.filter(|n| *n > MAX_TOP) {
                let allowed = "at most 20 tokens beside the chosen one";
                return Err(EngineError::Parameter { name, value: n.to_string(), allowed });
            }
        }
        Ok(())
    }
}
