//! The K types: 256 values in sub-blocks whose scales are small integers times the block's half-float scale.
//!
//! Throughout, e is the element, s = e/32 and k = e/16 its sub-block, h = e/128 the half it lies in, j = (e mod
//! 128)/32 its quarter of that half and l = e mod 32 its place in the quarter.

use super::{blocks, f16_at};

/// `d · scale · code − dmin · min`, sub-blocks of 16, 2-bit codes. Scale (low) and min (high) share a byte.
pub(super) fn decode_q2_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<84, 256>(bytes, out) {
        let (scales, qs) = (&block[..16], &block[16..80]);
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (e, y) in y.iter_mut().enumerate() {
            let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
            let code = qs[32 * h + l] >> (2 * j) & 3;
            let scale = scales[e / 16];
            *y = d * f32::from(scale & 15) * f32::from(code) - dmin * f32::from(scale >> 4);
        }
    }
}

/// Scale k of a Q3_K block, −32 to 31: four low bits in the first 8 bytes, two high bits in the last 4.
fn q3_k_scale(sc: &[u8], k: usize) -> i32 {
    let low = if k < 8 { sc[k] & 15 } else { sc[k - 8] >> 4 };
    let high = sc[8 + k % 4] >> (2 * (k / 4)) & 3;
    i32::from(low | high << 4) - 32
}

/// `d · scale · code`, sub-blocks of 16. The third bit of a code lies apart, and when clear subtracts 4.
pub(super) fn decode_q3_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<110, 256>(bytes, out) {
        let (hmask, qs, sc) = (&block[..32], &block[32..96], &block[96..108]);
        let d = f16_at(block, 108);
        for (e, y) in y.iter_mut().enumerate() {
            let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
            let low = i32::from(qs[32 * h + l] >> (2 * j) & 3);
            let has_third_bit = hmask[l] >> (4 * h + j) & 1 == 1;
            let code = if has_third_bit { low } else { low - 4 };
            *y = d * q3_k_scale(sc, e / 16) as f32 * code as f32;
        }
    }
}

/// Scale and minimum, 6 bits each, of sub-block `s` (0 to 7) of a Q4_K or Q5_K block; `sc` is its 12 bytes at 4.
pub fn scale_and_min(sc: &[u8; 12], s: usize) -> (u8, u8) {
    if s < 4 {
        (sc[s] & 63, sc[s + 4] & 63)
    } else {
        (sc[s + 4] & 15 | sc[s - 4] >> 6 << 4, sc[s + 4] >> 4 | sc[s] >> 6 << 4)
    }
}

/// The 12 bytes of scales of a Q4_K or Q5_K block.
fn packed_scales<const N: usize>(block: &[u8; N]) -> [u8; 12] {
    std::array::from_fn(|i| block[4 + i])
}

/// The 4-bit code of element e: two sub-blocks share 32 bytes, the even one in the low halves.
fn code4(qs: &[u8], e: usize) -> u8 {
    let (s, l) = (e / 32, e % 32);
    qs[32 * (s / 2) + l] >> (4 * (s % 2)) & 15
}

/// `d · scale · code − dmin · min`, sub-blocks of 32, 4-bit codes.
pub(super) fn decode_q4_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<144, 256>(bytes, out) {
        let (d, dmin, sc) = (f16_at(block, 0), f16_at(block, 2), packed_scales(block));
        for (e, y) in y.iter_mut().enumerate() {
            let (scale, min) = scale_and_min(&sc, e / 32);
            *y = d * f32::from(scale) * f32::from(code4(&block[16..], e)) - dmin * f32::from(min);
        }
    }
}

/// As Q4_K, with a fifth bit: bit s of byte l.
pub(super) fn decode_q5_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<176, 256>(bytes, out) {
        let (d, dmin, sc) = (f16_at(block, 0), f16_at(block, 2), packed_scales(block));
        for (e, y) in y.iter_mut().enumerate() {
            let (scale, min) = scale_and_min(&sc, e / 32);
            let high = block[16 + e % 32] >> (e / 32) & 1;
            let code = code4(&block[48..], e) | high << 4;
            *y = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
        }
    }
}

/// `d · scale · (code − 32)`, sub-blocks of 16 with signed byte scales, 6-bit codes.
pub(super) fn decode_q6_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<210, 256>(bytes, out) {
        let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16_at(block, 208);
        for (e, y) in y.iter_mut().enumerate() {
            let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
            let low = ql[64 * h + 32 * (j & 1) + l] >> (4 * (j / 2)) & 15;
            let high = qh[32 * h + l] >> (2 * j) & 3;
            let code = i32::from(low | high << 4) - 32;
            *y = d * f32::from(scales[e / 16] as i8) * code as f32;
        }
    }
}
