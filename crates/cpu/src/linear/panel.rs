//! Many rows: weights are decoded once for all of them.
//!
//! [`kernel::block`] decodes weights again for every few rows. Here a *panel*, some vectors of outputs and [`DEPTH`] blocks
//! of their weights, is decoded into the first-level cache, and all rows go over it, [`ROWS`] at a time, before the next
//! one; their sums wait beside it. The order and the rounding of every sum are those of `kernel.rs`.

#![expect(clippy::needless_range_loop, reason = "register blocks are small matrices: indices read better")]

use super::activations::XBlock;
use super::codes::{BLOCK, Codes, LINE, OUTS, STEPS};
use super::format::Format;
use super::kernel::{self, Block, Job, Numbers, Place, Simd};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Blocks of a panel: the longest unit there is. More would not stay in a first-level cache that two threads share.
const DEPTH: usize = 8;
/// Sixteens of outputs in the largest panel.
const TILES: usize = 3;
/// Rows of a pass. With three vectors of AVX-512 they have 12 sums and 12 integer sums, and 32 registers are enough.
const ROWS: usize = 4;
/// Passes over a panel at most.
const PASSES: usize = 16;

/// The first of `rows` that panels are worth: none, or up to 64. One or two that are left over a pass cost less alone;
/// three fill it with one of them twice.
///
/// Over eight rows at a time, by turns in the second-level cache of an Ice Lake (`--example dot_speed`), medians of 25:
/// ```text
///          avx512-vnni, rows 16   32   64    avx2, rows 16   32   64
/// Q6_K                     1.41 1.57 1.66              1.32 1.39 1.40
/// Q5_K                     1.21 1.38 1.48              1.42 1.53 1.60
/// Q4_K                     0.97 1.04 1.08              1.03 1.12 1.12
/// Q8_0                     0.97 1.02 1.07              1.00 1.03 1.06
/// ```
/// so codes that are cheap to decode wait for more rows (their column of 16 was measured without waiting).
pub(crate) fn rows_of<F: Format>(rows: Range<usize>) -> Range<usize> {
    let least = if <F::Codes as Codes>::CHEAP { 24 } else { 9 };
    let n = rows.len().min(ROWS * PASSES);
    let left = n % ROWS;
    let n = match n {
        _ if n < least => 0,
        _ if left < 3 => n - left,
        _ => n,
    };
    rows.start..rows.start + n
}

/// Weights of a panel as a kernel multiplies them, with the groups of a block one after the other, and sums of rows.
#[repr(C, align(64))]
struct Panel {
    codes: [[[[u8; LINE]; STEPS]; DEPTH]; TILES],
    scales: [[[f32; OUTS]; 2 * DEPTH]; TILES],
    mins: [[[f32; OUTS]; 2 * DEPTH]; TILES],
    sums: [[[[f32; OUTS]; TILES]; ROWS]; PASSES],
}

/// A block of a panel.
#[derive(Clone, Copy)]
struct Kept<C>(*const u8, PhantomData<C>);

impl<C: Codes> Block for Kept<C> {
    const BITS: u32 = C::BITS;

    #[inline(always)]
    unsafe fn step<S: Simd>(self, step: usize) -> S::B {
        // SAFETY: the caller's promise.
        unsafe { S::load_b(self.0.add(step * LINE)) }
    }
}

/// A scale group of a panel: where vector `v` has its numbers.
#[derive(Clone, Copy)]
struct KeptNumbers<const V: usize> {
    scales: [*mut f32; V],
    mins: [*mut f32; V],
}

impl<const V: usize> KeptNumbers<V> {
    /// Those of group `group` of the panel, vector `v` being in tile and lane `places[v]`.
    ///
    /// # Safety
    /// The panel has such places.
    #[inline(always)]
    unsafe fn of(panel: *mut Panel, group: usize, places: [(usize, usize); V]) -> Self {
        let mut numbers = Self { scales: [std::ptr::null_mut(); V], mins: [std::ptr::null_mut(); V] };
        for v in 0..V {
            let (tile, lane) = places[v];
            // SAFETY: the caller's promise.
            unsafe {
                numbers.scales[v] = (&raw mut (*panel).scales[tile][group]).cast::<f32>().add(lane);
                numbers.mins[v] = (&raw mut (*panel).mins[tile][group]).cast::<f32>().add(lane);
            }
        }
        numbers
    }
}

impl<S: Simd, F: Format, const V: usize> Numbers<S, F> for KeptNumbers<V> {
    #[inline(always)]
    unsafe fn scales(&self, v: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f(self.scales[v]) }
    }
    #[inline(always)]
    unsafe fn mins(&self, v: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f(self.mins[v]) }
    }
}

/// `V` vectors of outputs from the first of `tile` on times all of `rows`.
///
/// # Safety
/// The CPU has the instruction set of `S`; the rows are the job's, and as many as [`rows_of`] says; `V` vectors from
/// `tile` on lie in the job's weights, whose last tile is padded to 16 rows.
#[inline(always)]
pub(crate) unsafe fn columns<S: Simd, F: Format, const V: usize>(
    job: &mut Job<'_>,
    rows: Range<usize>,
    tile: usize,
) {
    const { assert!(V * S::LANES <= TILES * OUTS && (V * S::LANES).is_multiple_of(OUTS)) };
    let n_blocks = job.x.n_in() / BLOCK;
    let tile_bytes = F::tile_bytes(job.x.n_in());
    let weights = job.w.tile(tile).as_ptr();
    let mut panel = MaybeUninit::<Panel>::uninit();
    let panel = panel.as_mut_ptr();
    for first in (0..n_blocks).step_by(DEPTH) {
        let blocks = first..n_blocks.min(first + DEPTH);
        for t in 0..V * S::LANES / OUTS {
            let units = weights.wrapping_add(t * tile_bytes + first / F::UNIT * F::UNIT_BYTES);
            // SAFETY: the tile has units for all blocks of its rows, and the panel room for `DEPTH` of them.
            unsafe { decode::<S, F>(units, blocks.len(), panel, t) };
        }
        for (pass, row) in rows.clone().step_by(ROWS).enumerate() {
            let mut x = [std::ptr::null::<XBlock>(); ROWS];
            for r in 0..ROWS {
                x[r] = job.x.row((row + r).min(rows.end - 1))[blocks.clone()].as_ptr();
            }
            // SAFETY: the rows are the job's, and the panel holds these blocks.
            unsafe { add_products::<S, F, ROWS, V>(x, pass, blocks.clone(), panel) };
        }
    }
    for row in rows.clone() {
        for v in 0..V {
            let at = (row - rows.start) * TILES * OUTS + v * S::LANES;
            // SAFETY: every pass wrote its sums.
            unsafe {
                let sums = S::load_f((&raw const (*panel).sums).cast::<f32>().add(at));
                kernel::store::<S>(job, row, tile * OUTS + v * S::LANES, sums);
            }
        }
    }
}

/// Lays the first `n_blocks` blocks from `units` into tile `tile` of the panel.
///
/// # Safety
/// The CPU has the instruction set of `S`; the units can be read, the panel written, and it has room.
#[inline(always)]
unsafe fn decode<S: Simd, F: Format>(units: *const u8, n_blocks: usize, panel: *mut Panel, tile: usize) {
    for b in 0..n_blocks {
        for lane in (0..OUTS).step_by(S::LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let unit = units.add(b / F::UNIT * F::UNIT_BYTES);
                let codes = unit.add(F::CODES_AT + b % F::UNIT * F::BLOCK_BYTES + 4 * lane);
                for step in 0..STEPS {
                    let to = (&raw mut (*panel).codes[tile][b][step]).cast::<u8>().add(4 * lane);
                    S::store_b(to, F::Codes::step::<S>(codes, step));
                }
                let factor = [kernel::factors::<S, F>(unit, lane)];
                for group in 0..F::GROUPS {
                    let in_unit = b % F::UNIT * F::GROUPS + group;
                    let place = Place { group: in_unit, unit: [unit], lane: [lane], factor };
                    let to = KeptNumbers::<1>::of(panel, b * F::GROUPS + group, [(tile, lane)]);
                    S::store_f(to.scales[0], Numbers::<S, F>::scales(&place, 0));
                    if F::MIN {
                        S::store_f(to.mins[0], Numbers::<S, F>::mins(&place, 0));
                    }
                }
            }
        }
    }
}

/// Adds the products of `R` rows with the blocks that the panel holds, `blocks` of a row, to the sums of pass `pass`.
///
/// # Safety
/// The CPU has the instruction set of `S`; the rows can be read from `x` on for all blocks, and the panel was filled.
#[inline(always)]
unsafe fn add_products<S: Simd, F: Format, const R: usize, const V: usize>(
    mut x: [*const XBlock; R],
    pass: usize,
    blocks: Range<usize>,
    panel: *mut Panel,
) {
    let mut places = [(0, 0); V];
    for v in 0..V {
        places[v] = (v * S::LANES / OUTS, v * S::LANES % OUTS);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let sums = (&raw mut (*panel).sums[pass]).cast::<f32>();
        let mut acc = [[S::splat_f(0.0); V]; R];
        if blocks.start > 0 {
            for r in 0..R {
                for v in 0..V {
                    acc[r][v] = S::load_f(sums.add(r * TILES * OUTS + v * S::LANES));
                }
            }
        }
        for b in 0..blocks.len() {
            let mut codes = [Kept::<F::Codes>(std::ptr::null(), PhantomData); V];
            for v in 0..V {
                let (tile, lane) = places[v];
                codes[v].0 = (&raw const (*panel).codes[tile][b]).cast::<u8>().add(4 * lane);
            }
            for group in 0..F::GROUPS {
                let numbers = KeptNumbers::of(panel, b * F::GROUPS + group, places);
                acc = kernel::add_group::<S, F, _, R, V>(&numbers, codes, x, group, acc);
            }
            for r in 0..R {
                x[r] = x[r].add(1);
            }
        }
        for r in 0..R {
            for v in 0..V {
                S::store_f(sums.add(r * TILES * OUTS + v * S::LANES), acc[r][v]);
            }
        }
    }
}
