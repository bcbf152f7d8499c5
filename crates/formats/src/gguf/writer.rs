//! Writes version 3 files as llama.cpp wants them: tensors dense, in order, each padded to the alignment.

use std::io::Write;

use super::value::{ARRAY_ID, Value};
use super::{Gguf, ValueType};
use crate::error::quoted;
use crate::{Bytes, DType, Error, Result};

const FILE: &str = "GGUF being written";

struct Item {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
}

/// Collects keys and tensors, then writes them. Mistakes are reported by the write.
pub struct GgufWriter {
    keys: Vec<(String, Value)>,
    tensors: Vec<Item>,
}

fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    out.extend_from_slice(&(s.len() as u64).to_le_bytes());
    out.extend_from_slice(s);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut scalar = |kind: ValueType, bytes: &[u8]| {
        out.extend_from_slice(&kind.id().to_le_bytes());
        out.extend_from_slice(bytes);
    };
    match value {
        Value::U8(v) => scalar(ValueType::U8, &v.to_le_bytes()),
        Value::I8(v) => scalar(ValueType::I8, &v.to_le_bytes()),
        Value::U16(v) => scalar(ValueType::U16, &v.to_le_bytes()),
        Value::I16(v) => scalar(ValueType::I16, &v.to_le_bytes()),
        Value::U32(v) => scalar(ValueType::U32, &v.to_le_bytes()),
        Value::I32(v) => scalar(ValueType::I32, &v.to_le_bytes()),
        Value::F32(v) => scalar(ValueType::F32, &v.to_le_bytes()),
        Value::Bool(v) => scalar(ValueType::Bool, &[u8::from(*v)]),
        Value::U64(v) => scalar(ValueType::U64, &v.to_le_bytes()),
        Value::I64(v) => scalar(ValueType::I64, &v.to_le_bytes()),
        Value::F64(v) => scalar(ValueType::F64, &v.to_le_bytes()),
        Value::Str(s) => {
            out.extend_from_slice(&ValueType::Str.id().to_le_bytes());
            put_string(out, s);
        }
        Value::Array(a) => {
            out.extend_from_slice(&ARRAY_ID.to_le_bytes());
            out.extend_from_slice(&a.element.id().to_le_bytes());
            out.extend_from_slice(&(a.len as u64).to_le_bytes());
            out.extend_from_slice(&a.bytes);
        }
    }
}

impl GgufWriter {
    pub fn new(architecture: &str) -> Self {
        let keys = vec![("general.architecture".to_owned(), Value::from(architecture))];
        Self { keys, tensors: Vec::new() }
    }

    /// Sets a key, in place of an earlier value. `general.alignment` is obeyed.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        match self.keys.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds a tensor; `shape` is outermost first, `[out, in]`.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: Bytes) -> &mut Self {
        self.tensors.push(Item { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes });
        self
    }

    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let alignment = self.alignment()?;
        let header = self.header(alignment)?;
        let put = |out: &mut dyn Write, bytes: &[u8]| {
            let padding = bytes.len().next_multiple_of(alignment) - bytes.len();
            out.write_all(bytes)?;
            std::io::copy(&mut std::io::Read::take(std::io::repeat(0), padding as u64), out).map(|_| ())
        };
        put(out, &header).map_err(|e| Error::io(FILE, e))?;
        for item in &self.tensors {
            put(out, &item.bytes).map_err(|e| Error::io(FILE, e))?;
        }
        Ok(())
    }

    fn alignment(&self) -> Result<usize> {
        match self.keys.iter().find(|(k, _)| k == "general.alignment") {
            None => Ok(32),
            Some((_, Value::U32(v))) if v.is_power_of_two() => Ok(*v as usize),
            Some((key, v)) => {
                Err(Error::invalid(FILE, format!("key `{key}`"), format!("{v} is not a u32 power of two")))
            }
        }
    }

    fn header(&self, alignment: usize) -> Result<Vec<u8>> {
        let mut out = b"GGUF".to_vec();
        out.extend_from_slice(&3u32.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            if key.is_empty() {
                return Err(Error::invalid(FILE, "key", "empty"));
            }
            put_string(&mut out, key.as_bytes());
            put_value(&mut out, value);
        }
        let mut names: Vec<&str> = self.tensors.iter().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(FILE, format!("tensor {}", quoted(pair[0])), "added twice"));
        }
        let mut offset = 0u64;
        for item in &self.tensors {
            let type_id = item.check()?;
            put_string(&mut out, item.name.as_bytes());
            out.extend_from_slice(&(item.shape.len() as u32).to_le_bytes());
            for &dim in item.shape.iter().rev() {
                out.extend_from_slice(&(dim as u64).to_le_bytes());
            }
            out.extend_from_slice(&type_id.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset += item.bytes.len().next_multiple_of(alignment) as u64;
        }
        Ok(out)
    }
}

impl Item {
    /// The type's id, once name, type, shape and bytes are known to agree.
    fn check(&self) -> Result<u32> {
        let Self { name, dtype, shape, bytes } = self;
        let invalid = |problem: String| Error::invalid(FILE, format!("tensor {}", quoted(name)), problem);
        if name.is_empty() || name.len() > 63 {
            return Err(invalid(format!("the name is {} bytes long; 1 to 63 are allowed", name.len())));
        }
        if shape.len() > 4 || shape.contains(&0) {
            return Err(invalid(format!("shape {shape:?}; up to 4 dimensions, none of them 0, are allowed")));
        }
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
        let row_bytes = dtype.row_bytes(shape.last().copied().unwrap_or(1));
        let expected = rows.zip(row_bytes).and_then(|(rows, bytes)| rows.checked_mul(bytes));
        if expected != Some(bytes.len()) {
            return Err(invalid(match expected {
                Some(n) => format!("{shape:?} of {dtype} takes {n} bytes, {} were given", bytes.len()),
                None => format!("{shape:?} is not whole blocks of {} of {dtype}", dtype.block_len()),
            }));
        }
        dtype.ggml_id().ok_or_else(|| invalid(format!("{dtype} has no place in GGUF")))
    }
}

/// A writer with the keys of a model that was read, to which tensors can be added.
impl From<&Gguf> for GgufWriter {
    fn from(gguf: &Gguf) -> Self {
        Self { keys: gguf.keys.clone(), tensors: Vec::new() }
    }
}
