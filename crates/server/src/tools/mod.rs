//! The functions a model may call: as the request lists them, as templates want to see them, as models write them.

mod choice;
mod set;
mod xml_values;

pub use choice::ToolChoice;
pub(crate) use set::ToolSet;
pub(crate) use xml_values::json_from_text;
