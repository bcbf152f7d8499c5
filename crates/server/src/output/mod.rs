//! What the text means: a conversation into the model's prompt, and its answer into thoughts, content and calls.

mod call;
mod call_list;
mod dialect;
mod format;
mod harmony;
mod json_args;
mod json_scan;
mod open_call;
mod parser;
#[cfg(test)]
mod parser_tests;
mod piece;
mod refusal;
mod tag_finder;
mod tagged;
mod xml_scan;

pub use crate::grammar::{Grammars, ResponseFormat, plain_constraint};
pub use crate::tools::ToolChoice;
pub(crate) use dialect::Dialect;
pub use format::{ChatFormat, Conversation, Prompt};
pub use parser::OutputParser;
pub use piece::Piece;
pub use refusal::Refusal;
pub(crate) use tagged::CallStyle;
