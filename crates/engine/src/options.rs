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
        if let Some(n) = self.logprobs.filter(|n| *n > MAX_TOP) {
            let allowed = "at most 20 tokens beside the chosen one";
            return Err(EngineError::Parameter { name: "top_logprobs", value: n.to_string(), allowed });
        }
        Ok(())
    }
}
