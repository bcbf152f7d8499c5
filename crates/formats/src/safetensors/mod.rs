//! safetensors: a JSON header and the tensors' bytes, in one file or in shards listed by an index.

mod header;
mod index;
mod writer;

use std::path::Path;

pub use writer::SafeTensorsWriter;

use crate::tensor::TensorIndex;
use crate::{Bytes, Error, Result, Tensor, TensorInfo};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An open safetensors model; tensors are ranges of the mapped files.
#[derive(Debug)]
pub struct SafeTensors {
    name: String,
    metadata: Vec<(String, String)>,
    tensors: TensorIndex,
}

impl SafeTensors {
    /// Opens a file, or a folder that holds `model.safetensors` or `model.safetensors.index.json` and its shards.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Self::open_files(path.display().to_string(), [path]);
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        if single.exists() {
            return Self::open_files(single.display().to_string(), [single]);
        }
        if !index.exists() {
            return Err(Error::invalid(
                path.display().to_string(),
                "folder",
                format!("holds neither `{SINGLE}` nor `{INDEX}`"),
            ));
        }
        let index = index::Index::open(&index)?;
        let shards = index.shards.iter().map(|shard| path.join(shard));
        let model = Self::open_files(index.file.clone(), shards)?;
        index.check(&model.tensors)?;
        Ok(model)
    }

    /// Reads a single file that is in memory already; `name` stands for the file in messages.
    pub fn from_bytes(name: &str, bytes: Bytes) -> Result<Self> {
        let mut model = Self { name: name.to_owned(), metadata: Vec::new(), tensors: TensorIndex::default() };
        model.add(name, bytes)?;
        Ok(model)
    }

    fn open_files(name: String, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let mut model = Self { name, metadata: Vec::new(), tensors: TensorIndex::default() };
        for path in paths {
            model.add(&path.as_ref().display().to_string(), Bytes::map(path.as_ref())?)?;
        }
        Ok(model)
    }

    fn add(&mut self, file: &str, bytes: Bytes) -> Result<()> {
        let header::File { metadata, tensors, data } = header::parse(file, &bytes)?;
        self.metadata.extend(metadata);
        self.tensors.add_part(file, data, tensors)
    }

    /// The file (or index) it came from, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The free-form `__metadata__` of all files, in file order.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Every tensor in header order, of types this build reads or not.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.tensors.infos()
    }

    /// What is said of a tensor, without its data.
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.find(name)
    }

    /// A tensor with its data; None when there is none of that name, an error when its type is not read.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        self.tensors.get(name)
    }

    pub fn need_tensor(&self, name: &str) -> Result<Tensor> {
        self.tensors.need(name)
    }
}
