//! The quantised product, written once over the few vector operations an instruction set provides.
//!
//! The definition, for one weight row and one activation row (`scalar.rs` is it in plain loops): walk the scale
//! groups (16 or 32 elements) in order with one accumulator,
//! ```text
//! dot  = Σ (code - offset) * q                      integers: exact, any order
//! acc  = fma(float(dot), scale * x_scale, acc)
//! acc  = fma(min, x_scale * float(Σ q), acc)        kinds with mins
//! ```
//! That is the only float order there is. Lanes are different outputs or different rows, never parts of one sum, so
//! the bits of a result depend neither on the rows beside it, nor on tile or thread, nor on the instruction set.
//! The price is a transposing sum of lanes in the few-row kernel, 3 instructions a block, hidden behind memory.

#![expect(clippy::needless_range_loop, reason = "register blocks are small matrices: indices read better")]

use super::activations::{BLOCK, PANEL, PlainRow, QuantRows};
use super::decode::{CHUNK, CodeForm, Decoded, Format, Kind, OUTS, offset_log2};
use std::ops::Range;

/// The vector operations of one instruction set.
///
/// # Safety
/// Every method needs a CPU with the instruction set, and pointers good for what it reads or writes: `LANES`
/// numbers for loads and stores, and as said at the two products.
pub(crate) trait Simd: CodeForm {
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn new() -> Self;

    /// Numbers in a vector, at most 16.
    const LANES: usize;
    /// Up to this many rows go through the few-row kernel, at most [`MAX_FEW_ROWS`]. Where the two cost the same; both
    /// give the same bits.
    fn few_rows_limit<K: Kind>() -> usize;
    type F: Copy;
    type I: Copy;

    unsafe fn splat_f(v: f32) -> Self::F;
    unsafe fn load_f(p: *const f32) -> Self::F;
    unsafe fn store_f(p: *mut f32, v: Self::F);
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn splat_i(v: i32) -> Self::I;
    unsafe fn load_i(p: *const i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl_i(v: Self::I, bits: u32) -> Self::I;
    unsafe fn to_f(v: Self::I) -> Self::F;

    /// Lanes are weight rows: for `LANES` rows of codes, `CHUNK` bytes apart, the sums of the first and second 16
    /// products with the 32 quants at `x`.
    unsafe fn dot_outs<K: Kind>(codes: *const u8, x: *const i8) -> [Self::I; 2];

    /// Lanes are activation rows: adds to `init[v]` the products of one scale group (16 elements if `K::HALVES`,
    /// else 32) of `O` weight rows, `CHUNK` bytes apart, with `V` vectors of panel rows, 64 bytes per 4 elements.
    unsafe fn dot_panel<K: Kind, const O: usize, const V: usize>(
        codes: *const u8,
        x: [*const i8; V],
        init: [Self::I; V],
    ) -> [[Self::I; V]; O];

    /// [`few_rows`] compiled for this instruction set.
    unsafe fn few_rows<K: Kind>(w: &Decoded, n_outs: usize, x: PlainRow<'_>, acc: &mut [f32; OUTS]);
    /// [`many_rows`] compiled for this instruction set, with the register blocking that suits it.
    unsafe fn many_rows<K: Kind>(w: &Decoded, pass: &mut Pass<'_>);
}

/// A tile to compute: `tile[o * rows.len() + r] = dot(W[o], x[rows.start + r])`, shapes checked by `dot_tile`.
pub(crate) struct Job<'a> {
    /// Whole weight rows of `row_bytes` each.
    pub(crate) weights: &'a [u8],
    pub(crate) row_bytes: usize,
    pub(crate) x: &'a QuantRows,
    pub(crate) rows: Range<usize>,
    pub(crate) tile: &'a mut [f32],
}

/// One decoded chunk against all rows of a job.
pub(crate) struct Pass<'a> {
    pub(crate) x: &'a QuantRows,
    pub(crate) rows: Range<usize>,
    /// The chunk, in blocks of 32.
    pub(crate) blocks: Range<usize>,
    /// `[n_outs, rows]`: partial sums after the first chunk, results after the last.
    pub(crate) tile: &'a mut [f32],
}

/// Decodes sixteen weight rows, 512 elements at a time, and multiplies each chunk with every row.
///
/// # Safety
/// The CPU has the instruction set of `S`; the shapes of the job agree.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, F: Format>(job: Job<'_>) {
    let n_rows = job.rows.len();
    let few = n_rows <= S::few_rows_limit::<F::Kind>();
    let chunk_bytes = CHUNK / F::LEN * F::BYTES;
    let chunk_blocks = CHUNK / BLOCK;
    let n_blocks = job.x.n_in() / BLOCK;
    // SAFETY: the caller's promise.
    let simd = unsafe { S::new() };
    let mut w = Decoded::ZERO;
    let weights = job.weights.chunks(OUTS * job.row_bytes);
    for (weights, tile) in weights.zip(job.tile.chunks_mut(OUTS * n_rows)) {
        let n_outs = weights.len() / job.row_bytes;
        let mut acc = [[0.0; OUTS]; MAX_FEW_ROWS];
        for first_block in (0..n_blocks).step_by(chunk_blocks) {
            let at = first_block / chunk_blocks * chunk_bytes;
            let bytes = at..(at + chunk_bytes).min(job.row_bytes);
            // Sixteen rows in short pieces are too many streams for the hardware to look ahead in: from the last chunk
            // of a row it goes to the first one sixteen rows on.
            let ahead = if bytes.end < job.row_bytes { bytes.end } else { OUTS * job.row_bytes };
            for (out, row) in weights.chunks_exact(job.row_bytes).enumerate() {
                let next = row.as_ptr().wrapping_add(ahead);
                for line in (0..bytes.len()).step_by(64) {
                    simd.prefetch(next.wrapping_add(line));
                }
                w.decode_row::<F, S>(simd, out, &row[bytes.clone()]);
            }
            let blocks = first_block..(first_block + chunk_blocks).min(n_blocks);
            if !few {
                let mut pass = Pass { x: job.x, rows: job.rows.clone(), blocks, tile };
                // SAFETY: the caller's promise.
                unsafe { S::many_rows::<F::Kind>(&w, &mut pass) };
                continue;
            }
            for (row, acc) in job.rows.clone().zip(&mut acc) {
                let x = job.x.plain_row(row);
                let x = PlainRow {
                    quants: &x.quants[blocks.clone()],
                    scale: &x.scale[blocks.clone()],
                    sums: &x.sums[blocks.clone()],
                };
                // SAFETY: the caller's promise.
                unsafe { S::few_rows::<F::Kind>(&w, n_outs, x, acc) };
            }
        }
        if few {
            for (r, acc) in acc[..n_rows].iter().enumerate() {
                for (out, value) in acc[..n_outs].iter().enumerate() {
                    tile[out * n_rows + r] = *value;
                }
            }
        }
    }
}

/// Sums the few-row kernel may keep at once.
pub(crate) const MAX_FEW_ROWS: usize = 9;

/// One chunk of one activation row times the decoded rows; lanes are weight rows.
///
/// # Safety
/// The CPU has the instruction set of `S`; `x` is at most a chunk.
#[inline(always)]
pub(crate) unsafe fn few_rows<S: Simd, K: Kind>(
    w: &Decoded,
    n_outs: usize,
    x: PlainRow<'_>,
    acc: &mut [f32; OUTS],
) {
    debug_assert!(x.quants.len() <= CHUNK / BLOCK);
    // SAFETY: the instruction set is the caller's promise. `out` plus the lanes stays within OUTS, and blocks within
    // the chunk, so all reads of `w` are inside its arrays; rows past `n_outs` hold bytes of earlier use.
    unsafe {
        for out in (0..n_outs).step_by(S::LANES) {
            let mut sum = S::load_f(acc.as_ptr().add(out));
            for (b, ((quants, &x_scale), &[low, high])) in
                x.quants.iter().zip(x.scale).zip(x.sums).enumerate()
            {
                let codes = w.codes[out].as_ptr().add(b * BLOCK);
                let dots = S::dot_outs::<K>(codes, quants.as_ptr());
                if K::HALVES {
                    for (half, (dot, x_sum)) in dots.into_iter().zip([low, high]).enumerate() {
                        sum = add_outs::<S, K>(w, out, 2 * b + half, dot, x_scale, x_sum, sum);
                    }
                } else {
                    let dot = S::add_i(dots[0], dots[1]);
                    sum = add_outs::<S, K>(w, out, b, dot, x_scale, low + high, sum);
                }
            }
            S::store_f(acc.as_mut_ptr().add(out), sum);
        }
    }
}

/// One scale group's share of the sums, lanes being weight rows.
///
/// # Safety
/// The CPU has the instruction set of `S`; `out + LANES <= OUTS`.
#[inline(always)]
unsafe fn add_outs<S: Simd, K: Kind>(
    w: &Decoded,
    out: usize,
    group: usize,
    dot: S::I,
    x_scale: f32,
    x_sum: i32,
    sum: S::F,
) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let dot = match offset_log2::<K, S>() {
            Some(bits) => S::sub_i(dot, S::splat_i(x_sum << bits)),
            None => dot,
        };
        let scale = S::mul(S::load_f(w.scale[group].as_ptr().add(out)), S::splat_f(x_scale));
        let sum = S::fma(S::to_f(dot), scale, sum);
        if !K::MIN {
            return sum;
        }
        let min = S::load_f(w.min[group].as_ptr().add(out));
        S::fma(min, S::splat_f(x_scale * x_sum as f32), sum)
    }
}

/// Where one vector of panel rows lies: its lanes are absolute rows `row..row + LANES`.
#[derive(Clone, Copy)]
struct PanelLanes {
    row: usize,
    quants: *const i8,
    scale: *const f32,
    sums: *const i32,
}

impl PanelLanes {
    fn new(pass: &Pass<'_>, row: usize) -> Self {
        let panel = pass.x.panel(row / PANEL);
        let lane = row % PANEL;
        let b = pass.blocks.clone();
        Self {
            row,
            quants: panel.quants[b.start * (BLOCK / 4)..b.end * (BLOCK / 4)]
                .as_ptr()
                .cast::<i8>()
                .wrapping_add(4 * lane),
            scale: panel.scale[b.clone()].as_ptr().cast::<f32>().wrapping_add(lane),
            sums: panel.sums[b].as_ptr().cast::<i32>().wrapping_add(lane),
        }
    }
}

/// The rows of a pass in whole vectors of lanes: those that go `at_once` vectors at a time, and the rest. Lanes of
/// the first and last vector may be outside the pass; they are computed and dropped.
#[inline(always)]
pub(crate) fn split_rows<S: Simd>(pass: &Pass<'_>, at_once: usize) -> (Range<usize>, Range<usize>) {
    let start = pass.rows.start / S::LANES * S::LANES;
    let end = pass.rows.end.next_multiple_of(S::LANES);
    let step = at_once * S::LANES;
    let middle = start + (end - start) / step * step;
    (start..middle, middle..end)
}

/// One chunk of the given rows of a pass times the decoded rows; lanes are activation rows, `V` vectors and `O` weight
/// rows at a time.
///
/// # Safety
/// The CPU has the instruction set of `S`; `OUTS` is a multiple of `O`.
#[inline(always)]
pub(crate) unsafe fn many_rows<S: Simd, K: Kind, const O: usize, const V: usize>(
    w: &Decoded,
    pass: &mut Pass<'_>,
    rows: Range<usize>,
) {
    let n_rows = pass.rows.len();
    let n_outs = pass.tile.len() / n_rows;
    let n_blocks = pass.blocks.len();
    for first_row in rows.step_by(V * S::LANES) {
        let lanes: [PanelLanes; V] = std::array::from_fn(|v| PanelLanes::new(pass, first_row + v * S::LANES));
        for out in (0..n_outs).step_by(O) {
            // SAFETY: the instruction set is the caller's promise; `out + O` stays within OUTS and the blocks within
            // the chunk of `w` and the slices checked by `PanelLanes::new`, whose every line has 16 lanes.
            let acc = unsafe {
                let mut acc = load_sums::<S, O, V>(pass, out, &lanes);
                for b in 0..n_blocks {
                    acc = add_block::<S, K, O, V>(w, out, b, &lanes, acc);
                }
                acc
            };
            // SAFETY: as above.
            unsafe { store_sums::<S, O, V>(pass, out, &lanes, acc) };
        }
    }
}

/// # Safety
/// As [`many_rows`]; `b` is a block of the chunk.
#[inline(always)]
unsafe fn add_block<S: Simd, K: Kind, const O: usize, const V: usize>(
    w: &Decoded,
    out: usize,
    b: usize,
    lanes: &[PanelLanes; V],
    mut acc: [[S::F; V]; O],
) -> [[S::F; V]; O] {
    let groups = if K::HALVES { 2 } else { 1 };
    // SAFETY: the caller's promise.
    unsafe {
        // Loops over arrays, not `map`: its closures went through memory, 8 % of the 16-row product.
        let mut x_scale = [S::splat_f(0.0); V];
        for v in 0..V {
            x_scale[v] = S::load_f(lanes[v].scale.add(b * PANEL));
        }
        for half in 0..groups {
            let element = b * BLOCK + half * 16;
            let mut x = [std::ptr::null(); V];
            let mut x_sum = [S::splat_i(0); V];
            let mut init = [S::splat_i(0); V];
            for v in 0..V {
                x[v] = lanes[v].quants.add(element * PANEL);
                let sums = lanes[v].sums.add((2 * b + half) * PANEL);
                x_sum[v] = S::load_i(sums);
                if !K::HALVES {
                    x_sum[v] = S::add_i(x_sum[v], S::load_i(sums.add(PANEL)));
                }
                if let Some(bits) = offset_log2::<K, S>() {
                    init[v] = S::sub_i(init[v], S::shl_i(x_sum[v], bits));
                }
            }
            let dots = S::dot_panel::<K, O, V>(w.codes[out].as_ptr().add(element), x, init);
            let group = groups * b + half;
            for o in 0..O {
                let scale = S::splat_f(w.scale[group][out + o]);
                for v in 0..V {
                    acc[o][v] = S::fma(S::to_f(dots[o][v]), S::mul(scale, x_scale[v]), acc[o][v]);
                }
            }
            if K::MIN {
                for v in 0..V {
                    let x_min = S::mul(x_scale[v], S::to_f(x_sum[v]));
                    for o in 0..O {
                        acc[o][v] = S::fma(S::splat_f(w.min[group][out + o]), x_min, acc[o][v]);
                    }
                }
            }
        }
        acc
    }
}

/// The lanes of a vector that are rows of the pass, and where the first of them stands in a tile row.
#[inline(always)]
fn lanes_inside<S: Simd>(pass: &Pass<'_>, lanes: &PanelLanes) -> (Range<usize>, usize) {
    let start = pass.rows.start.max(lanes.row);
    let end = pass.rows.end.min(lanes.row + S::LANES).max(start);
    (start - lanes.row..end - lanes.row, start - pass.rows.start)
}

/// # Safety
/// The CPU has the instruction set of `S`.
#[inline(always)]
unsafe fn load_sums<S: Simd, const O: usize, const V: usize>(
    pass: &Pass<'_>,
    out: usize,
    lanes: &[PanelLanes; V],
) -> [[S::F; V]; O] {
    // SAFETY: the caller's promise.
    let zero = unsafe { S::splat_f(0.0) };
    let mut acc = [[zero; V]; O];
    if pass.blocks.start == 0 {
        return acc;
    }
    let n_rows = pass.rows.len();
    let n_outs = pass.tile.len() / n_rows;
    for v in 0..V {
        let (inside, column) = lanes_inside::<S>(pass, &lanes[v]);
        for o in 0..O.min(n_outs - out) {
            let mut buffer = [0.0; PANEL];
            let sums = &pass.tile[(out + o) * n_rows + column..][..inside.len()];
            let source = if inside.len() == S::LANES {
                sums.as_ptr()
            } else {
                buffer[inside.clone()].copy_from_slice(sums);
                buffer.as_ptr()
            };
            // SAFETY: either `sums` has LANES numbers or `buffer` has 16.
            acc[o][v] = unsafe { S::load_f(source) };
        }
    }
    acc
}

/// # Safety
/// The CPU has the instruction set of `S`.
#[inline(always)]
unsafe fn store_sums<S: Simd, const O: usize, const V: usize>(
    pass: &mut Pass<'_>,
    out: usize,
    lanes: &[PanelLanes; V],
    acc: [[S::F; V]; O],
) {
    let n_rows = pass.rows.len();
    let n_outs = pass.tile.len() / n_rows;
    for v in 0..V {
        let (inside, column) = lanes_inside::<S>(pass, &lanes[v]);
        for o in 0..O.min(n_outs - out) {
            let sums = &mut pass.tile[(out + o) * n_rows + column..][..inside.len()];
            if inside.len() == S::LANES {
                // SAFETY: `sums` has LANES numbers.
                unsafe { S::store_f(sums.as_mut_ptr(), acc[o][v]) };
            } else {
                let mut buffer = [0.0; PANEL];
                // SAFETY: `buffer` has 16 numbers.
                unsafe { S::store_f(buffer.as_mut_ptr(), acc[o][v]) };
                sums.copy_from_slice(&buffer[inside.clone()]);
            }
        }
    }
}
