//! The functions a model may call: as the request lists them, as templates want to see them, as models write them.

mod choice;
mod fallback;
mod messages;
mod probe;
mod set;
mod xml_values;

#[cfg(test)]
mod template_tests;

pub use choice::ToolChoice;
pub(crate) use messages::shape;
pub(crate) use probe::Traits;
pub(crate) use set::{Tool, ToolSet};
pub(crate) use xml_values::{is_plain_text, json_from_text};
