//! AVX-512 with VNNI: 16 lanes, four products an instruction.

use super::format::Format;
use super::kernel::{self, Block, Job, Simd};
use super::panel;
use std::arch::x86_64::*;
use std::ops::Range;

/// Stands for avx512f, bw, vl and vnni, avx2, fma and f16c.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

/// # Safety
/// The CPU has what [`Vnni`] stands for; the shapes of the job agree.
pub(crate) unsafe fn tile<F: Format>(job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { kernel::tile::<Vnni, F>(job) }
}

/// [`kernel::block`] compiled for this instruction set.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn block<F: Format, const R: usize, const V: usize>(job: &mut Job<'_>, row: usize, vector: usize) {
    // SAFETY: the caller's promise.
    unsafe { kernel::block::<Vnni, F, R, V>(job, row, vector) }
}

/// [`panel::columns`] compiled for this instruction set.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn columns<F: Format, const V: usize>(job: &mut Job<'_>, rows: Range<usize>, tile: usize) {
    // SAFETY: the caller's promise.
    unsafe { panel::columns::<Vnni, F, V>(job, rows, tile) }
}

impl Simd for Vnni {
    // `vpdpbusd` multiplies u8 by i8 and does not saturate.
    const UNSIGNED: bool = true;
    const LANES: usize = 16;
    const VECTORS: usize = 2;
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_b(p: *mut u8, v: __m512i) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn field(v: __m512i, from: u32, to: u32, width: u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let count = _mm_cvtsi32_si128(from.abs_diff(to) as i32);
            let moved = if from >= to { _mm512_srl_epi16(v, count) } else { _mm512_sll_epi16(v, count) };
            _mm512_and_si512(moved, _mm512_set1_epi8((((1 << width) - 1) << to) as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], v: __m512i) -> __m512i {
        // SAFETY: the caller's promise; the table has 16 bytes.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }
    #[inline(always)]
    unsafe fn splat_f(v: f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn to_f(v: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_tops(p: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn dots<B: Block, const R: usize, const V: usize>(
        codes: [B; V],
        x: [*const i8; R],
        first: usize,
        n: usize,
        init: [__m512i; R],
    ) -> [[__m512i; V]; R] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); V]; R];
            for r in 0..R {
                sums[r] = [init[r]; V];
            }
            for step in first..first + n {
                let mut w = [_mm512_setzero_si512(); V];
                for v in 0..V {
                    w[v] = codes[v].step::<Self>(step);
                }
                for r in 0..R {
                    let x = _mm512_set1_epi32(x[r].add(4 * step).cast::<i32>().read_unaligned());
                    for v in 0..V {
                        sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], w[v], x);
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
                (4..8, true) => block::<F, 4, 2>(job, row, vector),
                (4..8, false) => block::<F, 4, 1>(job, row, vector),
                (_, true) => block::<F, 8, 2>(job, row, vector),
                (_, false) => block::<F, 8, 1>(job, row, vector),
            }
        }
        kernel::power_of_two_up_to(job.rows.end - row, 8)
    }

    #[inline(always)]
    unsafe fn panel<F: Format>(job: &mut Job<'_>, rows: Range<usize>, tiles: Range<usize>) -> usize {
        // Three tiles have the fewest loads for their products and spill nothing; one alone has them for every product.
        let n = if tiles.len() == 4 { 2 } else { tiles.len().min(3) };
        // SAFETY: the caller's promise.
        unsafe {
            match n {
                1 => columns::<F, 1>(job, rows, tiles.start),
                2 => columns::<F, 2>(job, rows, tiles.start),
                _ => columns::<F, 3>(job, rows, tiles.start),
            }
        }
        n
    }
}
