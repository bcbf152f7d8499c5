//! What a layer is made of. A part knows how to load itself and how to record itself; nothing else does.

mod attention;
mod dense;
mod gdn;
mod moe;
mod moe_files;

pub(crate) use attention::{AttentionPart, AttentionShape, Rotary};
pub(crate) use dense::DensePart;
pub(crate) use gdn::{GdnPart, gdn_inputs};
pub(crate) use moe::{MoePart, router};
pub(crate) use moe_files::expert_files;
