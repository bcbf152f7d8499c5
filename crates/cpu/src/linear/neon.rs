//! NEON with the dot product extension (`sdot`; every aarch64 server and phone core since about 2018): 4 lanes.
//!
//! Checked with `qemu-aarch64`, never run on real hardware: the bits are tested, the speed is not.

use super::float::{self, FloatJob, FloatSimd, LANES, Weight};
use super::format::Format;
use super::kernel::{self, Block, Job, Simd};
use super::panel;
use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

/// Stands for NEON and dotprod.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// # Safety
/// The CPU has neon and dotprod; the shapes of the job agree.
pub(crate) unsafe fn tile<F: Format>(job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { kernel::tile::<Neon, F>(job) }
}

/// [`kernel::block`] compiled for this instruction set.
///
/// # Safety
/// As there.
#[target_feature(enable = "neon,dotprod")]
unsafe fn block<F: Format, const R: usize, const V: usize>(job: &mut Job<'_>, row: usize, vector: usize) {
    // SAFETY: the caller's promise.
    unsafe { kernel::block::<Neon, F, R, V>(job, row, vector) }
}

/// [`panel::columns`] compiled for this instruction set.
///
/// # Safety
/// As there.
#[target_feature(enable = "neon,dotprod")]
unsafe fn columns<F: Format, const V: usize>(job: &mut Job<'_>, rows: Range<usize>, tile: usize) {
    // SAFETY: the caller's promise.
    unsafe { panel::columns::<Neon, F, V>(job, rows, tile) }
}

/// # Safety
/// The CPU has neon; the shapes of the job agree.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn float_tile<W: Weight>(job: FloatJob<'_>) {
    // 16 of 32 registers are sums.
    // SAFETY: the caller's promise.
    unsafe { float::tile::<Neon, W, 2, 2>(job) }
}

/// # Safety
/// The CPU has neon; `a` and `b` are equally long.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn dot<W: Weight>(a: &[u8], b: &[f32]) -> f32 {
    let mut sum = [0.0];
    // SAFETY: the caller's promise.
    unsafe { float::block::<Neon, W, 1, 1>(a, b, b.len(), &mut sum, 1) };
    sum[0]
}

/// `acc` plus four sums of four products. By hand because the intrinsic is not stable yet.
///
/// # Safety
/// The CPU has dotprod.
#[inline(always)]
pub(crate) unsafe fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: registers only; the instruction is there by the caller's promise.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// Four halves to floats. By hand because the intrinsic's type is not stable yet.
///
/// # Safety
/// The CPU has neon; `p` is good for 8 bytes.
#[inline(always)]
unsafe fn four_halves(p: *const u8) -> float32x4_t {
    let halves: uint64x1_t;
    let floats: float32x4_t;
    // SAFETY: the caller's promise; the instruction works on registers only.
    unsafe {
        halves = vcreate_u64(p.cast::<u64>().read_unaligned());
        asm!("fcvtl {f:v}.4s, {h:v}.4h", f = lateout(vreg) floats, h = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    floats
}

impl Simd for Neon {
    const UNSIGNED: bool = false;
    const LANES: usize = 4;
    const VECTORS: usize = 4;
    type F = float32x4_t;
    type I = int32x4_t;
    type B = uint8x16_t;

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_u8(p) }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, v: uint8x16_t) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_u8(p, v) }
    }
    #[inline(always)]
    unsafe fn field(v: uint8x16_t, from: u32, to: u32, width: u32) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe {
            let moved = vshlq_u8(v, vdupq_n_s8(to as i8 - from as i8));
            vandq_u8(moved, vdupq_n_u8(((1 << width) - 1) << to))
        }
    }
    #[inline(always)]
    unsafe fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe { vorrq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], v: uint8x16_t) -> uint8x16_t {
        // SAFETY: the caller's promise; the table has 16 bytes.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), v) }
    }
    #[inline(always)]
    unsafe fn splat_f(v: f32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vdupq_n_f32(v) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: float32x4_t) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vdupq_n_s32(v) }
    }
    #[inline(always)]
    unsafe fn to_f(v: int32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vcvtq_f32_s32(v) }
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { four_halves(p) }
    }
    #[inline(always)]
    unsafe fn load_tops(p: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p)))) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe {
            let four = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        }
    }

    #[inline(always)]
    unsafe fn dots<B: Block, const R: usize, const V: usize>(
        codes: [B; V],
        x: [*const i8; R],
        first: usize,
        n: usize,
        init: [int32x4_t; R],
    ) -> [[int32x4_t; V]; R] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[vdupq_n_s32(0); V]; R];
            for r in 0..R {
                sums[r] = [init[r]; V];
            }
            for step in first..first + n {
                let mut w = [vdupq_n_s8(0); V];
                for v in 0..V {
                    w[v] = vreinterpretq_s8_u8(codes[v].step::<Self>(step));
                }
                for r in 0..R {
                    let four = x[r].add(4 * step).cast::<i32>().read_unaligned();
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(four));
                    for v in 0..V {
                        sums[r][v] = sdot(sums[r][v], w[v], x);
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn block<F: Format>(job: &mut Job<'_>, row: usize, vector: usize, wide: bool) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match (job.rows.end - row, wide) {
                (1, true) => block::<F, 1, 4>(job, row, vector),
                (1, false) => block::<F, 1, 1>(job, row, vector),
                (2..4, true) => block::<F, 2, 4>(job, row, vector),
                (2..4, false) => block::<F, 2, 1>(job, row, vector),
                (_, true) => block::<F, 4, 4>(job, row, vector),
                (_, false) => block::<F, 4, 1>(job, row, vector),
            }
        }
        kernel::power_of_two_up_to(job.rows.end - row, 4)
    }

    #[inline(always)]
    unsafe fn panel<F: Format>(job: &mut Job<'_>, rows: Range<usize>, tiles: Range<usize>) -> usize {
        // SAFETY: the caller's promise.
        unsafe { columns::<F, 4>(job, rows, tiles.start) };
        1
    }
}

impl FloatSimd for Neon {
    type V = [float32x4_t; 4];

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { [vdupq_n_f32(0.0); 4] }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::V {
        // SAFETY: the caller's promise; bytes, because weights need no alignment.
        unsafe { [0, 16, 32, 48].map(|at| vreinterpretq_f32_u8(vld1q_u8(p.cast::<u8>().add(at)))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { [0, 8, 16, 24].map(|at| four_halves(p.add(at))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            [0, 8, 16, 24]
                .map(|at| vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p.add(at))))))
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { std::array::from_fn(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn store(v: Self::V) -> [f32; LANES] {
        // SAFETY: four vectors of four floats are sixteen floats.
        unsafe { std::mem::transmute::<[float32x4_t; 4], [f32; LANES]>(v) }
    }
}
