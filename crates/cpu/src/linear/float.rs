//! The product with float weights (F32, F16, BF16) and float activations.
//!
//! The definition, on every instruction set: element i is added by a fused multiply-add to lane i mod 16, in order;
//! then lanes 8 apart are added, then 4, 2 and 1 apart. Nothing else may influence a result, so a row's bits are its
//! own. Sixteen lanes are one AVX-512 register, two of AVX2, four of NEON: enough to block several rows and outputs in registers.

#![expect(clippy::needless_range_loop, reason = "register blocks are small matrices: indices read better")]

use half::{bf16, f16};
use std::ops::Range;

pub(crate) const LANES: usize = 16;

/// A stored float type.
pub(crate) trait Weight {
    const BYTES: usize;
    fn load_one(bytes: &[u8]) -> f32;
    /// # Safety
    /// The CPU has the instruction set of `S`; `p` is good for 16 elements.
    unsafe fn load<S: FloatSimd>(p: *const u8) -> S::V;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl Weight for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn load_one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    #[inline(always)]
    unsafe fn load<S: FloatSimd>(p: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_f32(p.cast()) }
    }
}

impl Weight for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load_one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: FloatSimd>(p: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(p) }
    }
}

impl Weight for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load_one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: FloatSimd>(p: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(p) }
    }
}

/// Sixteen floats at a time.
///
/// # Safety
/// Every method needs a CPU with the instruction set and pointers, of any alignment, good for 16 elements.
pub(crate) trait FloatSimd {
    type V: Copy;
    unsafe fn zero() -> Self::V;
    unsafe fn load_f32(p: *const f32) -> Self::V;
    unsafe fn load_f16(p: *const u8) -> Self::V;
    unsafe fn load_bf16(p: *const u8) -> Self::V;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn store(v: Self::V) -> [f32; LANES];
}

/// A tile of a float product: `tile[r * n_outs + o] = dot(W[o], x[rows.start + r])`.
pub(crate) struct FloatJob<'a> {
    /// Whole weight rows.
    pub(crate) weights: &'a [u8],
    pub(crate) n_in: usize,
    /// `[rows, n_in]`
    pub(crate) x: &'a [f32],
    pub(crate) rows: Range<usize>,
    pub(crate) tile: &'a mut [f32],
}

/// The definition.
pub(crate) fn dot_scalar<W: Weight>(weights: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for (i, (w, x)) in weights.chunks_exact(W::BYTES).zip(x).enumerate() {
        lanes[i % LANES] = W::load_one(w).mul_add(*x, lanes[i % LANES]);
    }
    fold(lanes)
}

/// Lanes 8 apart, then 4, 2 and 1. Spelled out because a loop over the steps stayed one, a fifth of a prefill.
#[inline(always)]
fn fold(lanes: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|l| lanes[l] + lanes[l + 8]);
    let four: [f32; 4] = std::array::from_fn(|l| eight[l] + eight[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

pub(crate) fn tile_scalar<W: Weight>(job: FloatJob<'_>) {
    let row_bytes = job.n_in * W::BYTES;
    let n_outs = job.weights.len() / row_bytes;
    for (row, out) in job.rows.zip(job.tile.chunks_exact_mut(n_outs)) {
        for (w, y) in job.weights.chunks_exact(row_bytes).zip(out) {
            *y = dot_scalar::<W>(w, &job.x[row * job.n_in..(row + 1) * job.n_in]);
        }
    }
}

/// Activations read again for every few outputs: half of a small second-level cache, so that they stay there.
const X_BYTES_AT_ONCE: usize = 128 << 10;

/// The tile, `O` outputs times `R` rows in registers.
///
/// # Safety
/// The CPU has the instruction set of `S`; the shapes of the job agree.
#[inline(always)]
pub(crate) unsafe fn tile<S: FloatSimd, W: Weight, const O: usize, const R: usize>(job: FloatJob<'_>) {
    let FloatJob { weights, n_in, x, rows, tile } = job;
    let n_rows = rows.len();
    let n_outs = weights.len() / (n_in * W::BYTES);
    let at_once = (X_BYTES_AT_ONCE / (4 * n_in)).max(1).next_multiple_of(R);
    for first in (0..n_rows).step_by(at_once) {
        let end = (first + at_once).min(n_rows);
        let mut out = 0;
        while out < n_outs {
            let o = if out + O <= n_outs { O } else { 1 };
            let mut row = first;
            while row < end {
                let r = if row + R <= end { R } else { 1 };
                let w = &weights[out * n_in * W::BYTES..];
                let x = &x[(rows.start + row) * n_in..];
                let tile = &mut tile[row * n_outs + out..];
                // SAFETY: the caller's promise; each call checks that its slices hold what it reads.
                unsafe {
                    match (o == O, r == R) {
                        (true, true) => block::<S, W, O, R>(w, x, n_in, tile, n_outs),
                        (true, false) => block::<S, W, O, 1>(w, x, n_in, tile, n_outs),
                        (false, true) => block::<S, W, 1, R>(w, x, n_in, tile, n_outs),
                        (false, false) => block::<S, W, 1, 1>(w, x, n_in, tile, n_outs),
                    }
                }
                row += r;
            }
            out += o;
        }
    }
}

/// `O` weight rows times `R` activation rows; results of a row side by side, rows `n_outs` apart.
///
/// # Safety
/// The CPU has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn block<S: FloatSimd, W: Weight, const O: usize, const R: usize>(
    w: &[u8],
    x: &[f32],
    n_in: usize,
    tile: &mut [f32],
    n_outs: usize,
) {
    let row_bytes = n_in * W::BYTES;
    let (w, x) = (&w[..O * row_bytes], &x[..R * n_in]);
    let whole = n_in / LANES * LANES;
    // SAFETY: `i + 16 <= n_in`, so every load is inside its row of the two slices above.
    let acc = unsafe {
        let mut acc = [[S::zero(); R]; O];
        for i in (0..whole).step_by(LANES) {
            let ws: [S::V; O] =
                std::array::from_fn(|o| W::load::<S>(w.as_ptr().add(o * row_bytes + i * W::BYTES)));
            for r in 0..R {
                let xs = S::load_f32(x.as_ptr().add(r * n_in + i));
                for o in 0..O {
                    acc[o][r] = S::fma(ws[o], xs, acc[o][r]);
                }
            }
        }
        acc
    };
    for o in 0..O {
        for r in 0..R {
            // SAFETY: the caller's promise.
            let mut lanes = unsafe { S::store(acc[o][r]) };
            // Lane by lane: padding with zeros would turn a lane of -0 into +0.
            for i in whole..n_in {
                let weight = W::load_one(&w[o * row_bytes + i * W::BYTES..]);
                lanes[i - whole] = weight.mul_add(x[r * n_in + i], lanes[i - whole]);
            }
            tile[r * n_outs + o] = fold(lanes);
        }
    }
}
