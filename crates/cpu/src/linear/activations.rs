//! Activation rows as int8 in blocks of 32, laid out for both kinds of kernel.
//!
//! Each row is kept twice. *Plain* is the row as it is, for kernels whose lanes are weight rows (few activation
//! rows). *Panel* holds 16 rows side by side, four elements of each at a time, for kernels whose lanes are
//! activation rows. The second copy costs one 4-byte store per four elements, once per linear; shuffling it
//! together inside the kernel would cost a quarter of a 16-row product.

use super::isa::{Isa, Kind};
use crate::pool::Pool;
use std::marker::PhantomData;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;
/// Rows side by side in a panel: the lanes of the widest vector we have.
pub(crate) const PANEL: usize = 16;

/// Aligned so that no vector load crosses a cache line (a 64-byte load that does costs two).
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// Quantised activations `[rows, n_in]` in reusable buffers: `x = scale * q`, `|q| <= 127`, one scale per 32.
pub struct QuantRows {
    n_in: usize,
    n_rows: usize,
    max_elements: usize,
    plain: Vec<Line<[[i8; BLOCK]; 2]>>,
    scale: Vec<f32>,
    sums: Vec<[i32; 2]>,
    panel: Vec<Line<[[i8; 4]; PANEL]>>,
    panel_scale: Vec<Line<[f32; PANEL]>>,
    panel_sums: Vec<[Line<[i32; PANEL]>; 2]>,
}

impl QuantRows {
    /// Buffers for up to `max_rows` rows of up to `max_in` elements, empty for now.
    pub fn with_capacity(max_rows: usize, max_in: usize) -> Self {
        let padded_in = max_in.next_multiple_of(BLOCK);
        let max_elements = max_rows.next_multiple_of(PANEL) * padded_in;
        let n_blocks = max_elements / BLOCK;
        Self {
            n_in: 0,
            n_rows: 0,
            max_elements,
            plain: vec![Line([[0; BLOCK]; 2]); max_elements / (2 * BLOCK)],
            scale: vec![0.0; n_blocks],
            sums: vec![[0; 2]; n_blocks],
            panel: vec![Line([[0; 4]; PANEL]); max_elements / (4 * PANEL)],
            panel_scale: vec![Line([0.0; PANEL]); n_blocks / PANEL],
            panel_sums: vec![[Line([0; PANEL]); 2]; n_blocks / PANEL],
        }
    }

    pub fn n_in(&self) -> usize {
        self.n_in
    }

    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Sets the shape and hands out the writer of its rows. Rows that are not written keep bytes of earlier use.
    ///
    /// # Panics
    /// If `n_in` is no multiple of 32 or the rows, rounded up to 16, do not fit.
    pub fn begin(&mut self, n_rows: usize, n_in: usize) -> RowWriter<'_> {
        assert!(
            n_in.is_multiple_of(BLOCK),
            "activation rows of {n_in} elements: not whole blocks of {BLOCK}"
        );
        let needed = n_rows.next_multiple_of(PANEL) * n_in;
        assert!(
            needed <= self.max_elements,
            "{n_rows} rows of {n_in} need {needed}, room for {}",
            self.max_elements
        );
        (self.n_in, self.n_rows) = (n_in, n_rows);
        RowWriter {
            n_in,
            n_rows,
            plain: self.plain.as_mut_ptr().cast(),
            scale: self.scale.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            panel: self.panel.as_mut_ptr().cast(),
            panel_scale: self.panel_scale.as_mut_ptr().cast(),
            panel_sums: self.panel_sums.as_mut_ptr().cast(),
            buffers: PhantomData,
        }
    }

    /// Quantises all of `x`, `[rows, n_in]`, with the threads of `pool`: the simple way to fill the buffers.
    pub fn quantise(&mut self, isa: Isa, pool: &Pool, n_in: usize, x: &[f32]) {
        if n_in == 0 {
            self.begin(0, 0);
            return;
        }
        assert!(x.len().is_multiple_of(n_in), "{} activations are not rows of {n_in}", x.len());
        let n_rows = x.len() / n_in;
        let writer = self.begin(n_rows, n_in);
        // A panel a task: rows of one panel share cache lines.
        pool.run(n_rows.div_ceil(PANEL), &|panel| {
            for row in panel * PANEL..((panel + 1) * PANEL).min(n_rows) {
                // SAFETY: every row belongs to one panel and every panel to one task.
                unsafe { writer.quantise_row(isa, row, &x[row * n_in..(row + 1) * n_in]) };
            }
        });
    }

    /// `[n_in]` quants, `[n_in / 32]` scales and half-block sums of one row.
    pub(crate) fn plain_row(&self, row: usize) -> PlainRow<'_> {
        assert!(row < self.n_rows);
        let n_blocks = self.n_in / BLOCK;
        let blocks: &[[i8; BLOCK]] = self.plain.as_flattened_blocks();
        let span = row * n_blocks..(row + 1) * n_blocks;
        PlainRow { quants: &blocks[span.clone()], scale: &self.scale[span.clone()], sums: &self.sums[span] }
    }

    /// Sixteen rows side by side, beginning with row `16 * panel`.
    pub(crate) fn panel(&self, panel: usize) -> Panel<'_> {
        let n_blocks = self.n_in / BLOCK;
        let span = panel * n_blocks..(panel + 1) * n_blocks;
        Panel {
            quants: &self.panel[span.start * (BLOCK / 4)..span.end * (BLOCK / 4)],
            scale: &self.panel_scale[span.clone()],
            sums: &self.panel_sums[span],
        }
    }
}

trait FlattenBlocks {
    fn as_flattened_blocks(&self) -> &[[i8; BLOCK]];
}

impl FlattenBlocks for Vec<Line<[[i8; BLOCK]; 2]>> {
    fn as_flattened_blocks(&self) -> &[[i8; BLOCK]] {
        // SAFETY: `Line` is `repr(C)` around exactly 64 bytes of blocks, so n lines are 2n blocks without gaps.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), 2 * self.len()) }
    }
}

/// One row as the kernels with weight rows in their lanes read it. All three are `[n_in / 32]`.
#[derive(Clone, Copy)]
pub(crate) struct PlainRow<'a> {
    pub(crate) quants: &'a [[i8; BLOCK]],
    pub(crate) scale: &'a [f32],
    pub(crate) sums: &'a [[i32; 2]],
}

/// Sixteen rows as the kernels with activation rows in their lanes read them.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    /// `[n_in / 4]`, then 16 rows, then 4 elements.
    pub(crate) quants: &'a [Line<[[i8; 4]; PANEL]>],
    pub(crate) scale: &'a [Line<[f32; PANEL]>],
    pub(crate) sums: &'a [[Line<[i32; PANEL]>; 2]],
}

/// Writes rows of a [`QuantRows`] from several threads at once.
pub struct RowWriter<'a> {
    n_in: usize,
    n_rows: usize,
    plain: *mut [i8; BLOCK],
    scale: *mut f32,
    sums: *mut [i32; 2],
    panel: *mut [i8; 4],
    panel_scale: *mut f32,
    panel_sums: *mut i32,
    buffers: PhantomData<&'a mut QuantRows>,
}

// SAFETY: it is an exclusive borrow of plain numbers; who writes which row is the contract of `quantise_row`.
unsafe impl Sync for RowWriter<'_> {}
// SAFETY: as above.
unsafe impl Send for RowWriter<'_> {}

impl RowWriter<'_> {
    /// Quantises one row: `scale = max|x| / 127` per block of 32, quants rounded half to even. A block whose largest
    /// magnitude is under 4e-37 becomes zeros. A block that holds an infinity or a NaN gets the scale NaN and
    /// zero quants, so that every product with it is NaN: a broken activation shows, it does not turn plausible.
    ///
    /// # Safety
    /// No two threads write the same row at the same time.
    pub unsafe fn quantise_row(&self, isa: Isa, row: usize, x: &[f32]) {
        assert!(
            row < self.n_rows && x.len() == self.n_in,
            "row {row} of {}: {} for {}",
            self.n_rows,
            x.len(),
            self.n_in
        );
        match isa.kind() {
            Kind::Scalar => self.fill(row, x),
            // SAFETY: an `Isa` exists only where the CPU has it.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { self.fill_avx2(row, x) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => unsafe { self.fill_avx512(row, x) },
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => self.fill(row, x), // NEON is part of the base target: the compiler vectorises it as is
        }
    }

    /// # Safety
    /// The CPU has avx2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn fill_avx2(&self, row: usize, x: &[f32]) {
        self.fill(row, x);
    }

    /// # Safety
    /// The CPU has avx512f, bw and vl.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn fill_avx512(&self, row: usize, x: &[f32]) {
        self.fill(row, x);
    }

    /// `row` and the length of `x` were checked by `quantise_row`.
    #[inline(always)]
    fn fill(&self, row: usize, x: &[f32]) {
        let n_blocks = self.n_in / BLOCK;
        let (panel, lane) = (row / PANEL, row % PANEL);
        let (blocks, _) = x.as_chunks::<BLOCK>();
        for (b, block) in blocks.iter().enumerate() {
            let (scale, quants, sums) = quantise_block(block);
            let (plain, wide) = (row * n_blocks + b, panel * n_blocks + b);
            // SAFETY: `begin` checked that rows rounded up to 16, times `n_in`, fit; all indices below are inside
            // that, and the caller of `quantise_row` sees to it that this row is ours alone.
            unsafe {
                *self.plain.add(plain) = quants;
                *self.scale.add(plain) = scale;
                *self.sums.add(plain) = sums;
                *self.panel_scale.add(wide * PANEL + lane) = scale;
                for (half, sum) in sums.into_iter().enumerate() {
                    *self.panel_sums.add((wide * 2 + half) * PANEL + lane) = sum;
                }
                for (k, four) in quants.as_chunks::<4>().0.iter().enumerate() {
                    *self.panel.add((wide * (BLOCK / 4) + k) * PANEL + lane) = *four;
                }
            }
        }
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
