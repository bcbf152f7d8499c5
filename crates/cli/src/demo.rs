//! The demo pair inside the binary.

use overdraft_models::Checkpoint;

use crate::failure::Result;

#[cfg(feature = "demo")]
mod files {
    // Linked in and used in place: opening it allocates no weights.
    pub(super) static TARGET: &[u8] = include_bytes!("../../../models/pycoder-q4_k_m.gguf");
    pub(super) static DRAFT: &[u8] = include_bytes!("../../../models/pycoder-dflash-q8_0.gguf");
}

/// What to try the demo model with: it goes on for a screen, where a lone function ends within a few lines.
pub(crate) const PROMPT: &str = "class Stack:\n    \"\"\"A last-in, first-out collection.\"\"\"\n\n";

/// What must be said wherever the demo model is shown.
pub(crate) const CAVEAT: &str = "it writes plausible, not correct, Python";

#[cfg(feature = "demo")]
pub(crate) fn target() -> Result<Checkpoint> {
    let bytes = overdraft_formats::Bytes::from_static(files::TARGET);
    Ok(Checkpoint::from_gguf_bytes("embedded demo model", bytes)?)
}

/// The target as a file, for programs beside us.
#[cfg(feature = "demo")]
pub(crate) fn target_bytes() -> Result<&'static [u8]> {
    Ok(files::TARGET)
}

#[cfg(feature = "demo")]
pub(crate) fn draft() -> Result<Checkpoint> {
    let bytes = overdraft_formats::Bytes::from_static(files::DRAFT);
    Ok(Checkpoint::from_gguf_bytes("embedded demo draft", bytes)?)
}

#[cfg(not(feature = "demo"))]
fn missing<T>() -> Result<T> {
    Err(crate::failure::Failure::input("no model given, and this build has no demo model inside")
        .hint("name a GGUF file or a Hugging Face folder, with -m for run and chat"))
}

#[cfg(not(feature = "demo"))]
pub(crate) fn target() -> Result<Checkpoint> {
    missing()
}

#[cfg(not(feature = "demo"))]
pub(crate) fn target_bytes() -> Result<&'static [u8]> {
    missing()
}

#[cfg(not(feature = "demo"))]
pub(crate) fn draft() -> Result<Checkpoint> {
    missing()
}
