//! An answer's text into thoughts, content and calls, as it comes.

use std::sync::Arc;

use super::call_list::CallList;
use super::dialect::Dialect;
use super::harmony::Harmony;
use super::piece::Piece;
use super::tagged::{Tagged, TaggedStart};
use crate::reasoning::Thinking;
use crate::tools::ToolSet;

/// All that has to be known before the first character.
#[derive(Clone, Debug)]
pub(crate) struct ParserStart {
    pub(crate) dialect: Dialect,
    pub(crate) thinking: Thinking,
    /// What may be called; empty when nothing may.
    pub(crate) tools: Arc<ToolSet>,
}

/// Holds back at most a call that is not yet certain to be one (1 MiB), a value of it, or the beginning of a tag. Never fails: what is not understood is content.
#[derive(Clone, Debug)]
pub struct OutputParser(Form);

#[derive(Clone, Debug)]
enum Form {
    Tagged(Tagged),
    Harmony(Harmony),
}

impl OutputParser {
    /// `seed` makes the ids of its calls.
    pub(crate) fn new(start: &ParserStart, seed: u64) -> Self {
        let calls = CallList::new(seed);
        Self(match start.dialect {
            Dialect::Harmony => Form::Harmony(Harmony::new(start.tools.clone(), calls)),
            Dialect::Tagged(style) => {
                let start_here = TaggedStart {
                    style: (!start.tools.is_empty()).then_some(style),
                    may_think: matches!(start.thinking, Thinking::Possible | Thinking::Closed),
                    is_thinking: start.thinking == Thinking::Open,
                };
                Form::Tagged(Tagged::new(&start_here, start.tools.clone(), calls))
            }
        })
    }

    /// Appends what `text` makes certain.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        match &mut self.0 {
            Form::Tagged(tagged) => tagged.push(text, out),
            Form::Harmony(harmony) => harmony.push(text, out),
        }
    }

    /// Appends what is still held when the answer ends.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        match &mut self.0 {
            Form::Tagged(tagged) => tagged.finish(out),
            Form::Harmony(harmony) => harmony.finish(out),
        }
    }
}
