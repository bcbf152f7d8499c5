//! Tensors as files hold them, whatever the file: name, type, shape and the bytes in place.
//!
//! Shapes are **row-major, outermost first**, as in safetensors and PyTorch: a linear weight is `[out, in]` and its
//! last dimension is contiguous. GGUF stores the reverse; its reader turns shapes round.

use crate::error::quoted;
use crate::quant::CodecError;
use crate::{Bytes, DType, Error, Result};

/// More than any model has (the largest published ones reach 140 000 with every expert apart), and few enough that
/// the list stays small however long the file is.
const MAX_TENSORS: usize = 1 << 18;

/// A tensor whose bytes are at hand. `bytes` is exactly the size that `dtype` and `shape` make.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// Outermost first: `[out, in]`. Empty for a scalar.
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

impl Tensor {
    /// Elements of the contiguous dimension; 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows over all outer dimensions together.
    pub fn n_rows(&self) -> usize {
        // From the front: readers check prefixes of the product, and a 0 in front excuses anything behind it.
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of row `i`, counted over all outer dimensions.
    pub fn row(&self, i: usize) -> Option<&[u8]> {
        let row_bytes = self.dtype.row_bytes(self.row_len())?;
        let start = i.checked_mul(row_bytes)?;
        self.bytes.get(start..start.checked_add(row_bytes)?)
    }

    /// All elements as `f32`.
    pub fn to_f32(&self) -> Result<Vec<f32>, CodecError> {
        let (dtype, elements) = (self.dtype, self.n_elements());
        let expected = dtype.row_bytes(elements).ok_or(CodecError::PartialBlock { dtype, elements })?;
        if self.bytes.len() != expected {
            return Err(CodecError::Length { dtype, elements, expected, found: self.bytes.len() });
        }
        if !dtype.is_decodable() {
            return Err(CodecError::NotDecodable(dtype));
        }
        let mut out = vec![0.0; elements];
        dtype.decode_row(&self.bytes, &mut out)?;
        Ok(out)
    }
}

/// An element type as a file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredType {
    Read(DType),
    /// A type this build does not read, in words: `IQ2_XS (ggml type 17)`.
    Unread(String),
}

impl std::fmt::Display for StoredType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(dtype) => dtype.fmt(f),
            Self::Unread(name) => f.write_str(name),
        }
    }
}

/// What a file says of a tensor; its data may be of a type this build does not read.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    pub stored: StoredType,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// None when not even the size of the type is known.
    pub n_bytes: Option<usize>,
    /// Which file of the model, and where in that file's data.
    part: usize,
    start: usize,
}

impl TensorInfo {
    /// `start` and `n_bytes` must lie inside the part's data.
    pub(crate) fn new(
        name: String,
        stored: StoredType,
        shape: Vec<usize>,
        start: usize,
        n_bytes: Option<usize>,
    ) -> Self {
        Self { name, stored, shape, n_bytes, part: 0, start }
    }

    /// Where the tensor lies in its file's data section, for checks across tensors.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.n_bytes.unwrap_or(0)
    }
}

/// The tensors of a model over all its files.
#[derive(Debug, Default)]
pub(crate) struct TensorIndex {
    /// (file, its data section)
    parts: Vec<(String, Bytes)>,
    infos: Vec<TensorInfo>,
    /// Places in `infos`, in order of name.
    by_name: Vec<u32>,
}

impl TensorIndex {
    /// Takes over the tensors of one more file. Names must be new.
    pub(crate) fn add_part(&mut self, file: &str, data: Bytes, infos: Vec<TensorInfo>) -> Result<()> {
        let total = self.infos.len() + infos.len();
        if total > MAX_TENSORS {
            return Err(Error::invalid(
                file,
                "header",
                format!("{total} tensors; at most {MAX_TENSORS} are read"),
            ));
        }
        let part = self.parts.len();
        self.parts.push((file.to_owned(), data));
        if part == 0 {
            self.infos = infos;
        } else {
            self.infos.extend(infos.into_iter().map(|info| TensorInfo { part, ..info }));
        }

        let Self { parts, infos, by_name } = self;
        by_name.extend(by_name.len() as u32..total as u32);
        by_name.sort_unstable_by(|&a, &b| infos[a as usize].name.cmp(&infos[b as usize].name));
        for pair in by_name.windows(2) {
            let (a, b) = (&infos[pair[0] as usize], &infos[pair[1] as usize]);
            if a.name == b.name {
                let other = &parts[a.part.min(b.part)].0;
                let problem =
                    if other == file { "occurs twice".into() } else { format!("occurs in {other} as well") };
                return Err(Error::invalid(file, format!("tensor {}", quoted(&a.name)), problem));
            }
        }
        Ok(())
    }

    pub(crate) fn infos(&self) -> &[TensorInfo] {
        &self.infos
    }

    pub(crate) fn find(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.by_name.binary_search_by(|&i| self.infos[i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.infos[self.by_name[at] as usize])
    }

    /// The tensor with its bytes, None when the model has none of that name.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(info) = self.find(name) else { return Ok(None) };
        let (file, data) = &self.parts[info.part];
        let at = || format!("tensor {}", quoted(name));
        let dtype = match &info.stored {
            StoredType::Read(dtype) => *dtype,
            StoredType::Unread(described) => {
                let read: Vec<_> = DType::all().map(DType::name).collect();
                return Err(Error::unsupported(
                    file,
                    at(),
                    format!("is {described}, which this build does not read; it reads {}", read.join(", ")),
                ));
            }
        };
        let bytes = data.slice(info.range()).ok_or_else(|| {
            Error::invalid(file, at(), format!("bytes {:?} lie outside the file's data", info.range()))
        })?;
        Ok(Some(Tensor { name: info.name.clone(), dtype, shape: info.shape.clone(), bytes }))
    }

    /// As `get`, and absence is an error that names the model's first file.
    pub(crate) fn need(&self, name: &str) -> Result<Tensor> {
        self.get(name)?.ok_or_else(|| {
            let file = self.parts.first().map_or("", |p| p.0.as_str());
            Error::invalid(file, format!("tensor {}", quoted(name)), "missing, and this model needs it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: DType, shape: &[usize], n_bytes: usize) -> Tensor {
        Tensor { name: "t".into(), dtype, shape: shape.to_vec(), bytes: Bytes::from_vec(vec![0; n_bytes]) }
    }

    #[test]
    fn rows_run_over_all_outer_dimensions() {
        let t = tensor(DType::Q8_0, &[2, 3, 64], 2 * 3 * 68);
        assert_eq!((t.row_len(), t.n_rows(), t.n_elements()), (64, 6, 384));
        assert_eq!(t.row(5).map(<[u8]>::len), Some(68));
        assert!(t.row(6).is_none() && t.row(usize::MAX).is_none());
        let scalar = tensor(DType::F32, &[], 4);
        assert_eq!((scalar.row_len(), scalar.n_rows(), scalar.to_f32()), (1, 1, Ok(vec![0.0])));
        let empty = tensor(DType::F32, &[0, usize::MAX, usize::MAX, 5], 0);
        assert_eq!((empty.n_rows(), empty.n_elements(), empty.row(0)), (0, 0, None));
    }

    #[test]
    fn decoding_checks_the_bytes_before_it_allocates() {
        let short = tensor(DType::F32, &[1 << 40], 4);
        assert!(matches!(short.to_f32(), Err(CodecError::Length { found: 4, .. })));
        assert_eq!(tensor(DType::I64, &[1], 8).to_f32(), Err(CodecError::NotDecodable(DType::I64)));
    }
}
