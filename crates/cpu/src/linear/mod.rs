//! Linear layers: `y[r][o] = dot(W[o], x[r])` with weights as they lie in the file.
//!
//! Float weights take float activations; quantised ones take activations quantised to int8 in blocks of 32
//! ([`QuantRows`]). The bits of a result depend on its weight row and its activation row alone: not on the rows and
//! outputs computed with it, nor on the instruction set. `kernel.rs` and `float.rs` say how, `tests/linear.rs`
//! holds them to it.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod decode;
mod float;
#[cfg(target_arch = "x86_64")]
mod float_x86;
mod formats256;
mod formats32;
pub(crate) mod isa;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod vector;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub use activations::{QuantRows, RowWriter};
pub use isa::Isa;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::sdot;
pub use vector::{axpy, dot_f16, dot_f32, f16_to_f32};

use decode::Format;
use float::{FloatJob, Weight};
use isa::Kind;
use kernel::Job;
use overdraft_formats::DType;
use std::ops::Range;

const _: () = assert!(cfg!(target_endian = "little"), "weights are read as they lie in the file");

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

/// Activations `[rows, n_in]`: floats for float weights, int8 for quantised ones.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    Float(&'a [f32]),
    Quant(&'a QuantRows),
}

/// `tile[(o - outs.start) * rows.len() + (r - rows.start)] = dot(W[o], x[r])` for weight rows `outs` and
/// activation rows `rows`. Allocates nothing. Whole sixteens of `outs`, and for quantised weights `rows` that start
/// at a multiple of 16, waste no lanes.
///
/// # Panics
/// If a range is outside its matrix, the tile is too small, or the input is not of the kind the weights take.
pub fn dot_tile(
    isa: Isa,
    w: &WeightView<'_>,
    outs: Range<usize>,
    x: &Input<'_>,
    rows: Range<usize>,
    tile: &mut [f32],
) {
    assert!(outs.start <= outs.end && outs.end <= w.n_out(), "weight rows {outs:?} of {}", w.n_out());
    let (x_in, x_rows) = match x {
        Input::Float(x) => (w.n_in, x.len() / w.n_in),
        Input::Quant(x) => (x.n_in(), x.n_rows()),
    };
    assert_eq!(x_in, w.n_in, "activations of {x_in} elements for weights of {}", w.n_in);
    assert!(rows.start <= rows.end && rows.end <= x_rows, "activation rows {rows:?} of {x_rows}");
    let size = outs.len() * rows.len();
    assert!(tile.len() >= size, "a tile of {} for {} outputs of {} rows", tile.len(), outs.len(), rows.len());
    if size == 0 {
        return;
    }
    let weights = &w.bytes[outs.start * w.row_bytes..outs.end * w.row_bytes];
    let tile = &mut tile[..size];
    match x {
        Input::Float(x) => {
            let job = FloatJob { weights, n_in: w.n_in, x, rows, tile };
            match w.dtype {
                DType::F32 => float_tile::<float::F32>(isa, job),
                DType::F16 => float_tile::<float::F16>(isa, job),
                DType::BF16 => float_tile::<float::Bf16>(isa, job),
                other => panic!("{other} weights take quantised activations"),
            }
        }
        Input::Quant(x) => {
            let job = Job { weights, row_bytes: w.row_bytes, x, rows, tile };
            match w.dtype {
                DType::Q4_0 => quant_tile::<formats32::Q4_0>(isa, job),
                DType::Q4_1 => quant_tile::<formats32::Q4_1>(isa, job),
                DType::Q5_0 => quant_tile::<formats32::Q5_0>(isa, job),
                DType::Q5_1 => quant_tile::<formats32::Q5_1>(isa, job),
                DType::Q8_0 => quant_tile::<formats32::Q8_0>(isa, job),
                DType::IQ4_NL => quant_tile::<formats32::Iq4Nl>(isa, job),
                DType::MXFP4 => quant_tile::<formats32::Mxfp4>(isa, job),
                DType::Q2_K => quant_tile::<formats256::Q2K>(isa, job),
                DType::Q3_K => quant_tile::<formats256::Q3K>(isa, job),
                DType::Q4_K => quant_tile::<formats256::Q4K>(isa, job),
                DType::Q5_K => quant_tile::<formats256::Q5K>(isa, job),
                DType::Q6_K => quant_tile::<formats256::Q6K>(isa, job),
                DType::IQ4_XS => quant_tile::<formats256::Iq4Xs>(isa, job),
                other => panic!("{other} weights take float activations"),
            }
        }
    }
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
