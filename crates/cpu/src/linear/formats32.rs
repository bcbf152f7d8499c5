//! Decoders of the types with blocks of 32.

use super::decode::{CodeForm, Column, Format, K, bytes_at, full_flip, half_at, store_at};

pub(crate) struct Q4_0;
pub(crate) struct Q4_1;
pub(crate) struct Q5_0;
pub(crate) struct Q5_1;
pub(crate) struct Q8_0;
pub(crate) struct Iq4Nl;
pub(crate) struct Mxfp4;

/// The values of IQ4_NL and IQ4_XS.
pub(crate) const IQ4_TABLE: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of MXFP4, plus the offset of five-bit codes.
const MXFP4_CODES: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

#[inline(always)]
pub(crate) fn iq4_codes<C: CodeForm>() -> [u8; 16] {
    IQ4_TABLE.map(|value| value as u8 ^ full_flip::<C>())
}

impl Format for Q4_0 {
    type Kind = K<4, false, false>;
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        store_at(c, codes, 0, c.split_nibbles(bytes_at(block, 2)));
        column.scale(0, half_at(c, block, 0));
    }
}

impl Format for Q4_1 {
    type Kind = K<4, false, true>;
    const LEN: usize = 32;
    const BYTES: usize = 20;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        store_at(c, codes, 0, c.split_nibbles(bytes_at(block, 4)));
        column.scale(0, half_at(c, block, 0));
        column.min(0, half_at(c, block, 2));
    }
}

impl Format for Q5_0 {
    type Kind = K<5, false, false>;
    const LEN: usize = 32;
    const BYTES: usize = 22;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        let fifth = c.spread_bits(u32::from_le_bytes(*bytes_at(block, 2)), 16);
        store_at(c, codes, 0, c.or(c.split_nibbles(bytes_at(block, 6)), fifth));
        column.scale(0, half_at(c, block, 0));
    }
}

impl Format for Q5_1 {
    type Kind = K<5, false, true>;
    const LEN: usize = 32;
    const BYTES: usize = 24;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        let fifth = c.spread_bits(u32::from_le_bytes(*bytes_at(block, 4)), 16);
        store_at(c, codes, 0, c.or(c.split_nibbles(bytes_at(block, 8)), fifth));
        column.scale(0, half_at(c, block, 0));
        column.min(0, half_at(c, block, 2));
    }
}

impl Format for Q8_0 {
    type Kind = K<8, false, false>;
    const LEN: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        store_at(c, codes, 0, c.xor(c.load(bytes_at(block, 2)), full_flip::<C>()));
        column.scale(0, half_at(c, block, 0));
    }
}

impl Format for Iq4Nl {
    type Kind = K<8, false, false>;
    const LEN: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        store_at(c, codes, 0, c.look_up(&iq4_codes::<C>(), c.split_nibbles(bytes_at(block, 2))));
        column.scale(0, half_at(c, block, 0));
    }
}

impl Format for Mxfp4 {
    type Kind = K<5, false, false>;
    const LEN: usize = 32;
    const BYTES: usize = 17;

    #[inline(always)]
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>) {
        store_at(c, codes, 0, c.look_up(&MXFP4_CODES, c.split_nibbles(bytes_at(block, 1))));
        // 2^(e - 128); the two smallest are subnormal singles.
        let e = u32::from(block[0]);
        column.scale(0, f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 }));
    }
}
