//! Hugging Face checkpoints into GGUF, with each family's conventions: permuted llama heads, norms with their one
//! added, tiled value heads, split experts.

mod keys;
mod tensors;

use overdraft_formats::DType;
use overdraft_formats::gguf::GgufWriter;

use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// The model of a Hugging Face folder as GGUF: settings and tensors. `quantise(name)` says what type a matrix is to
/// have; vectors, norms, routers and convolutions are always F32, and rows that do not fill whole blocks keep a
/// float type.
pub fn to_gguf(checkpoint: &Checkpoint, quantise: &dyn Fn(&str) -> DType) -> Result<GgufWriter> {
    let hyper = checkpoint.hyper()?;
    let mut writer = GgufWriter::new(hyper.arch.name());
    keys::write(&hyper, &mut writer);
    tensors::write(checkpoint, &hyper, quantise, &mut writer)?;
    Ok(writer)
}
