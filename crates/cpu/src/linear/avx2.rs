//! AVX2 with FMA and F16C: 8 lanes.

use super::format::Format;
use super::kernel::{self, Block, Job, Simd};
use super::panel;
use std::arch::x86_64::*;
use std::ops::Range;

/// Stands for avx2, fma and f16c.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// # Safety
/// The CPU has what [`Avx2`] stands for; the shapes of the job agree.
pub(crate) unsafe fn tile<F: Format>(job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { kernel::tile::<Avx2, F>(job) }
}

/// [`kernel::block`] compiled for this instruction set.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<F: Format, const R: usize, const V: usize>(job: &mut Job<'_>, row: usize, vector: usize) {
    // SAFETY: the caller's promise.
    unsafe { kernel::block::<Avx2, F, R, V>(job, row, vector) }
}

/// [`panel::columns`] compiled for this instruction set.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<F: Format, const V: usize>(job: &mut Job<'_>, rows: Range<usize>, tile: usize) {
    // SAFETY: the caller's promise.
    unsafe { panel::columns::<Avx2, F, V>(job, rows, tile) }
}

/// Steps whose products fit in 16 bits together, two products a place: `(2^bits - 1) * 127 * 2 * steps <= 32767`.
/// Full-range codes are multiplied as magnitudes, 128 at most, with quants that took over their signs.
#[inline(always)]
const fn steps_in_16_bits(bits: u32) -> usize {
    match bits {
        0..=4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    }
}

impl Simd for Avx2 {
    // `maddubs` saturates at 16 bits, which full-range unsigned codes would reach.
    const UNSIGNED: bool = false;
    const LANES: usize = 8;
    const VECTORS: usize = 2;
    type F = __m256;
    type I = __m256i;
    type B = __m256i;

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, v: __m256i) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn field(v: __m256i, from: u32, to: u32, width: u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let count = _mm_cvtsi32_si128(from.abs_diff(to) as i32);
            let moved = if from >= to { _mm256_srl_epi16(v, count) } else { _mm256_sll_epi16(v, count) };
            _mm256_and_si256(moved, _mm256_set1_epi8((((1 << width) - 1) << to) as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], v: __m256i) -> __m256i {
        // SAFETY: the caller's promise; the table has 16 bytes.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }
    #[inline(always)]
    unsafe fn splat_f(v: f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: __m256) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn to_f(v: __m256i) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_tops(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn dots<B: Block, const R: usize, const V: usize>(
        codes: [B; V],
        x: [*const i8; R],
        first: usize,
        n: usize,
        init: [__m256i; R],
    ) -> [[__m256i; V]; R] {
        let run = steps_in_16_bits(B::BITS).min(n);
        // SAFETY: the caller's promise.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sums = [[_mm256_setzero_si256(); V]; R];
            for r in 0..R {
                sums[r] = [init[r]; V];
            }
            for run_start in (first..first + n).step_by(run) {
                let mut short = [[_mm256_setzero_si256(); V]; R];
                for step in run_start..run_start + run {
                    let mut w = [_mm256_setzero_si256(); V];
                    for v in 0..V {
                        w[v] = codes[v].step::<Self>(step);
                    }
                    for r in 0..R {
                        let x = _mm256_set1_epi32(x[r].add(4 * step).cast::<i32>().read_unaligned());
                        for v in 0..V {
                            let products = if B::BITS == 8 {
                                _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]))
                            } else {
                                _mm256_maddubs_epi16(w[v], x)
                            };
                            short[r][v] = if step == run_start {
                                products
                            } else {
                                _mm256_add_epi16(short[r][v], products)
                            };
                        }
                    }
                }
                for r in 0..R {
                    for v in 0..V {
                        sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(short[r][v], ones));
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
                (1, true) => block::<F, 1, 2>(job, row, vector),
                (1, false) => block::<F, 1, 1>(job, row, vector),
                (2..4, true) => block::<F, 2, 2>(job, row, vector),
                (2..4, false) => block::<F, 2, 1>(job, row, vector),
                (_, true) => block::<F, 4, 2>(job, row, vector),
                (_, false) => block::<F, 4, 1>(job, row, vector),
            }
        }
        kernel::power_of_two_up_to(job.rows.end - row, 4)
    }

    #[inline(always)]
    unsafe fn panel<F: Format>(job: &mut Job<'_>, rows: Range<usize>, tiles: Range<usize>) -> usize {
        // SAFETY: the caller's promise.
        unsafe { columns::<F, 2>(job, rows, tiles.start) };
        1
    }
}
