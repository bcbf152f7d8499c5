//! DFlash drafts: what a file declares about itself, whichever dialect it is written in, and whether it fits a target.
//!
//! Three GGUF dialects and two generations of `config.json` are in circulation. They end here: everyone else holds
//! [`DraftSettings`] and asks [`DraftNames`] for tensors by the names upstream GGUF files use.

mod fit;
mod from_gguf;
mod from_hf;
mod model;
mod names;
mod refuse;
mod settings;
mod tensors;

pub use fit::check_fit;
pub use model::{Draft, DraftPlan};
pub use names::DraftNames;
pub use settings::{DraftLayer, DraftSettings, TapAfter};
