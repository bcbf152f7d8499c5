//! The one decoded form of every quantised type, and the tile that holds it.
//!
//! A weight is `scale * (code - offset) + min`: a code byte per element, a scale (and in some types a min) per 16
//! or 32 elements. Thirteen types come down to seven kinds, and the kernels know only kinds. Each decoder is written
//! once, over the byte operations of [`CodeForm`].

/// Weight rows decoded together: the lanes of the widest vector.
pub(crate) const OUTS: usize = 16;
/// Elements of each row decoded together. 16 rows of it are 8 KiB of codes, which with 8 to 16 KiB of activations
/// stay in the first-level cache while every row of activations passes by.
pub(crate) const CHUNK: usize = 512;

/// Sixteen weight rows, 512 elements of each.
#[repr(C, align(64))]
pub(crate) struct Decoded {
    pub(crate) codes: [[u8; CHUNK]; OUTS],
    /// `[scale group][out]`; a group is 16 elements for kinds with `HALVES`, else 32.
    pub(crate) scale: [[f32; OUTS]; CHUNK / 16],
    pub(crate) min: [[f32; OUTS]; CHUNK / 16],
}

impl Decoded {
    pub(crate) const ZERO: Self =
        Self { codes: [[0; CHUNK]; OUTS], scale: [[0.0; OUTS]; CHUNK / 16], min: [[0.0; OUTS]; CHUNK / 16] };

    /// Decodes the whole blocks in `bytes`, at most [`CHUNK`] elements, as row `out` of the tile.
    #[inline(always)]
    pub(crate) fn decode_row<F: Format, C: CodeForm>(&mut self, c: C, out: usize, bytes: &[u8]) {
        let groups_per_block = F::LEN / if F::Kind::HALVES { 16 } else { 32 };
        let codes = self.codes[out].chunks_exact_mut(F::LEN);
        let scales = self.scale.chunks_exact_mut(groups_per_block);
        let mins = self.min.chunks_exact_mut(groups_per_block);
        for (((block, codes), scale), min) in bytes.chunks_exact(F::BYTES).zip(codes).zip(scales).zip(mins) {
            F::decode(c, block, codes, &mut Column { scale, min, out: out % OUTS });
        }
    }
}

/// Where the scales of one block of one weight row go.
pub(crate) struct Column<'a> {
    scale: &'a mut [[f32; OUTS]],
    min: &'a mut [[f32; OUTS]],
    out: usize,
}

impl Column<'_> {
    /// Scales of eight groups.
    #[inline(always)]
    pub(crate) fn scales(&mut self, group: usize, values: [f32; 8]) {
        for (rows, value) in self.scale[group..group + 8].iter_mut().zip(values) {
            rows[self.out] = value;
        }
    }

    /// Mins of eight groups.
    #[inline(always)]
    pub(crate) fn mins(&mut self, group: usize, values: [f32; 8]) {
        for (rows, value) in self.min[group..group + 8].iter_mut().zip(values) {
            rows[self.out] = value;
        }
    }

    #[inline(always)]
    pub(crate) fn scale(&mut self, group: usize, value: f32) {
        self.scale[group][self.out] = value;
    }

    #[inline(always)]
    pub(crate) fn min(&mut self, group: usize, value: f32) {
        self.min[group][self.out] = value;
    }
}

/// What a kernel must know of a type.
pub(crate) trait Kind {
    /// Codes are below `1 << BITS`. Eight means the full range, in the form that [`CodeForm`] says.
    const BITS: u32;
    /// A scale per 16 elements instead of 32.
    const HALVES: bool;
    /// Has mins, and no offset. Kinds without mins have the offset `1 << (BITS - 1)`.
    const MIN: bool;
}

/// The kinds there are, by their three properties.
pub(crate) struct K<const BITS: u32, const HALVES: bool, const MIN: bool>;

impl<const BITS: u32, const HALVES: bool, const MIN: bool> Kind for K<BITS, HALVES, MIN> {
    const BITS: u32 = BITS;
    const HALVES: bool = HALVES;
    const MIN: bool = MIN;
}

/// How an instruction set wants codes, and the operations on 32 bytes that decoders are written in. A value is the
/// proof that the CPU has the instruction set, so the methods are safe. (Left to the compiler, the byte loops of the
/// decoders stayed loops: Q8_0 at one row ran at 2 GB/s.)
pub(crate) trait CodeForm: Copy {
    /// Full-range codes are unsigned with offset 128 (`true`, for instructions that multiply u8 by i8) or signed
    /// with offset 0.
    const FULL_IS_UNSIGNED: bool;
    /// Thirty-two bytes.
    type B: Copy;

    fn load(self, bytes: &[u8; 32]) -> Self::B;
    fn store(self, v: Self::B, codes: &mut [u8; 32]);
    /// Low nibbles, then high nibbles.
    fn split_nibbles(self, bytes: &[u8; 16]) -> Self::B;
    /// `(v >> shift) & mask` of each byte; the mask has no bit that the shift empties.
    fn bits(self, v: Self::B, shift: u32, mask: u8) -> Self::B;
    /// `v << shift` of each byte; no set bit leaves its byte.
    fn shl(self, v: Self::B, shift: u32) -> Self::B;
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    fn xor(self, a: Self::B, b: u8) -> Self::B;
    fn add(self, a: Self::B, b: u8) -> Self::B;
    /// `table[v]` for bytes below 16.
    fn look_up(self, table: &[u8; 16], v: Self::B) -> Self::B;
    /// Byte e is `value` where bit e is set, else 0.
    fn spread_bits(self, bits: u32, value: u8) -> Self::B;
    fn half(self, bits: u16) -> f32;
    /// Starts to fetch the cache line at any address, readable or not.
    fn prefetch(self, p: *const u8);
    /// `factor * small[i]`: the scales of a block, eight at a time (one by one they were half of decoding Q4_K).
    fn scale_eight(self, factor: f32, small: [i8; 8]) -> [f32; 8];
}

/// What turns a signed full-range code into the form's.
#[inline(always)]
pub(crate) const fn full_flip<C: CodeForm>() -> u8 {
    if C::FULL_IS_UNSIGNED { 0x80 } else { 0 }
}

/// What is subtracted from a code, as a power of two; `None` for zero.
#[inline(always)]
pub(crate) const fn offset_log2<K: Kind, C: CodeForm>() -> Option<u32> {
    match K::BITS {
        _ if K::MIN => None,
        8 if !C::FULL_IS_UNSIGNED => None,
        bits => Some(bits - 1),
    }
}

/// A quantised type: the size of its block and how to decode one.
pub(crate) trait Format {
    type Kind: Kind;
    /// Elements and bytes of a block.
    const LEN: usize;
    const BYTES: usize;

    /// `block` has `BYTES` bytes, `codes` room for `LEN`.
    fn decode<C: CodeForm>(c: C, block: &[u8], codes: &mut [u8], column: &mut Column<'_>);
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

/// The half at byte `at` of a block.
#[inline(always)]
pub(crate) fn half_at<C: CodeForm>(c: C, block: &[u8], at: usize) -> f32 {
    c.half(u16::from_le_bytes(*bytes_at(block, at)))
}

/// `N` bytes of a block; `at` is a constant of the format, so the check is gone once compiled.
#[inline(always)]
pub(crate) fn bytes_at<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a format's fields lie inside its block")
}

/// Stores the codes of 32 elements, beginning with element `at` of the block.
#[inline(always)]
pub(crate) fn store_at<C: CodeForm>(c: C, codes: &mut [u8], at: usize, v: C::B) {
    c.store(v, codes[at..].first_chunk_mut().expect("a block's codes have room for its elements"));
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
