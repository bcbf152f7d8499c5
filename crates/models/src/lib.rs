//! Models: a checkpoint on disk becomes weights and a recorded forward pass.
//!
//! Every family here is one decoder skeleton with different parts: a mixer (softmax attention or Gated DeltaNet) and
//! a feed-forward layer (dense or mixture of experts). What differs is said once, in typed fields: [`Hyper`] holds
//! what the file declares, `parts/` how a part is loaded and recorded, [`Decoder`] the skeleton.

mod arch;
mod checkpoint;
pub mod convert;
mod decoder;
pub mod draft;
mod error;
mod hyper;
mod hyper_gguf;
mod hyper_hf;
mod loader;
mod names;
mod parts;
mod rope;
mod text;

pub use arch::Arch;
pub use checkpoint::{Checkpoint, Kind};
pub use decoder::{Decoder, RecordOptions};
pub use draft::{Draft, DraftPlan};
pub use error::{ModelError, Result};
pub use hyper::{GdnDims, Hyper, MixerKind, MoeDims};
pub use rope::RopeScaling;
pub use text::RecommendedSampling;
