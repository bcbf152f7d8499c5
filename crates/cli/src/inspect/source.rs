//! What can be inspected: a model, or safetensors that belong to none.

use std::path::Path;

use overdraft_formats::TensorInfo;
use overdraft_formats::safetensors::SafeTensors;
use overdraft_models::Checkpoint;

use crate::failure::Result;
use crate::model::tensors;

pub(super) enum Source {
    Model(Checkpoint),
    Loose(SafeTensors),
}

impl Source {
    /// A safetensors file counts as its folder's model only under the names that models have.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let is_safetensors = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"));
        let is_model = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("model"))
            && path.with_file_name("config.json").exists();
        if is_safetensors && !is_model && !path.is_dir() {
            return Ok(Self::Loose(SafeTensors::open(path)?));
        }
        Ok(Self::Model(Checkpoint::open(path)?))
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Model(checkpoint) => checkpoint.name(),
            Self::Loose(tensors) => tensors.name(),
        }
    }

    pub(super) fn tensors(&self) -> &[TensorInfo] {
        match self {
            Self::Model(checkpoint) => tensors(checkpoint),
            Self::Loose(file) => file.tensors(),
        }
    }

    pub(super) fn format(&self) -> String {
        match self {
            Self::Model(Checkpoint::Gguf(gguf)) => format!("GGUF version {}", gguf.version()),
            Self::Model(Checkpoint::HuggingFace { .. }) => "Hugging Face folder".into(),
            Self::Loose(_) => "safetensors without config.json".into(),
        }
    }
}
