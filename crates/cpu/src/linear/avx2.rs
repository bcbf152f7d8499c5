//! AVX2 with FMA and F16C: 8 lanes.

#![expect(clippy::needless_range_loop, reason = "register blocks are small matrices: indices read better")]

use super::activations::PlainRow;
use super::decode::{CHUNK, CodeForm, Decoded, Format, Kind, OUTS};
use super::kernel::{self, Job, Pass, Simd};
use std::arch::x86_64::*;

/// Proof that the CPU has avx2, fma and f16c.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// # Safety
/// The CPU has avx2, fma and f16c; the shapes of the job agree.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn tile<F: Format>(job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { kernel::tile::<Avx2, F>(job) }
}

impl CodeForm for Avx2 {
    // `maddubs` saturates at 16 bits, which full-range unsigned codes would reach.
    const FULL_IS_UNSIGNED: bool = false;

    type B = __m256i;

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: `self` is the proof; the array has 32 bytes.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, v: __m256i, codes: &mut [u8; 32]) {
        // SAFETY: `self` is the proof; the array has 32 bytes.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn split_nibbles(self, bytes: &[u8; 16]) -> __m256i {
        // SAFETY: `self` is the proof; the array has 16 bytes.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes), _mm256_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn bits(self, v: __m256i, shift: u32, mask: u8) -> __m256i {
        // SAFETY: `self` is the proof.
        unsafe {
            let shifted = _mm256_srl_epi16(v, _mm_cvtsi32_si128(shift as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    fn shl(self, v: __m256i, shift: u32) -> __m256i {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_sll_epi16(v, _mm_cvtsi32_si128(shift as i32)) }
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    fn xor(self, a: __m256i, b: u8) -> __m256i {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_xor_si256(a, _mm256_set1_epi8(b as i8)) }
    }
    #[inline(always)]
    fn add(self, a: __m256i, b: u8) -> __m256i {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_add_epi8(a, _mm256_set1_epi8(b as i8)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: __m256i) -> __m256i {
        // SAFETY: `self` is the proof; the table has 16 bytes.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }
    #[inline(always)]
    fn spread_bits(self, bits: u32, value: u8) -> __m256i {
        // SAFETY: `self` is the proof.
        unsafe {
            // Byte e gets the byte that holds its bit, and keeps that bit.
            let bytes =
                _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), bytes);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
            _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
        }
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        // SAFETY: `self` is the proof.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch is a hint and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn scale_eight(self, factor: f32, small: [i8; 8]) -> [f32; 8] {
        // SAFETY: `self` is the proof; eight bytes in, eight floats out.
        unsafe {
            let wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(small.as_ptr().cast()));
            let scaled = _mm256_mul_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(wide));
            std::mem::transmute::<__m256, [f32; 8]>(scaled)
        }
    }
}

/// Products of 32 codes and 32 quants, added in pairs of 16 bits without saturating: small codes are at most
/// 63 * 127 * 2; for full-range ones the code's sign goes to the quant, and 128 * 127 * 2 still fits.
///
/// # Safety
/// The CPU has avx2.
#[inline(always)]
unsafe fn pairs<K: Kind>(codes: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        if K::BITS == 8 {
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
        } else {
            _mm256_maddubs_epi16(codes, x)
        }
    }
}

/// For four rows of codes, the sums of products 0..16 in the low half and of 16..32 in the high half.
///
/// # Safety
/// The CPU has avx2; 32 codes can be read in each of four rows.
#[inline(always)]
unsafe fn quad<K: Kind>(codes: *const u8, x: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut fours = [_mm256_setzero_si256(); 4];
        for (row, fours) in fours.iter_mut().enumerate() {
            let codes = _mm256_loadu_si256(codes.add(row * CHUNK).cast());
            *fours = _mm256_madd_epi16(pairs::<K>(codes, x), ones);
        }
        let [a, b, c, d] = fours;
        _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d))
    }
}

impl Simd for Avx2 {
    unsafe fn new() -> Self {
        Self(())
    }

    const LANES: usize = 8;
    type F = __m256;
    type I = __m256i;

    #[inline(always)]
    fn few_rows_limit<K: Kind>() -> usize {
        // Measured on Ice Lake: Q8_0 at 6 rows 0.95 ns a block against 1.10, at 8 rows 0.92 against 0.76; four- and
        // six-bit types cross at 5.
        if K::BITS == 8 { 6 } else { 5 }
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
    unsafe fn load_i(p: *const i32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl_i(v: __m256i, bits: u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_sll_epi32(v, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn to_f(v: __m256i) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn dot_outs<K: Kind>(codes: *const u8, x: *const i8) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm256_loadu_si256(x.cast());
            let (first, second) = (quad::<K>(codes, x), quad::<K>(codes.add(4 * CHUNK), x));
            [
                _mm256_permute2x128_si256::<0x20>(first, second),
                _mm256_permute2x128_si256::<0x31>(first, second),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_panel<K: Kind, const O: usize, const V: usize>(
        codes: *const u8,
        x: [*const i8; V],
        init: [__m256i; V],
    ) -> [[__m256i; V]; O] {
        let steps = if K::HALVES { 4 } else { 8 };
        // Pair sums that fit in 16 bits together: (2^bits - 1) * 127 * 2 * run <= 32767.
        let run = match K::BITS {
            4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        }
        .min(steps);
        // SAFETY: the caller's promise: `steps` fours of codes in each weight row, `steps` lines in each panel.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sums = [init; O];
            for first in (0..steps).step_by(run) {
                let mut short = [[_mm256_setzero_si256(); V]; O];
                for k in first..first + run {
                    let x = x.map(|p| _mm256_loadu_si256(p.add(64 * k).cast()));
                    for o in 0..O {
                        let code =
                            _mm256_set1_epi32(codes.add(o * CHUNK + 4 * k).cast::<i32>().read_unaligned());
                        for v in 0..V {
                            let products = pairs::<K>(code, x[v]);
                            short[o][v] =
                                if k == first { products } else { _mm256_add_epi16(short[o][v], products) };
                        }
                    }
                }
                for o in 0..O {
                    for v in 0..V {
                        sums[o][v] = _mm256_add_epi32(sums[o][v], _mm256_madd_epi16(short[o][v], ones));
                    }
                }
            }
            sums
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn few_rows<K: Kind>(w: &Decoded, n_outs: usize, x: PlainRow<'_>, acc: &mut [f32; OUTS]) {
        // SAFETY: the caller's promise.
        unsafe { kernel::few_rows::<Avx2, K>(w, n_outs, x, acc) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn many_rows<K: Kind>(w: &Decoded, pass: &mut Pass<'_>) {
        let (pairs, rest) = kernel::split_rows::<Avx2>(pass, 2);
        // SAFETY: the caller's promise.
        unsafe {
            kernel::many_rows::<Avx2, K, 2, 2>(w, pass, pairs);
            kernel::many_rows::<Avx2, K, 4, 1>(w, pass, rest);
        }
    }
}
