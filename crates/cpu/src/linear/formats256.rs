//! The types with blocks of 256: a scale of scales, and small integers for each 16 or 32 elements.

use super::codes::{Iq4, Planes, Table};
use super::format::{Format, Raw, Scales};
use super::formats32::{split_nibbles, word_at};

pub(crate) struct Q2K;
pub(crate) struct Q3K;
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;
pub(crate) struct Iq4Xs;

/// The sign is part of the definition: a min is added, these types subtract theirs.
const NEGATIVE: u16 = 0x8000;

/// Declares a type: its codes, groups, mins, bytes, and where its fields lie.
macro_rules! blocks_of_256 {
    ($name:ident, $codes:ty, $halves:expr, $min:expr, $bytes:expr, |$block:ident, $raw:ident| $read:block) => {
        impl Format for $name {
            type Codes = $codes;
            const HALVES: bool = $halves;
            const MIN: bool = $min;
            const SCALES: Scales = Scales::Small;
            const LEN: usize = 256;
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn read($block: &[u8], $raw: &mut Raw) {
                $read
            }
        }
    };
}

/// `(from >> shift) & mask` of each byte. A loop over an array, which the compiler makes a vector operation of; with `map`
/// it called a closure for each byte, a third of the packing.
#[inline(always)]
fn bits(from: &[u8; 32], shift: usize, mask: u8) -> [u8; 32] {
    let mut out = [0; 32];
    for (out, byte) in out.iter_mut().zip(from) {
        *out = byte >> shift & mask;
    }
    out
}

/// `a | b << shift` of each byte.
#[inline(always)]
fn join(mut a: [u8; 32], b: [u8; 32], shift: usize) -> [u8; 32] {
    for (a, b) in a.iter_mut().zip(b) {
        *a |= b << shift;
    }
    a
}

/// Fills a block's codes by eighths of 32 elements.
#[inline(always)]
fn each_eighth(codes: &mut [u8; 256], code: impl Fn(usize) -> [u8; 32]) {
    for (s, eighth) in codes.as_chunks_mut().0.iter_mut().enumerate() {
        *eighth = code(s);
    }
}

/// `N` times 32 bytes of a block.
#[inline(always)]
fn rows_at<const N: usize>(block: &[u8], at: usize) -> &[[u8; 32]; N] {
    block[at..].as_chunks().0.first_chunk().expect("a type's fields lie inside its block")
}

blocks_of_256!(Q2K, Planes<false, true, false>, true, true, 84, |block, raw| {
    (raw.d, raw.min) = (word_at(block, 80), word_at(block, 82) ^ NEGATIVE);
    for ((scale, min), byte) in raw.scales.iter_mut().zip(&mut raw.mins).zip(&block[..16]) {
        (*scale, *min) = ((byte & 15) as i8, (byte >> 4) as i8);
    }
    let low: &[_; 2] = rows_at(block, 16);
    each_eighth(&mut raw.codes, |s| bits(&low[s / 4], 2 * (s % 4), 3));
});

blocks_of_256!(Q3K, Planes<false, true, true>, true, false, 110, |block, raw| {
    raw.d = word_at(block, 108);
    let packed = &block[96..108];
    for k in 0..16 {
        let low = packed[k % 8] >> (4 * (k / 8)) & 15;
        let high = packed[8 + k % 4] >> (2 * (k / 4)) & 3;
        raw.scales[k] = (low | high << 4) as i8 - 32;
    }
    let ([high], low): (&[_; 1], &[_; 2]) = (rows_at(block, 0), rows_at(block, 32));
    each_eighth(&mut raw.codes, |s| join(bits(&low[s / 4], 2 * (s % 4), 3), bits(high, s, 1), 2));
});

/// The eight six-bit scales and mins of Q4_K and Q5_K, and their factors at bytes 0 and 2.
#[inline(always)]
fn scales_and_mins(block: &[u8], raw: &mut Raw) {
    (raw.d, raw.min) = (word_at(block, 0), word_at(block, 2) ^ NEGATIVE);
    let packed = &block[4..16];
    for s in 0..4 {
        (raw.scales[s], raw.mins[s]) = ((packed[s] & 63) as i8, (packed[s + 4] & 63) as i8);
        let both = packed[s + 8];
        raw.scales[s + 4] = (both & 15 | packed[s] >> 6 << 4) as i8;
        raw.mins[s + 4] = (both >> 4 | packed[s + 4] >> 6 << 4) as i8;
    }
}

blocks_of_256!(Q4K, Planes<true, false, false>, false, true, 144, |block, raw| {
    scales_and_mins(block, raw);
    let low: &[_; 4] = rows_at(block, 16);
    each_eighth(&mut raw.codes, |s| bits(&low[s / 2], 4 * (s % 2), 15));
});

blocks_of_256!(Q5K, Planes<true, false, true>, false, true, 176, |block, raw| {
    scales_and_mins(block, raw);
    let ([high], low): (&[_; 1], &[_; 4]) = (rows_at(block, 16), rows_at(block, 48));
    each_eighth(&mut raw.codes, |s| join(bits(&low[s / 2], 4 * (s % 2), 15), bits(high, s, 1), 4));
});

blocks_of_256!(Q6K, Planes<true, true, false>, true, false, 210, |block, raw| {
    raw.d = word_at(block, 208);
    for (scale, byte) in raw.scales.iter_mut().zip(&block[192..208]) {
        *scale = *byte as i8;
    }
    let (low, high): (&[_; 4], &[_; 2]) = (rows_at(block, 0), rows_at(block, 128));
    each_eighth(&mut raw.codes, |s| {
        let (h, j) = (s / 4, s % 4);
        join(bits(&low[2 * h + j % 2], 4 * (j / 2), 15), bits(&high[h], 2 * j, 3), 4)
    });
});

blocks_of_256!(Iq4Xs, Table<Iq4>, false, false, 136, |block, raw| {
    raw.d = word_at(block, 0);
    let high = word_at(block, 2);
    for s in 0..8 {
        let low = block[4 + s / 2] >> (4 * (s % 2)) & 15;
        raw.scales[s] = (low | ((high >> (2 * s) & 3) as u8) << 4) as i8 - 32;
        split_nibbles(&block[8 + 16 * s..], &mut raw.codes[32 * s..]);
    }
});
