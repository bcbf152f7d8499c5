//! The older types: 32 values share one half-float scale and, in the `_1` types, one half-float minimum.

use super::{blocks, f16_at};

/// The 4-bit code of element `e`: 16 bytes hold elements 0-15 in their low halves and 16-31 in their high halves.
pub(super) fn nibble(qs: &[u8], e: usize) -> u8 {
    if e < 16 { qs[e] & 15 } else { qs[e - 16] >> 4 }
}

/// `d · (code − 8)`; d at 0, 16 bytes of codes at 2.
pub(super) fn decode_q4_0(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<18, 32>(bytes, out) {
        let d = f16_at(block, 0);
        for (e, y) in y.iter_mut().enumerate() {
            *y = d * (i32::from(nibble(&block[2..], e)) - 8) as f32;
        }
    }
}

/// `d · code + m`; d at 0, m at 2, codes at 4.
pub(super) fn decode_q4_1(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<20, 32>(bytes, out) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for (e, y) in y.iter_mut().enumerate() {
            *y = d * f32::from(nibble(&block[4..], e)) + m;
        }
    }
}

/// Fifth bits of the 32 codes, element e in bit e.
fn high_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn code5(qh: u32, qs: &[u8], e: usize) -> u8 {
    nibble(qs, e) | ((qh >> e & 1) as u8) << 4
}

/// `d · (code − 16)`; d at 0, fifth bits at 2, low bits at 6.
pub(super) fn decode_q5_0(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<22, 32>(bytes, out) {
        let (d, qh) = (f16_at(block, 0), high_bits(block, 2));
        for (e, y) in y.iter_mut().enumerate() {
            *y = d * (i32::from(code5(qh, &block[6..], e)) - 16) as f32;
        }
    }
}

/// `d · code + m`; d at 0, m at 2, fifth bits at 4, low bits at 8.
pub(super) fn decode_q5_1(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<24, 32>(bytes, out) {
        let (d, m, qh) = (f16_at(block, 0), f16_at(block, 2), high_bits(block, 4));
        for (e, y) in y.iter_mut().enumerate() {
            *y = d * f32::from(code5(qh, &block[8..], e)) + m;
        }
    }
}

/// `d · code`; d at 0, 32 signed bytes at 2.
pub(super) fn decode_q8_0(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<34, 32>(bytes, out) {
        let d = f16_at(block, 0);
        for (&q, y) in block[2..].iter().zip(y) {
            *y = d * f32::from(q as i8);
        }
    }
}
