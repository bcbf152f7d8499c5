//! NEON with the dot product extension (`sdot`; every aarch64 server and phone core since about 2018): 4 lanes.
//!
//! Checked with `qemu-aarch64`, never run on real hardware: the bits are tested, the speed is not.

use super::activations::PlainRow;
use super::decode::{CHUNK, CodeForm, Decoded, Format, Kind, OUTS};
use super::float::{self, FloatJob, FloatSimd, LANES, Weight};
use super::kernel::{self, Job, Pass, Simd};
use std::arch::aarch64::*;
use std::arch::asm;

/// Proof that the CPU has NEON and dotprod.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

/// # Safety
/// The CPU has neon and dotprod; the shapes of the job agree.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn tile<F: Format>(job: Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { kernel::tile::<Neon, F>(job) }
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

impl CodeForm for Neon {
    const FULL_IS_UNSIGNED: bool = false;
    type B = uint8x16x2_t;

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> uint8x16x2_t {
        // SAFETY: `self` is the proof; the array has 32 bytes.
        unsafe { uint8x16x2_t(vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes.as_ptr().add(16))) }
    }
    #[inline(always)]
    fn store(self, v: uint8x16x2_t, codes: &mut [u8; 32]) {
        // SAFETY: `self` is the proof; the array has 32 bytes.
        unsafe {
            vst1q_u8(codes.as_mut_ptr(), v.0);
            vst1q_u8(codes.as_mut_ptr().add(16), v.1);
        }
    }
    #[inline(always)]
    fn split_nibbles(self, bytes: &[u8; 16]) -> uint8x16x2_t {
        // SAFETY: `self` is the proof; the array has 16 bytes.
        unsafe {
            let bytes = vld1q_u8(bytes.as_ptr());
            uint8x16x2_t(vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes))
        }
    }
    #[inline(always)]
    fn bits(self, v: uint8x16x2_t, shift: u32, mask: u8) -> uint8x16x2_t {
        // SAFETY: `self` is the proof. A negative left shift is a right shift.
        unsafe {
            let (right, mask) = (vdupq_n_s8(-(shift as i8)), vdupq_n_u8(mask));
            uint8x16x2_t(vandq_u8(vshlq_u8(v.0, right), mask), vandq_u8(vshlq_u8(v.1, right), mask))
        }
    }
    #[inline(always)]
    fn shl(self, v: uint8x16x2_t, shift: u32) -> uint8x16x2_t {
        // SAFETY: `self` is the proof.
        unsafe {
            let left = vdupq_n_s8(shift as i8);
            uint8x16x2_t(vshlq_u8(v.0, left), vshlq_u8(v.1, left))
        }
    }
    #[inline(always)]
    fn or(self, a: uint8x16x2_t, b: uint8x16x2_t) -> uint8x16x2_t {
        // SAFETY: `self` is the proof.
        unsafe { uint8x16x2_t(vorrq_u8(a.0, b.0), vorrq_u8(a.1, b.1)) }
    }
    #[inline(always)]
    fn xor(self, a: uint8x16x2_t, b: u8) -> uint8x16x2_t {
        // SAFETY: `self` is the proof.
        unsafe { uint8x16x2_t(veorq_u8(a.0, vdupq_n_u8(b)), veorq_u8(a.1, vdupq_n_u8(b))) }
    }
    #[inline(always)]
    fn add(self, a: uint8x16x2_t, b: u8) -> uint8x16x2_t {
        // SAFETY: `self` is the proof.
        unsafe { uint8x16x2_t(vaddq_u8(a.0, vdupq_n_u8(b)), vaddq_u8(a.1, vdupq_n_u8(b))) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], v: uint8x16x2_t) -> uint8x16x2_t {
        // SAFETY: `self` is the proof; the table has 16 bytes.
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            uint8x16x2_t(vqtbl1q_u8(table, v.0), vqtbl1q_u8(table, v.1))
        }
    }
    #[inline(always)]
    fn spread_bits(self, bits: u32, value: u8) -> uint8x16x2_t {
        // SAFETY: `self` is the proof.
        unsafe {
            let bytes = bits.to_le_bytes();
            let bit = vcreate_u8(0x8040_2010_0804_0201);
            let spread = |byte: u8| vtst_u8(vdup_n_u8(byte), bit);
            let value = vdupq_n_u8(value);
            let low = vcombine_u8(spread(bytes[0]), spread(bytes[1]));
            let high = vcombine_u8(spread(bytes[2]), spread(bytes[3]));
            uint8x16x2_t(vandq_u8(low, value), vandq_u8(high, value))
        }
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        super::decode::half(bits)
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch is a hint and faults on no address.
        unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    fn scale_eight(self, factor: f32, small: [i8; 8]) -> [f32; 8] {
        small.map(|s| factor * f32::from(s))
    }
}

impl Simd for Neon {
    unsafe fn new() -> Self {
        Self(())
    }

    const LANES: usize = 4;
    type F = float32x4_t;
    type I = int32x4_t;

    #[inline(always)]
    fn few_rows_limit<K: Kind>() -> usize {
        // Counted, not measured: the panel kernel is one `sdot` for four rows, so it pays as soon as lanes fill.
        3
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
    unsafe fn load_i(p: *const i32) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_s32(p) }
    }
    #[inline(always)]
    unsafe fn add_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vsubq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl_i(v: int32x4_t, bits: u32) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vshlq_s32(v, vdupq_n_s32(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn to_f(v: int32x4_t) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vcvtq_f32_s32(v) }
    }

    #[inline(always)]
    unsafe fn dot_outs<K: Kind>(codes: *const u8, x: *const i8) -> [int32x4_t; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [vdupq_n_s32(0); 2];
            for (half, sums) in sums.iter_mut().enumerate() {
                let x = vld1q_s8(x.add(16 * half));
                let mut fours = [vdupq_n_s32(0); 4];
                for (row, fours) in fours.iter_mut().enumerate() {
                    *fours = sdot(*fours, vld1q_s8(codes.add(row * CHUNK + 16 * half).cast()), x);
                }
                *sums = vpaddq_s32(vpaddq_s32(fours[0], fours[1]), vpaddq_s32(fours[2], fours[3]));
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn dot_panel<K: Kind, const O: usize, const V: usize>(
        codes: *const u8,
        x: [*const i8; V],
        init: [int32x4_t; V],
    ) -> [[int32x4_t; V]; O] {
        let steps = if K::HALVES { 4 } else { 8 };
        // SAFETY: the caller's promise: `steps` fours of codes in each weight row, `steps` lines in each panel.
        unsafe {
            let mut sums = [init; O];
            for k in 0..steps {
                for (o, sums) in sums.iter_mut().enumerate() {
                    let code = codes.add(o * CHUNK + 4 * k).cast::<i32>().read_unaligned();
                    let code = vreinterpretq_s8_s32(vdupq_n_s32(code));
                    for v in 0..V {
                        sums[v] = sdot(sums[v], code, vld1q_s8(x[v].add(64 * k)));
                    }
                }
            }
            sums
        }
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn few_rows<K: Kind>(w: &Decoded, n_outs: usize, x: PlainRow<'_>, acc: &mut [f32; OUTS]) {
        // SAFETY: the caller's promise.
        unsafe { kernel::few_rows::<Neon, K>(w, n_outs, x, acc) }
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn many_rows<K: Kind>(w: &Decoded, pass: &mut Pass<'_>) {
        let (pairs, rest) = kernel::split_rows::<Neon>(pass, 2);
        // SAFETY: the caller's promise.
        unsafe {
            kernel::many_rows::<Neon, K, 4, 2>(w, pass, pairs);
            kernel::many_rows::<Neon, K, 4, 1>(w, pass, rest);
        }
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
