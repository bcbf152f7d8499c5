//! Decoders of the types with blocks of 256: a scale of scales, and small integers for each 16 or 32 elements.
//! The product of both is exact in f32 (11 and at most 8 bits).

use super::decode::{CodeForm, Column, Format, K, bytes_at, half_at, store_at};
use super::formats32::iq4_codes;

pub(crate) struct Q2K;
pub(crate) struct Q3K;
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;
pub(crate) struct Iq4Xs;

impl Format for Q2K {
    type Kind = K<4, true, true>;
    const LEN: usize = 256;
    const BYTES: usize = 84;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        let (d, dmin) = (half_at(c, block, 80), half_at(c, block, 82));
        for k in [0, 8] {
            let sc: &[u8; 8] = bytes_at(block, k);
            column.scales(k, c.scale_eight(d, sc.map(|sc| (sc & 15) as i8)));
            column.mins(k, c.scale_eight(-dmin, sc.map(|sc| (sc >> 4) as i8)));
        }
        for group in 0..8 {
            store_at(c, codes, 32 * group, two_bits(c, &block[16..80], group));
        }
    }
}

/// Two bits of 32 elements: of group 4h + j they are bits 2j and 2j + 1 of bytes 32h to 32h + 31.
#[inline(always)]
fn two_bits<C: CodeForm>(c: C, quants: &[u8], group: usize) -> C::B {
    c.bits(c.load(bytes_at(quants, 32 * (group / 4))), 2 * (group as u32 % 4), 3)
}

impl Format for Q3K {
    // Three-bit codes, moved up by 28 so that they share the offset, and the kernels, of Q6_K.
    type Kind = K<6, true, false>;
    const LEN: usize = 256;
    const BYTES: usize = 110;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        let d = half_at(c, block, 108);
        let [a, b, high] = [96, 100, 104].map(|at| u32::from_le_bytes(*bytes_at(block, at)));
        for (k, shift) in [(0, 0), (8, 4)] {
            let first = four_low(a >> shift) | (high >> shift & 0x0303_0303) << 4;
            let second = four_low(b >> shift) | (high >> (shift + 2) & 0x0303_0303) << 4;
            column.scales(k, c.scale_eight(d, eight_bytes(first, second).map(|s| s - 32)));
        }
        let high_bits = c.load(bytes_at(block, 0));
        for group in 0..8 {
            let high = c.shl(c.bits(high_bits, group as u32, 1), 2);
            store_at(c, codes, 32 * group, c.add(c.or(two_bits(c, &block[32..96], group), high), 28));
        }
    }
}

/// The eight six-bit scales and mins of Q4_K and Q5_K, times the block's two halves at bytes 0 and 2.
#[inline(always)]
fn scales_and_mins<C: CodeForm>(c: C, block: &[u8], column: &mut Column<'_>) {
    let (d, dmin) = (half_at(c, block, 0), half_at(c, block, 2));
    let [a, b, e] = [4, 8, 12].map(|at| u32::from_le_bytes(*bytes_at(block, at)));
    let two_high = |word: u32| word >> 2 & 0x3030_3030;
    let scales = eight_bytes(a & 0x3f3f_3f3f, four_low(e) | two_high(a));
    let mins = eight_bytes(b & 0x3f3f_3f3f, four_low(e >> 4) | two_high(b));
    column.scales(0, c.scale_eight(d, scales));
    column.mins(0, c.scale_eight(-dmin, mins));
}

/// The low nibble of each byte.
#[inline(always)]
fn four_low(word: u32) -> u32 {
    word & 0x0f0f_0f0f
}

/// The bytes of two words, all below 128.
#[inline(always)]
fn eight_bytes(first: u32, second: u32) -> [i8; 8] {
    (u64::from(first) | u64::from(second) << 32).to_le_bytes().map(|b| b as i8)
}

/// Four bits of 32 elements: low nibbles of 32 bytes are one group, high nibbles the next.
#[inline(always)]
fn four_bits<C: CodeForm>(c: C, quants: &[u8], group: usize) -> C::B {
    c.bits(c.load(bytes_at(quants, 32 * (group / 2))), 4 * (group as u32 % 2), 15)
}

impl Format for Q4K {
    type Kind = K<4, false, true>;
    const LEN: usize = 256;
    const BYTES: usize = 144;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        scales_and_mins(c, block, column);
        for s in 0..8 {
            store_at(c, codes, 32 * s, four_bits(c, &block[16..144], s));
        }
    }
}

impl Format for Q5K {
    type Kind = K<5, false, true>;
    const LEN: usize = 256;
    const BYTES: usize = 176;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        scales_and_mins(c, block, column);
        let fifth_bits = c.load(bytes_at(block, 16));
        for s in 0..8 {
            let fifth = c.shl(c.bits(fifth_bits, s as u32, 1), 4);
            store_at(c, codes, 32 * s, c.or(four_bits(c, &block[48..176], s), fifth));
        }
    }
}

impl Format for Q6K {
    type Kind = K<6, true, false>;
    const LEN: usize = 256;
    const BYTES: usize = 210;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        let d = half_at(c, block, 208);
        for k in [0, 8] {
            let sc: &[u8; 8] = bytes_at(block, 192 + k);
            column.scales(k, c.scale_eight(d, sc.map(|sc| sc as i8)));
        }
        for h in 0..2 {
            let high = c.load(bytes_at(block, 128 + 32 * h));
            for j in 0..4 {
                let low = c.load(bytes_at(block, 64 * h + 32 * (j & 1)));
                let low = c.bits(low, if j < 2 { 0 } else { 4 }, 15);
                let high = c.shl(c.bits(high, 2 * j as u32, 3), 4);
                store_at(c, codes, 128 * h + 32 * j, c.or(low, high));
            }
        }
    }
}

impl Format for Iq4Xs {
    type Kind = K<8, false, false>;
    const LEN: usize = 256;
    const BYTES: usize = 136;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        let d = half_at(c, block, 0);
        let (high, low) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
        let scales = std::array::from_fn(|s| {
            let low = low[s / 2] >> (4 * (s % 2)) & 15;
            (low | ((high >> (2 * s) & 3) as u8) << 4) as i8 - 32
        });
        column.scales(0, c.scale_eight(d, scales));
        let table = iq4_codes::<C>();
        for s in 0..8 {
            let index = c.split_nibbles(bytes_at(block, 8 + 16 * s));
            store_at(c, codes, 32 * s, c.look_up(&table, index));
        }
    }
}
