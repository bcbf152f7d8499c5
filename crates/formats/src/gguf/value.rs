//! Metadata values. Strings and arrays stay where they are in the file: a vocabulary of 250 000 tokens is one range.

use crate::Bytes;
use crate::error::quoted;

/// Type of a metadata value or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    U64,
    I64,
    F64,
}

pub(super) const ARRAY_ID: u32 = 9;

use ValueType::*;

/// (type, id, bytes of one; 0 for strings, name)
const TYPES: [(ValueType, u32, usize, &str); 12] = [
    (U8, 0, 1, "u8"),
    (I8, 1, 1, "i8"),
    (U16, 2, 2, "u16"),
    (I16, 3, 2, "i16"),
    (U32, 4, 4, "u32"),
    (I32, 5, 4, "i32"),
    (F32, 6, 4, "f32"),
    (Bool, 7, 1, "bool"),
    (Str, 8, 0, "string"),
    (U64, 10, 8, "u64"),
    (I64, 11, 8, "i64"),
    (F64, 12, 8, "f64"),
];

impl ValueType {
    pub(super) fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().find(|t| t.1 == id).map(|t| t.0)
    }

    pub(super) fn id(self) -> u32 {
        TYPES[self as usize].1
    }

    /// Bytes of one value; None for strings.
    pub(super) fn size(self) -> Option<usize> {
        Some(TYPES[self as usize].2).filter(|&n| n > 0)
    }

    pub fn name(self) -> &'static str {
        TYPES[self as usize].3
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// UTF-8 by convention, which nothing enforces.
    Str(Bytes),
    U64(u64),
    I64(i64),
    F64(f64),
    Array(Array),
}

impl Value {
    /// The value of a fixed-size type from exactly its bytes; None for strings, wrong lengths and bools beyond 0, 1.
    pub(super) fn from_le(kind: ValueType, b: &[u8]) -> Option<Self> {
        Some(match kind {
            U8 => Self::U8(u8::from_le_bytes(b.try_into().ok()?)),
            I8 => Self::I8(i8::from_le_bytes(b.try_into().ok()?)),
            U16 => Self::U16(u16::from_le_bytes(b.try_into().ok()?)),
            I16 => Self::I16(i16::from_le_bytes(b.try_into().ok()?)),
            U32 => Self::U32(u32::from_le_bytes(b.try_into().ok()?)),
            I32 => Self::I32(i32::from_le_bytes(b.try_into().ok()?)),
            F32 => Self::F32(f32::from_le_bytes(b.try_into().ok()?)),
            U64 => Self::U64(u64::from_le_bytes(b.try_into().ok()?)),
            I64 => Self::I64(i64::from_le_bytes(b.try_into().ok()?)),
            F64 => Self::F64(f64::from_le_bytes(b.try_into().ok()?)),
            Bool => match b {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                _ => return None,
            },
            Str => return None,
        })
    }

    /// Any whole number, whatever its width; bools count as 0 and 1.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            Self::Bool(v) => v.into(),
            Self::F32(_) | Self::F64(_) | Self::Str(_) | Self::Array(_) => return None,
        })
    }

    /// Any number. Bools are none.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            Self::Bool(_) => None,
            _ => self.as_int().map(|v| v as f64),
        }
    }

    /// A bool, or a whole number that is 0 or 1.
    pub fn as_bool(&self) -> Option<bool> {
        match self.as_int()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// The text, if it is a string and UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// A string array, for the writer.
    pub fn strings<S: AsRef<[u8]>>(items: impl IntoIterator<Item = S>) -> Self {
        let (mut bytes, mut len) = (Vec::new(), 0);
        for item in items {
            bytes.extend_from_slice(&(item.as_ref().len() as u64).to_le_bytes());
            bytes.extend_from_slice(item.as_ref());
            len += 1;
        }
        Self::Array(Array { element: Str, len, bytes: Bytes::from_vec(bytes) })
    }
}

/// For messages: type and, when short, value.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::F32(v) => write!(f, "f32 {v}"),
            Self::F64(v) => write!(f, "f64 {v}"),
            Self::Bool(v) => write!(f, "bool {v}"),
            Self::U8(v) => write!(f, "u8 {v}"),
            Self::I8(v) => write!(f, "i8 {v}"),
            Self::U16(v) => write!(f, "u16 {v}"),
            Self::I16(v) => write!(f, "i16 {v}"),
            Self::U32(v) => write!(f, "u32 {v}"),
            Self::I32(v) => write!(f, "i32 {v}"),
            Self::U64(v) => write!(f, "u64 {v}"),
            Self::I64(v) => write!(f, "i64 {v}"),
            Self::Str(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => write!(f, "string {}", quoted(text)),
                Err(_) => write!(f, "string of {} bytes that are not UTF-8", bytes.len()),
            },
            Self::Array(a) => write!(f, "array of {} {}", a.len, a.element.name()),
        }
    }
}

/// Values of one type, back to back in the file. Lengths were checked when it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub(super) element: ValueType,
    pub(super) len: usize,
    pub(super) bytes: Bytes,
}

impl Array {
    pub fn element(&self) -> ValueType {
        self.element
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of an array of numbers or bools, in order; nothing for strings.
    pub fn numbers(&self) -> impl Iterator<Item = Value> {
        let each = self.element.size().map(|n| self.bytes.chunks_exact(n));
        each.into_iter().flatten().filter_map(|b| Value::from_le(self.element, b))
    }

    /// The elements of a string array.
    pub fn strings(&self) -> Option<Strings<'_>> {
        (self.element == Str).then(|| Strings { left: self.len, bytes: &self.bytes })
    }
}

/// Walks the strings of an array where they lie.
#[derive(Clone, Debug, Default)]
pub struct Strings<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (n, rest) = self.bytes.split_first_chunk()?;
        let (item, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*n)).ok()?)?;
        self.bytes = rest;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

macro_rules! scalar_and_array {
    ($($rust:ty => $kind:ident),*) => {$(
        impl From<$rust> for Value {
            fn from(v: $rust) -> Self {
                Self::$kind(v)
            }
        }

        impl From<&[$rust]> for Value {
            fn from(v: &[$rust]) -> Self {
                let bytes = v.iter().flat_map(|v| v.to_le_bytes()).collect();
                Self::Array(Array { element: ValueType::$kind, len: v.len(), bytes: Bytes::from_vec(bytes) })
            }
        }
    )*};
}

scalar_and_array!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32,
    u64 => U64, i64 => I64, f64 => F64);

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}

impl From<&[bool]> for Value {
    fn from(v: &[bool]) -> Self {
        let bytes = v.iter().map(|&v| v.into()).collect();
        Self::Array(Array { element: Bool, len: v.len(), bytes: Bytes::from_vec(bytes) })
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::Str(Bytes::from_vec(v.as_bytes().to_vec()))
    }
}

impl From<String> for Value {
    fn from(v: String) -> Self {
        Self::Str(Bytes::from_vec(v.into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_indexed_by_the_enum() {
        for (i, t) in TYPES.iter().enumerate() {
            assert_eq!(t.0 as usize, i, "{}", t.3);
        }
    }

    #[test]
    #[rustfmt::skip]
    fn numbers_are_read_whatever_their_width() {
        for (value, int, float, boolean) in [
            (Value::U8(1),        Some(1),        Some(1.0),   Some(true)),
            (Value::I64(-3),      Some(-3),       Some(-3.0),  None),
            (Value::U64(1 << 63), Some(1 << 63),  Some(2f64.powi(63)), None),
            (Value::F32(0.5),     None,           Some(0.5),   None),
            (Value::Bool(true),   Some(1),        None,        Some(true)),
            (Value::from("1"),    None,           None,        None),
            (Value::from(&[1u32][..]), None,      None,        None),
        ] {
            assert_eq!((value.as_int(), value.as_float(), value.as_bool()), (int, float, boolean), "{value}");
        }
    }
}
