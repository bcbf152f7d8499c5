//! The types with blocks of 32.

use super::codes::{Bytes, Iq4, Mxfp4 as Mxfp4Values, Planes, Table};
use super::format::{Format, Raw, Scales};
use overdraft_formats::quant::mxfp4_scale;

pub(crate) struct Q4_0;
pub(crate) struct Q4_1;
pub(crate) struct Q5_0;
pub(crate) struct Q5_1;
pub(crate) struct Q8_0;
pub(crate) struct Iq4Nl;
pub(crate) struct Mxfp4;

/// Sixteen bytes hold elements 0 to 15 in their low halves and 16 to 31 in their high ones.
#[inline(always)]
pub(crate) fn split_nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (i, byte) in bytes[..16].iter().enumerate() {
        codes[i] = byte & 15;
        codes[i + 16] = byte >> 4;
    }
}

/// Adds the fifth bit of 32 codes, element e in bit e.
#[inline(always)]
fn add_fifth_bits(bytes: &[u8], codes: &mut [u8; 256]) {
    for (e, code) in codes[..32].iter_mut().enumerate() {
        *code |= (bytes[e / 8] >> (e % 8) & 1) << 4;
    }
}

#[inline(always)]
pub(crate) fn word_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Declares a type: its codes, its bytes, and where its fields lie.
macro_rules! blocks_of_32 {
    ($name:ident, $codes:ty, $min:expr, $scales:expr, $bytes:expr, |$block:ident, $raw:ident| $read:block) => {
        impl Format for $name {
            type Codes = $codes;
            const HALVES: bool = false;
            const MIN: bool = $min;
            const SCALES: Scales = $scales;
            const LEN: usize = 32;
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn read($block: &[u8], $raw: &mut Raw) {
                $read
            }
        }
    };
}

blocks_of_32!(Q4_0, Planes<true, false, false>, false, Scales::Half, 18, |block, raw| {
    raw.d = word_at(block, 0);
    split_nibbles(&block[2..], &mut raw.codes);
});

blocks_of_32!(Q4_1, Planes<true, false, false>, true, Scales::Half, 20, |block, raw| {
    (raw.d, raw.min) = (word_at(block, 0), word_at(block, 2));
    split_nibbles(&block[4..], &mut raw.codes);
});

blocks_of_32!(Q5_0, Planes<true, false, true>, false, Scales::Half, 22, |block, raw| {
    raw.d = word_at(block, 0);
    split_nibbles(&block[6..], &mut raw.codes);
    add_fifth_bits(&block[2..6], &mut raw.codes);
});

blocks_of_32!(Q5_1, Planes<true, false, true>, true, Scales::Half, 24, |block, raw| {
    (raw.d, raw.min) = (word_at(block, 0), word_at(block, 2));
    split_nibbles(&block[8..], &mut raw.codes);
    add_fifth_bits(&block[4..8], &mut raw.codes);
});

blocks_of_32!(Q8_0, Bytes, false, Scales::Half, 34, |block, raw| {
    raw.d = word_at(block, 0);
    raw.codes[..32].copy_from_slice(&block[2..34]);
});

blocks_of_32!(Iq4Nl, Table<Iq4>, false, Scales::Half, 18, |block, raw| {
    raw.d = word_at(block, 0);
    split_nibbles(&block[2..], &mut raw.codes);
});

blocks_of_32!(Mxfp4, Table<Mxfp4Values>, false, Scales::Top, 17, |block, raw| {
    // A power of two, subnormal at the least: all of it is in the upper half.
    raw.d = (mxfp4_scale(block[0]).to_bits() >> 16) as u16;
    split_nibbles(&block[1..], &mut raw.codes);
});
