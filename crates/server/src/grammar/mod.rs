//! Texts that have to follow a grammar: JSON, a schema, a regular expression, a grammar of the user's, or the calls of
//! functions. `llguidance` does the parsing; here are the caps, the cache and the grammars of our own.
//!
//! Everything in here may take milliseconds: not for the engine's thread, nor for an async task.

mod calls;
mod compiled;
mod constraint;
mod gbnf;
mod lark;
mod limits;
mod token_env;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod walk_tests;

pub use compiled::Grammars;
pub(crate) use lark::{Answer, Plan};

use std::sync::Arc;

use overdraft_engine::Constraint;
use serde_json::Value;

use crate::output::Refusal;

/// What an answer has to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResponseFormat {
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    JsonSchema {
        schema: Value,
        /// What the schema asks for and cannot be enforced is refused. If not, it is left out.
        strict: bool,
    },
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// In Lark's syntax, or in GBNF.
    Grammar(String),
}

/// For text without a chat template.
pub fn plain_constraint(
    format: &ResponseFormat,
    grammars: &Arc<Grammars>,
) -> Result<Option<Box<dyn Constraint>>, Refusal> {
    match Plan::for_text(format)? {
        Some(plan) => grammars.constraint(plan).map(Some),
        None => Ok(None),
    }
}
