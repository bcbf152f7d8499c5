//! Typed access to metadata. Writers disagree about widths (u32, i32 and u64 are all used for counts), so any
//! number that fits is taken; what does not fit is an error that names file, key and value.

use super::{Gguf, Strings, Value};
use crate::error::quoted;
use crate::{Error, Result};

/// Arrays are copied out up to this length; vocabularies, the longest, have some 250 000 entries.
const MAX_COPIED: usize = 1 << 22;

/// A number that is the same for all layers or given for each.
#[derive(Clone, Debug, PartialEq)]
pub enum PerLayer<T> {
    Same(T),
    Each(Vec<T>),
}

impl<T: Copy> PerLayer<T> {
    /// None when there is no number for that layer.
    pub fn get(&self, layer: usize) -> Option<T> {
        match self {
            Self::Same(v) => Some(*v),
            Self::Each(v) => v.get(layer).copied(),
        }
    }
}

/// A string array of the metadata, read where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    file: &'a str,
    key: &'a str,
    array: &'a super::Array,
}

impl<'a> Texts<'a> {
    pub fn len(&self) -> usize {
        self.array.len()
    }

    pub fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// The strings as bytes; files need not hold UTF-8.
    pub fn bytes(&self) -> Strings<'a> {
        self.array.strings().unwrap_or_default()
    }

    /// The strings as text; one that is not UTF-8 is an error that says which.
    pub fn iter(&self) -> impl Iterator<Item = Result<&'a str>> {
        let (file, key) = (self.file, self.key);
        self.bytes().enumerate().map(move |(i, bytes)| {
            std::str::from_utf8(bytes)
                .map_err(|e| Error::invalid(file, format!("key {}", quoted(key)), format!("entry {i}: {e}")))
        })
    }
}

fn as_u64(v: &Value) -> Option<u64> {
    if matches!(v, Value::Bool(_)) { None } else { u64::try_from(v.as_int()?).ok() }
}

fn as_i64(v: &Value) -> Option<i64> {
    if matches!(v, Value::Bool(_)) { None } else { i64::try_from(v.as_int()?).ok() }
}

impl Gguf {
    fn invalid(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::invalid(&self.name, format!("key {}", quoted(key)), problem)
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let found = read(value).ok_or_else(|| self.invalid(key, format!("is {value}, expected {wanted}")))?;
        Ok(Some(found))
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| self.invalid(key, "missing, and this model needs it"))
    }

    fn get_array<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(array) = self.get(key, wanted, Value::as_array)? else { return Ok(None) };
        if array.len() > MAX_COPIED {
            return Err(self.invalid(key, format!("{} entries; at most {MAX_COPIED} are read", array.len())));
        }
        if array.strings().is_some() && !array.is_empty() {
            return Err(self.invalid(key, format!("is {}, expected {wanted}", Value::Array(array.clone()))));
        }
        let mut out = Vec::with_capacity(array.len());
        for (i, value) in array.numbers().enumerate() {
            let unfit = || self.invalid(key, format!("entry {i} is {value}, expected {wanted}"));
            out.push(read(&value).ok_or_else(unfit)?);
        }
        Ok(Some(out))
    }

    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.get(key, "a whole number that is not negative", as_u64)
    }

    pub fn need_u64(&self, key: &str) -> Result<u64> {
        self.need(key, self.get_u64(key)?)
    }

    pub fn get_i64(&self, key: &str) -> Result<Option<i64>> {
        self.get(key, "a whole number", as_i64)
    }

    pub fn need_i64(&self, key: &str) -> Result<i64> {
        self.need(key, self.get_i64(key)?)
    }

    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        self.get(key, "a number", |v| v.as_float().map(|v| v as f32))
    }

    pub fn need_f32(&self, key: &str) -> Result<f32> {
        self.need(key, self.get_f32(key)?)
    }

    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub fn need_bool(&self, key: &str) -> Result<bool> {
        self.need(key, self.get_bool(key)?)
    }

    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a UTF-8 string", Value::as_str)
    }

    pub fn need_str(&self, key: &str) -> Result<&str> {
        self.need(key, self.get_str(key)?)
    }

    /// An array of whole numbers; bools count as 0 and 1, as layer patterns are written both ways.
    pub fn get_u64_array(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.get_array(key, "an array of whole numbers that are not negative", |v| {
            u64::try_from(v.as_int()?).ok()
        })
    }

    pub fn need_u64_array(&self, key: &str) -> Result<Vec<u64>> {
        self.need(key, self.get_u64_array(key)?)
    }

    pub fn get_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.get_array(key, "an array of whole numbers of 32 bits", |v| i32::try_from(v.as_int()?).ok())
    }

    pub fn need_i32_array(&self, key: &str) -> Result<Vec<i32>> {
        self.need(key, self.get_i32_array(key)?)
    }

    pub fn get_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.get_array(key, "an array of numbers", |v| v.as_float().map(|v| v as f32))
    }

    pub fn need_f32_array(&self, key: &str) -> Result<Vec<f32>> {
        self.need(key, self.get_f32_array(key)?)
    }

    pub fn get_str_array<'a>(&'a self, key: &'a str) -> Result<Option<Texts<'a>>> {
        let strings = |v: &'a Value| v.as_array().filter(|a| a.strings().is_some());
        let array = self.get(key, "an array of strings", strings)?;
        Ok(array.map(|array| Texts { file: &self.name, key, array }))
    }

    pub fn need_str_array<'a>(&'a self, key: &'a str) -> Result<Texts<'a>> {
        self.need(key, self.get_str_array(key)?)
    }

    /// One number for all layers, or an array with one for each.
    pub fn get_u64_per_layer(&self, key: &str) -> Result<Option<PerLayer<u64>>> {
        match self.value(key) {
            Some(Value::Array(_)) => Ok(self.get_u64_array(key)?.map(PerLayer::Each)),
            _ => Ok(self.get_u64(key)?.map(PerLayer::Same)),
        }
    }

    pub fn need_u64_per_layer(&self, key: &str) -> Result<PerLayer<u64>> {
        self.need(key, self.get_u64_per_layer(key)?)
    }
}
