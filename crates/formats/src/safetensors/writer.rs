//! Writes a single safetensors file.

use std::io::Write;

use serde_json::{Map, json};

use crate::error::quoted;
use crate::{Bytes, DType, Error, Result, Tensor};

const FILE: &str = "safetensors being written";

/// Collects metadata and tensors, then writes them. Mistakes are reported by the write.
#[derive(Default)]
pub struct SafeTensorsWriter {
    metadata: Map<String, serde_json::Value>,
    tensors: Vec<Tensor>,
}

impl SafeTensorsWriter {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn metadata(&mut self, key: &str, value: &str) -> &mut Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: Bytes) -> &mut Self {
        self.tensors.push(Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes });
        self
    }

    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let mut header = Map::new();
        if !self.metadata.is_empty() {
            header.insert("__metadata__".into(), self.metadata.clone().into());
        }
        let mut at = 0;
        for Tensor { name, dtype, shape, bytes } in &self.tensors {
            let invalid = |problem: String| Error::invalid(FILE, format!("tensor {}", quoted(name)), problem);
            let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
            let expected = elements.and_then(|n| dtype.row_bytes(n));
            if dtype.is_quantised() || expected != Some(bytes.len()) {
                return Err(invalid(format!("{} bytes are not {shape:?} of {dtype}", bytes.len())));
            }
            let entry =
                json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [at, at + bytes.len()]});
            if header.insert(name.clone(), entry).is_some() {
                return Err(invalid("added twice".into()));
            }
            at += bytes.len();
        }
        let mut header = serde_json::Value::from(header).to_string();
        // Spaces up to a multiple of 8 keep the data aligned for readers that map it.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let put = |out: &mut dyn Write, bytes: &[u8]| out.write_all(bytes).map_err(|e| Error::io(FILE, e));
        put(out, &(header.len() as u64).to_le_bytes())?;
        put(out, header.as_bytes())?;
        for tensor in &self.tensors {
            put(out, &tensor.bytes)?;
        }
        Ok(())
    }
}
