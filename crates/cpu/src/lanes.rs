//! Sixteen floats at a time: one AVX-512 register, two of AVX2, or an array that the compiler makes of what there is.
//! Each lane is a result of its own, so all of them give the same bits.

use half::{bf16, f16};

use crate::math::sum_of_lanes;

/// Lanes of every vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// # Safety
/// Every method needs a CPU with the instruction set and pointers, of any alignment, good for 16 elements.
pub(crate) trait Lanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn load_half(p: *const f16) -> Self;
    unsafe fn load_bfloat(p: *const bf16) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn mul(self, by: Self) -> Self;
    /// `self · by + plus`, rounded once.
    unsafe fn fma(self, by: Self, plus: Self) -> Self;
    /// Lanes 8 apart are added, then 4, 2 and 1 apart.
    unsafe fn sum(self) -> f32;
}

/// The definition.
impl Lanes for [f32; LANES] {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_half(p: *const f16) -> Self {
        // SAFETY: the caller's promise.
        let halves = unsafe { p.cast::<[f16; LANES]>().read_unaligned() };
        halves.map(f16::to_f32_const)
    }
    #[inline(always)]
    unsafe fn load_bfloat(p: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        let halves = unsafe { p.cast::<[bf16; LANES]>().read_unaligned() };
        halves.map(bf16::to_f32_const)
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn mul(mut self, by: Self) -> Self {
        for (x, by) in self.iter_mut().zip(by) {
            *x *= by;
        }
        self
    }
    #[inline(always)]
    unsafe fn fma(self, by: Self, mut plus: Self) -> Self {
        for lane in 0..LANES {
            plus[lane] = self[lane].mul_add(by[lane], plus[lane]);
        }
        plus
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        sum_of_lanes(self)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256, __m256);

    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512);

    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn sum_of_eight(eight: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
        }
        #[inline(always)]
        unsafe fn load_half(p: *const f16) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let eight = |p: *const f16| _mm_loadu_si128(p.cast());
                Self(_mm256_cvtph_ps(eight(p)), _mm256_cvtph_ps(eight(p.add(8))))
            }
        }
        #[inline(always)]
        unsafe fn load_bfloat(p: *const bf16) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let eight = |p: *const bf16| {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                };
                Self(eight(p), eight(p.add(8)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(p, self.0);
                _mm256_storeu_ps(p.add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn mul(self, by: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm256_mul_ps(self.0, by.0), _mm256_mul_ps(self.1, by.1)) }
        }
        #[inline(always)]
        unsafe fn fma(self, by: Self, plus: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm256_fmadd_ps(self.0, by.0, plus.0), _mm256_fmadd_ps(self.1, by.1, plus.1)) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: the caller's promise.
            unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
        }
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm512_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm512_loadu_ps(p)) }
        }
        #[inline(always)]
        unsafe fn load_half(p: *const f16) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn load_bfloat(p: *const bf16) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn mul(self, by: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm512_mul_ps(self.0, by.0)) }
        }
        #[inline(always)]
        unsafe fn fma(self, by: Self, plus: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { Self(_mm512_fmadd_ps(self.0, by.0, plus.0)) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: the caller's promise. The upper half by a shuffle of the foundation set: no AVX512DQ is asked for.
            unsafe {
                let upper = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b1110>(self.0, self.0));
                sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(self.0), upper))
            }
        }
    }
}
