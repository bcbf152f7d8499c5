//! What the kernels and the packer know of a quantised type: how its file block reads, and how its scales are kept.
//!
//! A weight is `scale * (code - offset) + min`, with a scale (and in some types a min) per 16 or 32 elements. In memory
//! a tile of 16 rows is a run of *units*, each a head of scales and then the lines of its blocks' codes:
//! ```text
//! Half, Top    unit of 1 or 2 blocks   scales [group][16 rows] u16, mins likewise
//! Small        unit of 8 blocks        d [16] f16, -dmin [16] f16, scales [group][16] i8, mins likewise
//! ```
//! rounded up to a whole line, so that every line of codes is one cache line. Scales stay as small as in the file: at one
//! row they are bytes to be read like all others. As floats they would be a third of Q4_K.

use super::codes::{BLOCK, Codes, LINE, OUTS};

/// How the scales of a type are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// One half for each group.
    Half,
    /// One number for each group, the upper half of a single.
    Top,
    /// A half for 256 elements times a small integer for each group. The product is exact in a single: 11 and at most 8
    /// bits.
    Small,
}

/// A block of the file in parts. Types use as much of it as they have.
pub(crate) struct Raw {
    pub(crate) codes: [u8; 256],
    /// Scale and min of a block as 16 bits; for [`Scales::Small`] the factors of the two below.
    pub(crate) d: u16,
    pub(crate) min: u16,
    pub(crate) scales: [i8; 16],
    pub(crate) mins: [i8; 16],
}

impl Raw {
    pub(crate) const ZERO: Self = Self { codes: [0; 256], d: 0, min: 0, scales: [0; 16], mins: [0; 16] };
}

/// A quantised type.
pub(crate) trait Format {
    type Codes: Codes;
    /// A scale per 16 elements instead of 32.
    const HALVES: bool;
    /// Has mins, and codes without an offset.
    const MIN: bool;
    const SCALES: Scales;
    /// Elements and bytes of a block of the file.
    const LEN: usize;
    const BYTES: usize;

    /// `block` has `BYTES` bytes.
    fn read(block: &[u8], raw: &mut Raw);

    /// Scale groups of a block of 32.
    const GROUPS: usize = if Self::HALVES { 2 } else { 1 };
    /// Blocks of 32 in a unit: as many as fill whole lines with scales.
    const UNIT: usize = match Self::SCALES {
        Scales::Small => 8,
        _ if Self::MIN => 1,
        _ => 2,
    };
    /// Where a unit's scales begin, where its mins, and its codes.
    const SCALES_AT: usize = if matches!(Self::SCALES, Scales::Small) { 2 * OUTS * 2 } else { 0 };
    /// Bytes of one group's scales.
    const GROUP_BYTES: usize = if matches!(Self::SCALES, Scales::Small) { OUTS } else { 2 * OUTS };
    const MINS_AT: usize = Self::SCALES_AT + Self::UNIT * Self::GROUPS * Self::GROUP_BYTES;
    const CODES_AT: usize = {
        let mins = if Self::MIN { Self::UNIT * Self::GROUPS * Self::GROUP_BYTES } else { 0 };
        (Self::MINS_AT + mins).next_multiple_of(LINE)
    };
    const BLOCK_BYTES: usize = <Self::Codes as Codes>::LINES * LINE;
    const UNIT_BYTES: usize = Self::CODES_AT + Self::UNIT * Self::BLOCK_BYTES;

    /// What is subtracted from a code, as a power of two; `None` for zero.
    #[inline(always)]
    fn offset_log2(unsigned: bool) -> Option<u32> {
        match <Self::Codes as Codes>::BITS {
            _ if Self::MIN => None,
            8 if !unsigned => None,
            bits => Some(bits - 1),
        }
    }

    /// Bytes of 16 rows of `n_in` elements.
    fn tile_bytes(n_in: usize) -> usize {
        (n_in / BLOCK).div_ceil(Self::UNIT) * Self::UNIT_BYTES
    }
}

/// IEEE half to single, exact, without a branch and without arithmetic on subnormal singles (a microcode assist of
/// over a hundred cycles; subnormal scales are common in K-quants).
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    let normal = (magnitude << 13) + (112 << 23);
    let subnormal = (magnitude as f32 * 2f32.powi(-24)).to_bits();
    let special = (magnitude << 13) | 0x7f80_0000;
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7c00 { finite } else { special })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#06x}: {got} for {want}"
            );
        }
    }
}
