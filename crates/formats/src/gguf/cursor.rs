//! Takes fields off the front of a file, never past its end.

use std::ops::Range;

use super::value::{ARRAY_ID, Array, Value, ValueType};
use crate::{Bytes, Error, Result};

pub(super) struct Cursor<'a> {
    file: &'a str,
    bytes: &'a Bytes,
    at: usize,
}

/// `what` in all of these names the field for the error.
impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a str, bytes: &'a Bytes) -> Self {
        Self { file, bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn invalid(&self, what: &str, problem: impl Into<String>) -> Error {
        Error::invalid(self.file, what, problem)
    }

    /// Moves over `n` bytes and says where they are.
    fn skip(&mut self, n: u64, what: &str) -> Result<Range<usize>> {
        match usize::try_from(n).ok().filter(|&n| n <= self.left()) {
            Some(n) => {
                self.at += n;
                Ok(self.at - n..self.at)
            }
            None => Err(self.invalid(
                what,
                format!(
                    "needs {n} bytes at byte {}, where only {} are left; the file is damaged or not \
                         fully downloaded",
                    self.at,
                    self.left()
                ),
            )),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let range = self.skip(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[range]);
        Ok(out)
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4]> {
        self.array("magic")
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things that take at least `least` bytes each, held against the bytes left and `limit`.
    pub(super) fn count(&mut self, least: usize, limit: u64, what: &str) -> Result<usize> {
        let n = self.u64(what)?;
        if n > limit {
            return Err(self.invalid(what, format!("{n}; at most {limit} are read")));
        }
        match n.checked_mul(least as u64) {
            Some(bytes) if bytes <= self.left() as u64 => Ok(n as usize),
            _ => Err(self.invalid(
                what,
                format!("{n} of them take at least {least} bytes each, but only {} are left", self.left()),
            )),
        }
    }

    pub(super) fn string(&mut self, what: &str) -> Result<Range<usize>> {
        let n = self.u64(what)?;
        self.skip(n, what)
    }

    /// A string that names something: UTF-8, not empty, at most `longest` bytes.
    pub(super) fn name(&mut self, longest: usize, what: &str) -> Result<String> {
        let range = self.string(what)?;
        if range.is_empty() {
            return Err(self.invalid(what, "empty"));
        }
        if range.len() > longest {
            return Err(
                self.invalid(what, format!("{} bytes long; at most {longest} are allowed", range.len()))
            );
        }
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(name) => Ok(name.to_owned()),
            Err(e) => Err(self.invalid(what, format!("not UTF-8: {e}"))),
        }
    }

    fn handle(&self, range: Range<usize>, what: &str) -> Result<Bytes> {
        self.bytes.slice(range).ok_or_else(|| self.invalid(what, "outside the file"))
    }

    /// A value with the type id before it.
    pub(super) fn value(&mut self, what: &str) -> Result<Value> {
        let id = self.u32(what)?;
        if id == ARRAY_ID {
            return self.array_value(what);
        }
        let kind = self.value_type(id, what)?;
        match kind.size() {
            None => {
                let range = self.string(what)?;
                Ok(Value::Str(self.handle(range, what)?))
            }
            Some(n) => {
                let range = self.skip(n as u64, what)?;
                Value::from_le(kind, &self.bytes[range.clone()]).ok_or_else(|| {
                    self.invalid(
                        what,
                        format!("{} {} is neither 0 nor 1", kind.name(), self.bytes[range.start]),
                    )
                })
            }
        }
    }

    fn value_type(&self, id: u32, what: &str) -> Result<ValueType> {
        ValueType::from_id(id).ok_or_else(|| self.invalid(what, format!("value type {id} does not exist")))
    }

    fn array_value(&mut self, what: &str) -> Result<Value> {
        let id = self.u32(what)?;
        if id == ARRAY_ID {
            return Err(self.invalid(what, "arrays of arrays are not allowed"));
        }
        let element = self.value_type(id, what)?;
        // A string takes at least its length field.
        let least = element.size().unwrap_or(8);
        let len = self.count(least, u64::MAX, what)?;
        let start = self.at;
        match element.size() {
            // `count` has just checked that the product fits.
            Some(n) => self.at += n * len,
            None => {
                for _ in 0..len {
                    self.string(what)?;
                }
            }
        }
        let bytes = self.handle(start..self.at, what)?;
        if element == ValueType::Bool
            && let Some(bad) = bytes.iter().find(|&&b| b > 1)
        {
            return Err(self.invalid(what, format!("bool {bad} is neither 0 nor 1")));
        }
        Ok(Value::Array(Array { element, len, bytes }))
    }
}
