//! Sixteen floats with AVX2 (two registers) and AVX-512 (one).

use super::avx2::Avx2;
use super::float::{self, FloatJob, FloatSimd, LANES, Weight};
use super::vnni::Vnni;
use std::arch::x86_64::*;

/// # Safety
/// The CPU has avx2, fma and f16c; the shapes of the job agree.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn tile_avx2<W: Weight>(job: FloatJob<'_>) {
    // 12 of 16 registers are sums.
    // SAFETY: the caller's promise.
    unsafe { float::tile::<Avx2, W, 2, 3>(job) }
}

/// # Safety
/// The CPU has avx512f, bw and vl, avx2, fma and f16c; the shapes of the job agree.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn tile_avx512<W: Weight>(job: FloatJob<'_>) {
    // 16 of 32 registers are sums.
    // SAFETY: the caller's promise.
    unsafe { float::tile::<Vnni, W, 4, 4>(job) }
}

/// # Safety
/// The CPU has avx2, fma and f16c; `a` and `b` are equally long.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn dot_avx2<W: Weight>(a: &[u8], b: &[f32]) -> f32 {
    let mut sum = [0.0];
    // SAFETY: the caller's promise.
    unsafe { float::block::<Avx2, W, 1, 1>(a, b, b.len(), &mut sum, 1) };
    sum[0]
}

/// # Safety
/// The CPU has avx512f, bw and vl, avx2, fma and f16c; `a` and `b` are equally long.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn dot_avx512<W: Weight>(a: &[u8], b: &[f32]) -> f32 {
    let mut sum = [0.0];
    // SAFETY: the caller's promise.
    unsafe { float::block::<Vnni, W, 1, 1>(a, b, b.len(), &mut sum, 1) };
    sum[0]
}

impl FloatSimd for Avx2 {
    type V = [__m256; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { [0, 16].map(|at| _mm256_cvtph_ps(_mm_loadu_si128(p.add(at).cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            [0, 16].map(|at| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn store(v: Self::V) -> [f32; LANES] {
        // SAFETY: two vectors of eight floats are sixteen floats.
        unsafe { std::mem::transmute::<[__m256; 2], [f32; LANES]>(v) }
    }
}

impl FloatSimd for Vnni {
    type V = __m512;

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(v: Self::V) -> [f32; LANES] {
        // SAFETY: a vector of sixteen floats.
        unsafe { std::mem::transmute::<__m512, [f32; LANES]>(v) }
    }
}
