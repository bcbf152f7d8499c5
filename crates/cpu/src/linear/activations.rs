//! Activation rows as int8 in blocks of 32, one cache line a block: the quants, and what the kernels would otherwise
//! compute from them again for every 16 outputs.

use super::codes::BLOCK;
use super::isa::{Isa, Kind};
use crate::pool::Pool;
use crate::shared::Shared;

/// Rows quantised in one task: some 16 KiB of results.
const ROWS_PER_TASK: usize = 8;

/// What a scale group of the weights needs of its activations.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GroupSum {
    /// -128 times the sum of the quants: takes the offset of full-range codes back, shifted right that of smaller ones.
    pub(crate) offset: i32,
    /// The scale times the sum of the quants, for mins.
    pub(crate) scaled: f32,
}

/// 32 elements of a row: `x = scale * q`, `|q| <= 127`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct XBlock {
    pub(crate) quants: [i8; BLOCK],
    pub(crate) scale: f32,
    pub(crate) whole: GroupSum,
    pub(crate) halves: [GroupSum; 2],
}

impl XBlock {
    const ZERO: Self = {
        let none = GroupSum { offset: 0, scaled: 0.0 };
        Self { quants: [0; BLOCK], scale: 0.0, whole: none, halves: [none; 2] }
    };
}

/// Quantised activations `[rows, n_in]` in reusable buffers.
pub struct QuantRows {
    n_in: usize,
    n_rows: usize,
    /// `[rows, n_in / 32]`
    blocks: Vec<XBlock>,
}

impl QuantRows {
    /// Buffers for up to `max_rows` rows of up to `max_in` elements, empty for now.
    pub fn with_capacity(max_rows: usize, max_in: usize) -> Self {
        Self { n_in: 0, n_rows: 0, blocks: vec![XBlock::ZERO; max_rows * max_in.div_ceil(BLOCK)] }
    }

    pub fn n_in(&self) -> usize {
        self.n_in
    }

    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Quantises all of `x`, `[rows, n_in]`, with the threads of `pool`.
    ///
    /// # Panics
    /// If `n_in` is no multiple of 32, `x` is not whole rows, or they do not fit.
    pub fn quantise(&mut self, isa: Isa, pool: &Pool, n_in: usize, x: &[f32]) {
        assert!(
            n_in.is_multiple_of(BLOCK),
            "activation rows of {n_in} elements: not whole blocks of {BLOCK}"
        );
        let n_rows = x.len().checked_div(n_in).unwrap_or(0);
        assert!(x.len() == n_rows * n_in, "{} activations are not rows of {n_in}", x.len());
        let per_row = n_in / BLOCK;
        let (needed, room) = (n_rows * per_row, self.blocks.len());
        assert!(needed <= room, "{n_rows} rows of {n_in} are {needed} blocks, room for {room}");
        (self.n_in, self.n_rows) = (n_in, n_rows);
        let blocks = Shared::new(&mut self.blocks);
        pool.run(n_rows.div_ceil(ROWS_PER_TASK), &|task| {
            let rows = task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(n_rows);
            // SAFETY: every row belongs to one task.
            let blocks = unsafe { blocks.write(rows.start * per_row..rows.end * per_row) };
            fill(isa, &x[rows.start * n_in..rows.end * n_in], blocks);
        });
    }

    /// The blocks of one row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[XBlock] {
        assert!(row < self.n_rows, "activation row {row} of {}", self.n_rows);
        let n_blocks = self.n_in / BLOCK;
        &self.blocks[row * n_blocks..(row + 1) * n_blocks]
    }
}

/// `scale = max|x| / 127` per block of 32, quants rounded half to even. A block whose largest magnitude is under 4e-37
/// becomes zeros. A block that holds an infinity or a NaN gets the scale NaN and zero quants, so that every product with
/// it is NaN: a broken activation shows, it does not turn plausible.
fn fill(isa: Isa, x: &[f32], blocks: &mut [XBlock]) {
    match isa.kind() {
        Kind::Scalar => fill_blocks(x, blocks),
        // SAFETY: an `Isa` exists only where the CPU has it.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { fill_avx2(x, blocks) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { fill_avx512(x, blocks) },
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => fill_blocks(x, blocks), // NEON is part of the base target: the compiler vectorises it as is
    }
}

/// # Safety
/// The CPU has avx2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn fill_avx2(x: &[f32], blocks: &mut [XBlock]) {
    fill_blocks(x, blocks);
}

/// # Safety
/// The CPU has avx512f, bw and vl.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn fill_avx512(x: &[f32], blocks: &mut [XBlock]) {
    fill_blocks(x, blocks);
}

#[inline(always)]
fn fill_blocks(x: &[f32], blocks: &mut [XBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let (scale, quants, [low, high]) = quantise_block(x);
        let group = |sum: i32| GroupSum { offset: -128 * sum, scaled: scale * sum as f32 };
        *block = XBlock { quants, scale, whole: group(low + high), halves: [group(low), group(high)] };
    }
}

/// Scale, quants, and the sums of the quants' two halves. The same bits on every machine.
#[inline(always)]
fn quantise_block(x: &[f32; BLOCK]) -> (f32, [i8; BLOCK], [i32; 2]) {
    // Magnitudes compare as integers, with infinity and NaN above every number.
    let max_bits = x.iter().fold(0, |max, v| max.max(v.to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(max_bits);
    let inverse = 127.0 / max;
    if !max.is_finite() {
        return (f32::NAN, [0; BLOCK], [0; 2]);
    }
    if !inverse.is_finite() {
        return (0.0, [0; BLOCK], [0; 2]);
    }
    // Adding 1.5 * 2^23 leaves the number, rounded half to even, in the low bits; it vectorises where
    // `round_ties_even` and a cast do not.
    const ROUND: f32 = 12_582_912.0;
    let quants = x.map(|v| (v * inverse + ROUND).to_bits() as i8);
    let mut sums = [0; 2];
    for (i, q) in quants.iter().enumerate() {
        sums[i / 16] += i32::from(*q);
    }
    (max / 127.0, quants, sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(block: [f32; BLOCK], scale: f32, quants: &[(usize, i8)], case: &str) {
        let (got_scale, got, sums) = quantise_block(&block);
        assert!(got_scale == scale || got_scale.is_nan() && scale.is_nan(), "{case}: scale {got_scale}");
        let mut want = [0; BLOCK];
        quants.iter().for_each(|&(i, q)| want[i] = q);
        assert_eq!(got, want, "{case}");
        let sum = |half: &[i8]| half.iter().map(|&q| i32::from(q)).sum::<i32>();
        assert_eq!(sums, [sum(&got[..16]), sum(&got[16..])], "{case}");
    }

    fn block(values: &[(usize, f32)]) -> [f32; BLOCK] {
        let mut x = [0.0; BLOCK];
        values.iter().for_each(|&(i, v)| x[i] = v);
        x
    }

    #[test]
    #[rustfmt::skip]
    fn a_block_is_rounded_half_to_even_by_its_largest_magnitude() {
        check(block(&[]),                                    0.0,       &[],                          "zeros");
        check(block(&[(0, 127.0), (20, -63.0)]),             1.0,       &[(0, 127), (20, -63)],       "whole numbers");
        check(block(&[(3, -254.0), (4, 1.0), (5, 3.0)]),     2.0,       &[(3, -127), (4, 0), (5, 2)], "halves go to even");
        check(block(&[(31, f32::MAX)]),                      f32::MAX / 127.0, &[(31, 127)],          "the largest number");
        check(block(&[(7, 1e-38), (8, -1e-45)]),             0.0,       &[],                          "too small to invert");
        check(block(&[(7, 4e-37)]),                          4e-37 / 127.0, &[(7, 127)],              "just large enough");
        check(block(&[(1, 5.0), (9, f32::NAN)]),             f32::NAN,  &[],                          "NaN poisons its block");
        check(block(&[(1, 5.0), (9, f32::NEG_INFINITY)]),    f32::NAN,  &[],                          "so does infinity");
    }
}
