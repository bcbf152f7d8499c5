//! GGUF files: llama.cpp's container of metadata and tensors, versions 2 and 3, whole or split over files.

mod cursor;
mod getters;
mod parse;
mod split;
mod value;
mod writer;

use std::path::Path;

pub use getters::{PerLayer, Texts};
pub use value::{Array, Strings, Value, ValueType};
pub use writer::GgufWriter;

use crate::tensor::TensorIndex;
use crate::{Bytes, Result, Tensor, TensorInfo};

/// An open GGUF model. Metadata strings, arrays and tensors are ranges of the mapped files.
#[derive(Debug)]
pub struct Gguf {
    name: String,
    version: u32,
    /// In file order.
    keys: Vec<(String, Value)>,
    /// Places in `keys`, in order of key.
    by_key: Vec<u32>,
    tensors: TensorIndex,
}

impl Gguf {
    /// Opens a model by its file, or by the first file of a split one.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = parse::parse(&name, &Bytes::map(path)?)?;
        let siblings = split::siblings(path, &name, &file)?;
        let mut gguf = Self::from_file(name, file)?;
        gguf.add_siblings(&siblings)?;
        Ok(gguf)
    }

    /// Reads a model that is in memory already; `name` stands for the file in messages.
    pub fn from_bytes(name: &str, bytes: Bytes) -> Result<Self> {
        let file = parse::parse(name, &bytes)?;
        split::refuse(name, &file)?;
        Self::from_file(name.to_owned(), file)
    }

    fn from_file(name: String, file: parse::File) -> Result<Self> {
        let parse::File { version, keys, tensors: infos, data } = file;
        let mut by_key: Vec<u32> = (0..keys.len() as u32).collect();
        by_key.sort_unstable_by(|&a, &b| keys[a as usize].0.cmp(&keys[b as usize].0));
        let mut tensors = TensorIndex::default();
        tensors.add_part(&name, data, infos)?;
        Ok(Self { name, version, keys, by_key, tensors })
    }

    /// The file it came from, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// Keys and values in file order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.keys.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn value(&self, key: &str) -> Option<&Value> {
        let at = self.by_key.binary_search_by(|&i| self.keys[i as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.keys[self.by_key[at] as usize].1)
    }

    /// Every tensor in file order, of types this build reads or not.
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
