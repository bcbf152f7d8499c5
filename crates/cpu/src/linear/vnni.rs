//! AVX-512 with VNNI: 16 lanes, four products an instruction.

use super::activations::PlainRow;
use super::avx2::Avx2;
use super::decode::{CHUNK, CodeForm, Decoded, Format, Kind, OUTS};
use super::kernel::{self, Job, Pass, Simd};
use std::arch::x86_64::*;

/// Proof that the CPU has avx512f, bw, vl and vnni, and all that [`Avx2`] stands for.
#[derive(Clone, Copy)]
pub(crate) struct Vnni(Avx2);

/// # Safety
/// The CPU has avx512f, bw, vl and vnni, avx2, fma and f16c; the shapes of the job agree.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn tile<F: Format>(job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { kernel::tile::<Vnni, F>(job) }
}

impl CodeForm for Vnni {
    // `vpdpbusd` multiplies u8 by i8 and does not saturate.
    const FULL_IS_UNSIGNED: bool = true;

    // A block is 32 elements: decoding has no use for wider vectors.
    type B = __m256i;

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> __m256i {
        self.0.load(bytes)
    }
    #[inline(always)]
    fn store(self, v: __m256i, codes: &mut [u8; 32]) {
        self.0.store(v, codes)
    }
    #[inline(always)]
    fn split_nibbles(self, bytes: &[u8; 16]) -> __m256i {
        self.0.split_nibbles(bytes)
    }
    #[inline(always)]
    fn bits(self, v: __m256i, shift: u32, mask: u8) -> __m256i {
        self.0.bits(v, shift, mask)
    }
    #[inline(always)]
    fn shl(self, v: __m256i, shift: u32) -> __m256i {
        self.0.shl(v, shift)
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        self.0.or(a, b)
    }
    #[inline(always)]
    fn xor(self, a: __m256i, b: u8) -> __m256i {
        self.0.xor(a, b)
    }
    #[inline(always)]
    fn add(self, a: __m256i, b: u8) -> __m256i {
        self.0.add(a, b)
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: __m256i) -> __m256i {
        self.0.look_up(table, v)
    }
    #[inline(always)]
    fn spread_bits(self, bits: u32, value: u8) -> __m256i {
        self.0.spread_bits(bits, value)
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        self.0.half(bits)
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        self.0.prefetch(p);
    }
    #[inline(always)]
    fn scale_eight(self, factor: f32, small: [i8; 8]) -> [f32; 8] {
        self.0.scale_eight(factor, small)
    }
}

/// For rows of codes 0..4 and 8..12, the sums of products by quarters: 0..16 and 16..32 of the first four rows, then
/// of the others.
///
/// # Safety
/// The CPU has avx512f, bw, vl and vnni; 32 codes can be read in each of twelve rows.
#[inline(always)]
unsafe fn quad(codes: *const u8, x: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let mut fours = [_mm512_setzero_si512(); 4];
        for (row, fours) in fours.iter_mut().enumerate() {
            let low = _mm256_loadu_si256(codes.add(row * CHUNK).cast());
            let high = _mm256_loadu_si256(codes.add((row + 8) * CHUNK).cast());
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            *fours = _mm512_dpbusd_epi32(*fours, both, x);
        }
        let [a, b, c, d] = fours;
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }
}

impl Simd for Vnni {
    unsafe fn new() -> Self {
        // SAFETY: the caller's promise includes what `Avx2` needs.
        Self(unsafe { Avx2::new() })
    }

    const LANES: usize = 16;
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn few_rows_limit<K: Kind>() -> usize {
        // Measured on Ice Lake at 8 rows: Q8_0 0.54 ns a block against 0.64, Q4_K 0.61 against 0.76.
        9
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
    unsafe fn load_i(p: *const i32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_epi32(p) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl_i(v: __m512i, bits: u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_sll_epi32(v, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn to_f(v: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn dot_outs<K: Kind>(codes: *const u8, x: *const i8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm512_broadcast_i64x4(_mm256_loadu_si256(x.cast()));
            let (first, second) = (quad(codes, x), quad(codes.add(4 * CHUNK), x));
            let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
            [_mm512_permutex2var_epi32(first, low, second), _mm512_permutex2var_epi32(first, high, second)]
        }
    }

    #[inline(always)]
    unsafe fn dot_panel<K: Kind, const O: usize, const V: usize>(
        codes: *const u8,
        x: [*const i8; V],
        init: [__m512i; V],
    ) -> [[__m512i; V]; O] {
        let steps = if K::HALVES { 4 } else { 8 };
        // SAFETY: the caller's promise: `steps` fours of codes in each weight row, `steps` lines in each panel.
        unsafe {
            let mut sums = [init; O];
            for k in 0..steps {
                let x = x.map(|p| _mm512_loadu_si512(p.add(64 * k).cast()));
                for (o, sums) in sums.iter_mut().enumerate() {
                    let code = _mm512_set1_epi32(codes.add(o * CHUNK + 4 * k).cast::<i32>().read_unaligned());
                    for v in 0..V {
                        sums[v] = _mm512_dpbusd_epi32(sums[v], code, x[v]);
                    }
                }
            }
            sums
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn few_rows<K: Kind>(w: &Decoded, n_outs: usize, x: PlainRow<'_>, acc: &mut [f32; OUTS]) {
        // SAFETY: the caller's promise.
        unsafe { kernel::few_rows::<Vnni, K>(w, n_outs, x, acc) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn many_rows<K: Kind>(w: &Decoded, pass: &mut Pass<'_>) {
        let (pairs, rest) = kernel::split_rows::<Vnni>(pass, 2);
        // SAFETY: the caller's promise.
        unsafe {
            kernel::many_rows::<Vnni, K, 4, 2>(w, pass, pairs);
            kernel::many_rows::<Vnni, K, 8, 1>(w, pass, rest);
        }
    }
}
