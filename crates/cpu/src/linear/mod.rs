//! Linear layers: `y[r][o] = dot(W[o], x[r])`.
//!
//! Float weights are read as they lie in the file and take float activations. Quantised ones are rearranged once
//! ([`pack`]) and take activations quantised to int8 in blocks of 32 ([`QuantRows`]). The bits of a result depend on its
//! weight row and its activation row alone: not on the rows and outputs computed with it, nor on the instruction set.
//! `kernel.rs` and `float.rs` say how, `tests/linear.rs` holds them to it.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod codes;
mod float;
#[cfg(target_arch = "x86_64")]
mod float_x86;
mod format;
mod formats256;
mod formats32;
pub(crate) mod isa;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod panel;
mod scalar;
mod vector;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub use activations::QuantRows;
pub use isa::Isa;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::sdot;
pub(crate) use packed::large_page_memory;
pub use packed::{Packed, pack};
pub use vector::{axpy, dot_f32};

use float::{FloatJob, Weight};
use format::Format;
use isa::Kind;
use kernel::Job;
use overdraft_formats::DType;
use std::ops::Range;

const _: () = assert!(cfg!(target_endian = "little"), "weights are read as they lie in the file");

/// Runs an expression with `F` as the [`Format`] of a quantised type.
macro_rules! with_format {
    ($dtype:expr, $F:ident => $body:expr) => {{
        use overdraft_formats::DType;
        use $crate::linear::{formats32, formats256};
        macro_rules! with {
            ($format:ty) => {{
                type $F = $format;
                $body
            }};
        }
        match $dtype {
            DType::Q4_0 => with!(formats32::Q4_0),
            DType::Q4_1 => with!(formats32::Q4_1),
            DType::Q5_0 => with!(formats32::Q5_0),
            DType::Q5_1 => with!(formats32::Q5_1),
            DType::Q8_0 => with!(formats32::Q8_0),
            DType::IQ4_NL => with!(formats32::Iq4Nl),
            DType::MXFP4 => with!(formats32::Mxfp4),
            DType::Q2_K => with!(formats256::Q2K),
            DType::Q3_K => with!(formats256::Q3K),
            DType::Q4_K => with!(formats256::Q4K),
            DType::Q5_K => with!(formats256::Q5K),
            DType::Q6_K => with!(formats256::Q6K),
            DType::IQ4_XS => with!(formats256::Iq4Xs),
            other => panic!("{other} is not a quantised type"),
        }
    }};
}
pub(crate) use with_format;

/// Weight rows `[n_out, n_in]` in the file's own bytes, which need no alignment.
#[derive(Clone, Copy)]
pub struct WeightView<'a> {
    dtype: DType,
    n_in: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

/// Why bytes cannot serve as a linear layer's weights.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    #[error("{dtype} weights cannot be multiplied; convert them to one of {}", supported_names())]
    Type { dtype: DType },
    #[error("rows of {n_in} {dtype} elements are not whole blocks of {}", dtype.block_len())]
    Blocks { dtype: DType, n_in: usize },
    #[error("{bytes} bytes are not whole rows of {row_bytes} ({n_in} {dtype} elements)")]
    Rows { dtype: DType, n_in: usize, bytes: usize, row_bytes: usize },
}

impl<'a> WeightView<'a> {
    pub fn new(dtype: DType, n_in: usize, bytes: &'a [u8]) -> Result<Self, WeightError> {
        if !Self::supports(dtype) {
            return Err(WeightError::Type { dtype });
        }
        let row_bytes = match dtype.row_bytes(n_in) {
            Some(n) if n > 0 => n,
            _ => return Err(WeightError::Blocks { dtype, n_in }),
        };
        if !bytes.len().is_multiple_of(row_bytes) {
            return Err(WeightError::Rows { dtype, n_in, bytes: bytes.len(), row_bytes });
        }
        Ok(Self { dtype, n_in, row_bytes, bytes })
    }

    /// The types there are kernels for.
    pub fn supports(dtype: DType) -> bool {
        dtype.is_float() || dtype.is_quantised()
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn n_in(&self) -> usize {
        self.n_in
    }

    pub fn n_out(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }
}

fn supported_names() -> String {
    let names: Vec<_> = DType::all().filter(|d| WeightView::supports(*d)).map(DType::name).collect();
    names.join(", ")
}

/// `tile[(r - rows.start) * outs.len() + (o - outs.start)] = dot(W[o], x[r])` for weight rows `outs` and activation rows
/// `rows`. Allocates nothing. Whole sixteens of `outs` waste no lanes.
///
/// # Panics
/// If a range is outside its matrix or the tile is too small.
pub fn dot_tile(w: &Packed, outs: Range<usize>, x: &QuantRows, rows: Range<usize>, tile: &mut [f32]) {
    assert_eq!(x.n_in(), w.n_in(), "activations of {} elements for weights of {}", x.n_in(), w.n_in());
    let size = checked_size(&outs, w.n_out(), &rows, x.n_rows(), tile);
    if size == 0 {
        return;
    }
    let job = Job { w, outs, x, rows, tile: &mut tile[..size] };
    with_format!(w.dtype(), F => quant_tile::<F>(w.isa(), job));
}

/// [`dot_tile`] of float weights and activations, `x` being `[rows, n_in]`.
///
/// # Panics
/// If a range is outside its matrix, the tile is too small, or the weights are not floats.
pub fn dot_tile_float(
    isa: Isa,
    w: &WeightView<'_>,
    outs: Range<usize>,
    x: &[f32],
    rows: Range<usize>,
    tile: &mut [f32],
) {
    let size = checked_size(&outs, w.n_out(), &rows, x.len() / w.n_in, tile);
    if size == 0 {
        return;
    }
    let weights = &w.bytes[outs.start * w.row_bytes..outs.end * w.row_bytes];
    let job = FloatJob { weights, n_in: w.n_in, x, rows, tile: &mut tile[..size] };
    match w.dtype {
        DType::F32 => float_tile::<float::F32>(isa, job),
        DType::F16 => float_tile::<float::F16>(isa, job),
        DType::BF16 => float_tile::<float::Bf16>(isa, job),
        other => panic!("{other} weights take quantised activations"),
    }
}

fn checked_size(
    outs: &Range<usize>,
    n_out: usize,
    rows: &Range<usize>,
    n_rows: usize,
    tile: &[f32],
) -> usize {
    assert!(outs.start <= outs.end && outs.end <= n_out, "weight rows {outs:?} of {n_out}");
    assert!(rows.start <= rows.end && rows.end <= n_rows, "activation rows {rows:?} of {n_rows}");
    let size = outs.len() * rows.len();
    assert!(tile.len() >= size, "a tile of {} for {} outputs of {} rows", tile.len(), outs.len(), rows.len());
    size
}

fn quant_tile<F: Format>(isa: Isa, job: Job<'_>) {
    match isa.kind() {
        Kind::Scalar => scalar::tile::<F>(job),
        // SAFETY: an `Isa` exists only where the CPU has it; `dot_tile` checked the shapes.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { avx2::tile::<F>(job) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { vnni::tile::<F>(job) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => unsafe { neon::tile::<F>(job) },
    }
}

fn float_tile<W: Weight>(isa: Isa, job: FloatJob<'_>) {
    match isa.kind() {
        Kind::Scalar => float::tile_scalar::<W>(job),
        // SAFETY: an `Isa` exists only where the CPU has it; `dot_tile` checked the shapes.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { float_x86::tile_avx2::<W>(job) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { float_x86::tile_avx512::<W>(job) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => unsafe { neon::float_tile::<W>(job) },
    }
}
