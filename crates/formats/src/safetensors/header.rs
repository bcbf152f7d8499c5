//! The header of one file: JSON that gives each tensor's type, shape and range of bytes. It is read entry by entry,
//! so that a hostile one costs no more memory than the list of tensors it really describes.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::quoted;
use crate::{Bytes, DType, Error, Result, StoredType, TensorInfo};

/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;
// Published models stay below 140 000 tensors over all their shards, 8 dimensions and names of 200 bytes. This many
// in one file take 45 MB.
const MAX_TENSORS: usize = 1 << 17;
const MAX_DIMS: usize = 8;
const MAX_NAME: usize = 1024;

pub(super) struct File {
    pub(super) metadata: Vec<(String, String)>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) data: Bytes,
}

pub(super) fn parse(file: &str, bytes: &Bytes) -> Result<File> {
    let invalid = |problem: String| Error::invalid(file, "header", problem);
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(invalid(format!("the file has only {} bytes", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(invalid(format!(
            "{length} bytes long; at most {MAX_HEADER} are allowed (not safetensors?)"
        )));
    }
    let Some(json) = usize::try_from(length).ok().and_then(|n| rest.get(..n)) else {
        return Err(invalid(format!(
            "{length} bytes long, but only {} follow; the file is damaged or not fully downloaded",
            rest.len()
        )));
    };
    if json.first() != Some(&b'{') {
        return Err(invalid("does not begin with `{`: not a safetensors file".into()));
    }
    let header: Header =
        serde_json::from_slice(json).map_err(|e| invalid(format!("not as expected: {}", short(&e))))?;
    let data = bytes.slice(8 + json.len()..bytes.len()).ok_or_else(|| invalid("outside the file".into()))?;
    refuse_gaps(file, &header.entries, data.len())?;
    let tensors = header.entries.into_iter().map(|(name, e)| e.info(file, name)).collect::<Result<_>>()?;
    Ok(File { metadata: header.metadata, tensors, data })
}

/// serde's message, which may quote any amount of the file, cut to a readable length.
fn short(error: &serde_json::Error) -> String {
    let message = quoted(&error.to_string());
    format!("{} (line {}, column {})", message.trim_matches('`'), error.line(), error.column())
}

/// Ranges must cover the data from end to end, once: nothing hidden, nothing shared.
fn refuse_gaps(file: &str, entries: &[(String, Entry)], data_len: usize) -> Result<()> {
    let mut order: Vec<&(String, Entry)> = entries.iter().collect();
    order.sort_unstable_by_key(|(_, e)| e.data_offsets.0);
    let mut end = 0;
    for (name, entry) in order {
        let (from, to) = entry.data_offsets;
        let invalid =
            |problem: String| Err(Error::invalid(file, format!("tensor {}", quoted(name)), problem));
        if from > to {
            return invalid(format!("bytes {from} to {to} run backwards"));
        }
        if from < end {
            return invalid(format!("begins at byte {from}, inside a tensor that ends at {end}"));
        }
        if from > end {
            return invalid(format!("begins at byte {from}, leaving a gap after {end}"));
        }
        if to > data_len as u64 {
            return invalid(format!(
                "ends at byte {to} of {data_len}; the file is damaged or not fully downloaded"
            ));
        }
        end = to;
    }
    if end != data_len as u64 {
        let problem = format!("tensors end at byte {end}, but the data has {data_len}");
        return Err(Error::invalid(file, "data", problem));
    }
    Ok(())
}

struct Header {
    metadata: Vec<(String, String)>,
    entries: Vec<(String, Entry)>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: Name,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Types of the format that this build does not read, with their bits.
const UNREAD: [(&str, usize); 13] = [
    ("U16", 16),
    ("U32", 32),
    ("U64", 64),
    ("C64", 64),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F4", 4),
    ("F4_E2M1", 4),
];

/// The type and its bits, which are unknown for names this build has never heard of.
fn stored_type(name: &str) -> (StoredType, Option<usize>) {
    use DType::*;
    let read = match name {
        "BOOL" => Some(U8),
        _ => [F32, F16, BF16, F64, I8, I16, I32, I64, U8].into_iter().find(|d| d.name() == name),
    };
    match read {
        Some(dtype) => (StoredType::Read(dtype), Some(8 * dtype.block_bytes())),
        None => {
            let bits = UNREAD.iter().find(|u| u.0 == name).map(|u| u.1);
            let known = if bits.is_some() { "" } else { ", an unknown type" };
            (StoredType::Unread(format!("{}{known}", quoted(name).trim_matches('`'))), bits)
        }
    }
}

impl Entry {
    /// `data_offsets` was checked by `refuse_gaps`.
    fn info(self, file: &str, name: String) -> Result<TensorInfo> {
        let (from, to) = self.data_offsets;
        let invalid = |problem: String| Error::invalid(file, format!("tensor {}", quoted(&name)), problem);
        let shape = self.shape.0.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<usize>>>();
        let shape = shape.ok_or_else(|| invalid("a dimension does not fit this machine's words".into()))?;
        let (stored, bits) = stored_type(&self.dtype.0);
        let total = shape.iter().try_fold(bits.unwrap_or(1), |n, &dim| n.checked_mul(dim));
        let total = total.ok_or_else(|| invalid(format!("shape {shape:?} of {stored} overflows")))?;
        if bits.is_some() && (total % 8 != 0 || (total / 8) as u64 != to - from) {
            return Err(invalid(format!(
                "{shape:?} of {stored} takes {} bytes, but bytes {from} to {to} are given",
                total.div_ceil(8)
            )));
        }
        Ok(TensorInfo::new(name, stored, shape, from as usize, Some((to - from) as usize)))
    }
}

/// A name of at most `MAX_NAME` bytes.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a name of at most {MAX_NAME} bytes")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<Name, E> {
                if s.len() > MAX_NAME {
                    return Err(E::invalid_length(s.len(), &self));
                }
                Ok(Name(s.to_owned()))
            }
        }
        d.deserialize_str(V)
    }
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a shape of at most {MAX_DIMS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(de::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        d.deserialize_seq(V)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { metadata: Vec::new(), entries: Vec::new() };
                let mut has_metadata = false;
                while let Some(Name(name)) = map.next_key()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(de::Error::duplicate_field("__metadata__"));
                        }
                        header.metadata = map.next_value::<Metadata>()?.0;
                    } else if header.entries.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    } else {
                        header.entries.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        d.deserialize_map(V)
    }
}

struct Metadata(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`__metadata__` of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    if pairs.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format!(
                            "more than {MAX_TENSORS} entries of metadata"
                        )));
                    }
                    pairs.push(pair);
                }
                Ok(Metadata(pairs))
            }
        }
        d.deserialize_map(V)
    }
}
