//! One GGUF file: header, metadata, tensor list, data section.

use super::cursor::Cursor;
use super::value::Value;
use crate::error::quoted;
use crate::quant::{describe_ggml_type, ggml_type_size};
use crate::{Bytes, DType, Error, Result, StoredType, TensorInfo};

// Published files have some 50 keys and at most a few thousand tensors; the limits keep a hostile file of
// gigabytes of tiny entries from growing tenfold in memory.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 16;
/// llama.cpp's limits: tensor names live in 64-byte fields with a terminator.
const MAX_TENSOR_NAME: usize = 63;
const MAX_KEY: usize = 65535;
const MAX_DIMS: u32 = 4;

pub(super) struct File {
    pub(super) version: u32,
    pub(super) keys: Vec<(String, Value)>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) data: Bytes,
}

pub(super) fn parse(file: &str, bytes: &Bytes) -> Result<File> {
    let mut c = Cursor::new(file, bytes);
    let version = header(file, &mut c)?;
    // Smallest tensor: name length, one letter, n_dims, type, offset. Smallest key: the same with one value byte.
    let n_tensors = c.count(8 + 1 + 4 + 4 + 8, MAX_TENSORS, "tensor count")?;
    let n_keys = c.count(8 + 1 + 4 + 1, MAX_KEYS, "key count")?;

    let mut keys = Vec::with_capacity(n_keys);
    for i in 0..n_keys {
        let key = c.name(MAX_KEY, &format!("name of key {i}"))?;
        let value = c.value(&format!("key {}", quoted(&key)))?;
        keys.push((key, value));
    }
    refuse_duplicate_keys(file, &keys)?;
    let alignment = alignment(file, &keys)?;

    let headers = (0..n_tensors).map(|i| tensor_header(file, &mut c, i)).collect::<Result<Vec<_>>>()?;
    let data = match c.position().checked_next_multiple_of(alignment) {
        _ if headers.is_empty() => 0..0,
        Some(start) if start <= bytes.len() => start..bytes.len(),
        _ => return Err(c.invalid("data section", "the file ends before it; not fully downloaded?")),
    };
    let data = bytes.slice(data).ok_or_else(|| c.invalid("data section", "outside the file"))?;
    let tensors =
        headers.into_iter().map(|t| t.place(file, alignment, data.len())).collect::<Result<Vec<_>>>()?;
    refuse_overlaps(file, &tensors)?;
    Ok(File { version, keys, tensors, data })
}

fn header(file: &str, c: &mut Cursor) -> Result<u32> {
    let magic = c.magic()?;
    if &magic != b"GGUF" {
        return Err(
            c.invalid("magic", format!("`{}` instead of `GGUF`: not a GGUF file", magic.escape_ascii()))
        );
    }
    match c.u32("version")? {
        version @ (2 | 3) => Ok(version),
        1 => Err(Error::unsupported(
            file,
            "version",
            "GGUF version 1 is too old; convert the model again with a current converter",
        )),
        v if v != 0 && v.trailing_zeros() >= 16 => {
            Err(Error::unsupported(file, "version", "the file is big-endian; only little-endian is read"))
        }
        v => Err(Error::unsupported(file, "version", format!("{v}; this build reads 2 and 3"))),
    }
}

fn refuse_duplicate_keys(file: &str, keys: &[(String, Value)]) -> Result<()> {
    let mut names: Vec<&str> = keys.iter().map(|k| k.0.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::invalid(file, format!("key {}", quoted(pair[0])), "occurs twice")),
        None => Ok(()),
    }
}

fn alignment(file: &str, keys: &[(String, Value)]) -> Result<usize> {
    let Some((key, value)) = keys.iter().find(|k| k.0 == "general.alignment") else { return Ok(32) };
    value
        .as_int()
        .and_then(|v| usize::try_from(v).ok())
        .filter(|v| v.is_power_of_two())
        .ok_or_else(|| Error::invalid(file, format!("key `{key}`"), format!("{value} is not a power of two")))
}

/// A tensor as listed, before its place is held against the data section.
struct TensorHeader {
    name: String,
    shape: Vec<usize>,
    n_elements: usize,
    type_id: u32,
    offset: u64,
}

fn tensor_header(file: &str, c: &mut Cursor, i: usize) -> Result<TensorHeader> {
    let name = c.name(MAX_TENSOR_NAME, &format!("name of tensor {i}"))?;
    let what = format!("tensor {}", quoted(&name));
    let n_dims = c.u32(&what)?;
    if n_dims > MAX_DIMS {
        return Err(Error::invalid(
            file,
            what,
            format!("{n_dims} dimensions; at most {MAX_DIMS} are allowed"),
        ));
    }
    let mut shape = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        let dim = c.u64(&what)? as i64;
        match usize::try_from(dim) {
            Ok(dim) if dim > 0 => shape.push(dim),
            _ => return Err(Error::invalid(file, what, format!("a dimension of {dim}"))),
        }
    }
    shape.reverse();
    let n_elements = shape
        .iter()
        .try_fold(1usize, |n, &dim| n.checked_mul(dim))
        .filter(|&n| i64::try_from(n).is_ok())
        .ok_or_else(|| {
            Error::invalid(file, &what, format!("shape {shape:?} has more elements than fit 63 bits"))
        })?;
    Ok(TensorHeader { name, shape, n_elements, type_id: c.u32(&what)?, offset: c.u64(&what)? })
}

impl TensorHeader {
    fn place(self, file: &str, alignment: usize, data_len: usize) -> Result<TensorInfo> {
        let Self { name, shape, n_elements, type_id, offset } = self;
        let invalid = |problem: String| Error::invalid(file, format!("tensor {}", quoted(&name)), problem);
        let described = || describe_ggml_type(type_id);
        let n_bytes = match ggml_type_size(type_id) {
            None => None,
            Some((block_len, block_bytes)) => {
                let row_len = shape.last().copied().unwrap_or(1);
                if row_len % block_len != 0 {
                    return Err(invalid(format!(
                        "rows of {row_len} elements are not whole blocks of {block_len} of {}",
                        described()
                    )));
                }
                let n_bytes = (n_elements / block_len).checked_mul(block_bytes);
                Some(
                    n_bytes
                        .ok_or_else(|| invalid(format!("shape {shape:?} of {} overflows", described())))?,
                )
            }
        };
        if offset % alignment as u64 != 0 {
            return Err(invalid(format!("offset {offset} is not a multiple of the alignment {alignment}")));
        }
        let start = usize::try_from(offset)
            .ok()
            .filter(|&start| start.checked_add(n_bytes.unwrap_or(0)).is_some_and(|end| end <= data_len));
        let Some(start) = start else {
            return Err(invalid(format!(
                "{} bytes at offset {offset} reach past the data section of {data_len} bytes; the file is \
                 damaged or not fully downloaded",
                n_bytes.unwrap_or(0)
            )));
        };
        let stored = match DType::from_ggml(type_id) {
            Some(dtype) => StoredType::Read(dtype),
            None => StoredType::Unread(described()),
        };
        Ok(TensorInfo::new(name, stored, shape, start, n_bytes))
    }
}

/// No writer shares bytes between tensors, and a file that did could ask for the same gigabyte 65 536 times.
fn refuse_overlaps(file: &str, tensors: &[TensorInfo]) -> Result<()> {
    let mut ranges: Vec<_> = tensors.iter().map(|t| (t.range(), &t.name)).collect();
    ranges.sort_unstable_by_key(|(range, _)| (range.start, range.end));
    for pair in ranges.windows(2) {
        let ((a, a_name), (b, b_name)) = (&pair[0], &pair[1]);
        if a.end > b.start {
            return Err(Error::invalid(
                file,
                format!("tensor {}", quoted(b_name)),
                format!("bytes {b:?} overlap bytes {a:?} of tensor {}", quoted(a_name)),
            ));
        }
    }
    Ok(())
}
