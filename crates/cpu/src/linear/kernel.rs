//! The quantised product, written once over the few vector operations an instruction set provides.
//!
//! The definition, for one weight row and one activation row (`scalar.rs` is it in plain loops): walk the scale
//! groups (16 or 32 elements) in order with one accumulator,
//! ```text
//! dot  = Σ (code - offset) * q                      integers: exact, any order
//! acc  = fma(float(dot), scale * x_scale, acc)
//! acc  = fma(min, x_scale * float(Σ q), acc)        kinds with mins
//! ```
//! That is the only float order there is. Lanes are different outputs, never parts of one sum, so the bits of a result
//! depend neither on the rows beside it, nor on tile or thread, nor on the instruction set.
//!
//! Weights lie with 16 outputs side by side (`codes.rs`), so lanes need no shuffling: a step of codes is loaded,
//! decoded in registers, and multiplied with four activations broadcast from each of `R` rows. For many rows `panel.rs`
//! decodes once for all of them.

#![expect(clippy::needless_range_loop, reason = "register blocks are small matrices: indices read better")]

use super::activations::{GroupSum, QuantRows, XBlock};
use super::codes::{BLOCK, Codes, OUTS};
use super::format::{Format, Scales};
use super::packed::Packed;
use super::panel;
use std::marker::PhantomData;
use std::ops::Range;

/// The vector operations of one instruction set.
///
/// # Safety
/// Every method needs a CPU with the instruction set, and pointers good for what it reads or writes: `LANES` numbers
/// of the kind its name says, at any alignment.
pub(crate) trait Simd {
    /// Full-range codes are unsigned with offset 128, for instructions that multiply u8 by i8; else signed.
    const UNSIGNED: bool;
    /// 32-bit numbers in a vector; 16 is a multiple of it.
    const LANES: usize;
    /// Vectors of outputs that [`Simd::block`] takes at a time when there are as many.
    const VECTORS: usize;
    /// A vector of floats, of integers, and of four codes a lane.
    type F: Copy;
    type I: Copy;
    type B: Copy;

    unsafe fn load_b(p: *const u8) -> Self::B;
    unsafe fn store_b(p: *mut u8, v: Self::B);
    /// `width` bits of every byte, moved from bit `from` to bit `to`.
    unsafe fn field(v: Self::B, from: u32, to: u32, width: u32) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// `table[v]` for bytes below 16.
    unsafe fn look_up(table: &[u8; 16], v: Self::B) -> Self::B;
    unsafe fn splat_f(v: f32) -> Self::F;
    unsafe fn load_f(p: *const f32) -> Self::F;
    unsafe fn store_f(p: *mut f32, v: Self::F);
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn splat_i(v: i32) -> Self::I;
    unsafe fn to_f(v: Self::I) -> Self::F;
    /// Halves, exactly.
    unsafe fn load_halves(p: *const u8) -> Self::F;
    /// Upper halves of singles.
    unsafe fn load_tops(p: *const u8) -> Self::F;
    /// Signed bytes.
    unsafe fn load_bytes(p: *const u8) -> Self::F;

    /// Adds to `init[r]` the products of steps `first..first + n` of `V` vectors of codes with the quants of `R` rows.
    unsafe fn dots<B: Block, const R: usize, const V: usize>(
        codes: [B; V],
        x: [*const i8; R],
        first: usize,
        n: usize,
        init: [Self::I; R],
    ) -> [[Self::I; V]; R];

    /// Computes [`VECTORS`](Simd::VECTORS) vectors of outputs (if `wide`, else one) of as many rows from `row` as suit
    /// the registers, by [`block`] compiled for this instruction set, and returns how many rows that was.
    unsafe fn block<F: Format>(job: &mut Job<'_>, row: usize, vector: usize, wide: bool) -> usize;

    /// Computes the outputs of as many of `tiles` as suit the registers, for `rows`, by [`panel::columns`] compiled for
    /// this instruction set, and returns how many tiles that was.
    unsafe fn panel<F: Format>(job: &mut Job<'_>, rows: Range<usize>, tiles: Range<usize>) -> usize;
}

/// The codes of a block of 16 rows, as far as they are lanes of one vector, wherever they are.
pub(crate) trait Block: Copy {
    /// As of [`Codes`].
    const BITS: u32;

    /// Step `step` as a kernel multiplies it.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`; the codes can be read.
    unsafe fn step<S: Simd>(self, step: usize) -> S::B;
}

/// Codes as they are packed.
#[derive(Clone, Copy)]
struct PackedBlock<C>(*const u8, PhantomData<C>);

impl<C: Codes> Block for PackedBlock<C> {
    const BITS: u32 = C::BITS;

    #[inline(always)]
    unsafe fn step<S: Simd>(self, step: usize) -> S::B {
        // SAFETY: the caller's promise.
        unsafe { C::step::<S>(self.0, step) }
    }
}

/// A tile to compute: `tile[(r - rows.start) * outs.len() + (o - outs.start)] = dot(W[o], x[r])`, shapes checked by
/// `dot_tile`.
pub(crate) struct Job<'a> {
    pub(crate) w: &'a Packed,
    pub(crate) outs: Range<usize>,
    pub(crate) x: &'a QuantRows,
    pub(crate) rows: Range<usize>,
    pub(crate) tile: &'a mut [f32],
}

/// # Safety
/// The CPU has the instruction set of `S`; the shapes of the job agree.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, F: Format>(mut job: Job<'_>) {
    let mut first_row = job.rows.start;
    loop {
        let rows = panel::rows_of::<F>(first_row..job.rows.end);
        if rows.is_empty() {
            break;
        }
        first_row = rows.end;
        let mut tiles = job.outs.start / OUTS..job.outs.end.div_ceil(OUTS);
        while !tiles.is_empty() {
            // SAFETY: the caller's promise; the tiles hold outputs of the job, and the rows are the job's.
            tiles.start += unsafe { S::panel::<F>(&mut job, rows.clone(), tiles.clone()) };
        }
    }
    let end = job.outs.end.div_ceil(S::LANES);
    let mut vector = job.outs.start / S::LANES;
    while vector < end {
        let wide = vector + S::VECTORS <= end;
        let mut row = first_row;
        while row < job.rows.end {
            // SAFETY: the caller's promise; the vectors begin before the last output and the row is one of the job's.
            row += unsafe { S::block::<F>(&mut job, row, vector, wide) };
        }
        vector += if wide { S::VECTORS } else { 1 };
    }
}

/// `V` vectors of outputs times `R` rows.
///
/// # Safety
/// The CPU has the instruction set of `S`; rows `row..row + R` are the job's, and `V` vectors from `vector` lie in its
/// weights, whose last tile is padded to 16 rows.
#[inline(always)]
pub(crate) unsafe fn block<S: Simd, F: Format, const R: usize, const V: usize>(
    job: &mut Job<'_>,
    row: usize,
    vector: usize,
) {
    let n_blocks = job.x.n_in() / BLOCK;
    let mut lane = [0; V];
    let mut unit = [std::ptr::null::<u8>(); V];
    for v in 0..V {
        let out = (vector + v) * S::LANES;
        unit[v] = job.w.tile(out / OUTS).as_ptr();
        lane[v] = if S::LANES == OUTS { 0 } else { out % OUTS };
    }
    let mut x = [std::ptr::null::<XBlock>(); R];
    for r in 0..R {
        x[r] = job.x.row(row + r).as_ptr();
    }
    // SAFETY: the instruction set is the caller's promise. A tile has a unit for every `F::UNIT` blocks of a row, and
    // lanes `lane..lane + LANES` of each group and line of it.
    let acc = unsafe {
        let mut acc = [[S::splat_f(0.0); V]; R];
        for first in (0..n_blocks).step_by(F::UNIT) {
            let mut factor = [[S::splat_f(0.0); 2]; V];
            for v in 0..V {
                factor[v] = factors::<S, F>(unit[v], lane[v]);
            }
            for b in 0..F::UNIT.min(n_blocks - first) {
                let mut codes = [PackedBlock::<F::Codes>(std::ptr::null(), PhantomData); V];
                for v in 0..V {
                    codes[v].0 = unit[v].add(F::CODES_AT + b * F::BLOCK_BYTES + 4 * lane[v]);
                }
                for group in 0..F::GROUPS {
                    let place = Place { group: b * F::GROUPS + group, unit, lane, factor };
                    acc = add_group::<S, F, _, R, V>(&place, codes, x, group, acc);
                }
                for r in 0..R {
                    x[r] = x[r].add(1);
                }
            }
            for v in 0..V {
                unit[v] = unit[v].wrapping_add(F::UNIT_BYTES);
            }
        }
        acc
    };
    for r in 0..R {
        for v in 0..V {
            let out = (vector + v) * S::LANES;
            // SAFETY: the caller's promise.
            unsafe { store::<S>(job, row + r, out, acc[r][v]) };
        }
    }
}

/// Where the numbers of a scale group are.
pub(crate) trait Numbers<S: Simd, F: Format> {
    /// The scales of vector `v`.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`; the numbers can be read.
    unsafe fn scales(&self, v: usize) -> S::F;
    /// The mins of vector `v`, of a format that has them.
    ///
    /// # Safety
    /// As above.
    unsafe fn mins(&self, v: usize) -> S::F;
}

/// A group's place in the packed weights.
pub(crate) struct Place<S: Simd, const V: usize> {
    /// In the unit.
    pub(crate) group: usize,
    pub(crate) unit: [*const u8; V],
    pub(crate) lane: [usize; V],
    /// Of the unit, by [`factors`].
    pub(crate) factor: [[S::F; 2]; V],
}

impl<S: Simd, const V: usize> Place<S, V> {
    /// The numbers of the group in the table at `at`, of scales (`which` 0) or mins (1).
    ///
    /// # Safety
    /// As [`block`].
    #[inline(always)]
    unsafe fn numbers<F: Format>(&self, at: usize, which: usize, v: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            let p = self.unit[v].add(at + self.group * F::GROUP_BYTES);
            match F::SCALES {
                Scales::Half => S::load_halves(p.add(2 * self.lane[v])),
                Scales::Top => S::load_tops(p.add(2 * self.lane[v])),
                Scales::Small => S::mul(self.factor[v][which], S::load_bytes(p.add(self.lane[v]))),
            }
        }
    }
}

impl<S: Simd, F: Format, const V: usize> Numbers<S, F> for Place<S, V> {
    #[inline(always)]
    unsafe fn scales(&self, v: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { self.numbers::<F>(F::SCALES_AT, 0, v) }
    }
    #[inline(always)]
    unsafe fn mins(&self, v: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { self.numbers::<F>(F::MINS_AT, 1, v) }
    }
}

/// What the small integers of a unit are multiplied with, for scales and for mins; unused by other [`Scales`].
///
/// # Safety
/// The CPU has the instruction set of `S`; the unit can be read.
#[inline(always)]
pub(crate) unsafe fn factors<S: Simd, F: Format>(unit: *const u8, lane: usize) -> [S::F; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        if F::SCALES == Scales::Small {
            [S::load_halves(unit.add(2 * lane)), S::load_halves(unit.add(2 * (OUTS + lane)))]
        } else {
            [S::splat_f(0.0); 2]
        }
    }
}

/// One scale group's share of the sums.
///
/// # Safety
/// The CPU has the instruction set of `S`; the numbers, the codes of the block and the activations can be read.
#[inline(always)]
pub(crate) unsafe fn add_group<S: Simd, F: Format, B: Block, const R: usize, const V: usize>(
    numbers: &impl Numbers<S, F>,
    codes: [B; V],
    x: [*const XBlock; R],
    group: usize,
    mut acc: [[S::F; V]; R],
) -> [[S::F; V]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut quants = [std::ptr::null(); R];
        let mut init = [S::splat_i(0); R];
        for r in 0..R {
            quants[r] = (*x[r]).quants.as_ptr();
            if let Some(bits) = F::offset_log2(S::UNSIGNED) {
                init[r] = S::splat_i(sum_of::<F>(x[r], group).offset >> (7 - bits));
            }
        }
        let steps = if F::HALVES { 4 } else { 8 };
        let dots = S::dots::<B, R, V>(codes, quants, group * steps, steps, init);
        for v in 0..V {
            let scale = numbers.scales(v);
            for r in 0..R {
                let both = S::mul(scale, S::splat_f((*x[r]).scale));
                acc[r][v] = S::fma(S::to_f(dots[r][v]), both, acc[r][v]);
            }
            if F::MIN {
                let min = numbers.mins(v);
                for r in 0..R {
                    acc[r][v] = S::fma(min, S::splat_f(sum_of::<F>(x[r], group).scaled), acc[r][v]);
                }
            }
        }
        acc
    }
}

/// # Safety
/// `x` can be read.
#[inline(always)]
unsafe fn sum_of<F: Format>(x: *const XBlock, group: usize) -> GroupSum {
    // SAFETY: the caller's promise.
    unsafe { if F::HALVES { (*x).halves[group] } else { (*x).whole } }
}

/// Writes the lanes that are outputs of the job.
///
/// # Safety
/// The CPU has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn store<S: Simd>(job: &mut Job<'_>, row: usize, out: usize, sums: S::F) {
    let n_outs = job.outs.len();
    let tile = &mut job.tile[(row - job.rows.start) * n_outs..][..n_outs];
    if job.outs.start <= out && out + S::LANES <= job.outs.end {
        let tile = &mut tile[out - job.outs.start..][..S::LANES];
        // SAFETY: `tile` has room for LANES numbers.
        return unsafe { S::store_f(tile.as_mut_ptr(), sums) };
    }
    let mut lanes = [0.0; OUTS];
    // SAFETY: there is room for 16 numbers.
    unsafe { S::store_f(lanes.as_mut_ptr(), sums) };
    let inside = job.outs.start.max(out)..job.outs.end.min(out + S::LANES);
    if inside.start < inside.end {
        let from = &lanes[inside.start - out..inside.end - out];
        tile[inside.start - job.outs.start..][..from.len()].copy_from_slice(from);
    }
}

/// The largest power of two that neither exceeds `n` nor `most`.
#[inline(always)]
pub(crate) fn power_of_two_up_to(n: usize, most: usize) -> usize {
    1 << n.min(most).ilog2()
}
