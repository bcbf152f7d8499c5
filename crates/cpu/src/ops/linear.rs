//! Products of a weight matrix with rows, and what is done to them on the way out.
//!
//! Quantised weights meet int8 activations, float weights meet `f32` ones; the kernels are in [`crate::linear`]. Here
//! outputs are dealt to tasks in tiles `[outputs, rows]`, and each tile gets its epilogue.

use std::ops::Range;

use overdraft_plan::{Act, Glu, LinearOut, Matrix, MatrixId, VectorId};

use super::thread_buffer::with_buffer;
use super::{Cx, Mode};
use crate::linear::{Input, Isa, QuantRows, WeightView, dot_tile};
use crate::math::sigmoid;
use crate::simd;

/// Floats of a tile: 32 KiB, which stays in the first-level cache beside a weight row.
const TILE: usize = 8192;
/// Outputs of a tile when rows are few: enough that taking a task costs nothing beside it.
const MAX_OUTS: usize = 64;

/// The rows that a matrix is multiplied with: some rows of a buffer, in the form its type wants.
pub(super) struct Operand<'a> {
    float: &'a [f32],
    quant: &'a QuantRows,
    pub(super) n_rows: usize,
}

impl<'a> Operand<'a> {
    /// Rounds the rows to int8 blocks if any of the matrices is quantised. `float` is `[n_rows, width]`.
    pub(super) fn new<'m>(
        mode: &Mode,
        quant: &'a mut QuantRows,
        float: &'a [f32],
        width: usize,
        mut matrices: impl Iterator<Item = &'m Matrix>,
    ) -> Self {
        let n_rows = float.len() / width;
        if let Mode::Fast { isa, pool } = mode
            && matrices.any(|m| m.dtype.is_quantised())
        {
            quant.quantise(*isa, pool, width, float);
        }
        Self { float, quant, n_rows }
    }

    /// `tile[o, r] = W[first + o] · x[r]` for `outs` outputs from row `first` of the matrix and the operand's `rows`.
    pub(super) fn product(
        &self,
        mode: &Mode,
        w: &Matrix,
        first: usize,
        outs: usize,
        rows: Range<usize>,
        tile: &mut [f32],
    ) {
        let bytes = w.row_range(first, outs);
        match mode {
            Mode::Definition => define(w, bytes, &self.float[rows.start * w.cols..rows.end * w.cols], tile),
            Mode::Fast { isa, .. } => {
                let view = WeightView::new(w.dtype, w.cols, bytes).expect("loaders admit such matrices only");
                let input =
                    if w.dtype.is_quantised() { Input::Quant(self.quant) } else { Input::Float(self.float) };
                dot_tile(*isa, &view, 0..outs, &input, rows, tile);
            }
        }
    }
}

/// The definition: weights to `f32`, products and sums in `f64`.
fn define(w: &Matrix, bytes: &[u8], x: &[f32], tile: &mut [f32]) {
    let n_rows = x.len() / w.cols;
    let mut weights = vec![0.0f32; w.cols];
    for (o, row) in bytes.chunks_exact(w.row_bytes()).enumerate() {
        w.dtype.decode_row(row, &mut weights).expect("loaders admit decodable matrices only");
        for r in 0..n_rows {
            let x = &x[r * w.cols..(r + 1) * w.cols];
            let sum: f64 = weights.iter().zip(x).map(|(w, x)| *w as f64 * *x as f64).sum();
            tile[o * n_rows + r] = sum as f32;
        }
    }
}

/// Outputs per tile for so many rows.
fn outs_per_tile(n_rows: usize) -> usize {
    (TILE / n_rows.max(1)).clamp(1, MAX_OUTS)
}

/// Floats of the largest buffer that a task of these ops asks for in steps of up to `bucket` rows: two tiles.
pub(super) fn buffer_len(bucket: usize) -> usize {
    2 * TILE.max(bucket)
}

/// Deals `n_outs` outputs of `n_rows` rows to tasks.
fn each_tile(cx: &Cx<'_>, n_outs: usize, n_rows: usize, tile: impl Fn(Range<usize>) + Sync) {
    let step = outs_per_tile(n_rows);
    cx.each(n_outs.div_ceil(step), |t| tile(t * step..n_outs.min((t + 1) * step)));
}

/// Writes `f(output, row, tile value)` to columns `outs` of every row of `act`.
fn scatter(cx: &Cx<'_>, tile: &[f32], act: Act, outs: Range<usize>, f: impl Fn(usize, usize, f32, &mut f32)) {
    let n_rows = tile.len() / outs.len();
    for r in 0..n_rows {
        // SAFETY: a tile's outputs are columns that no other task has.
        let row = unsafe { cx.acts.part_mut(act, r, outs.clone()) };
        for (o, y) in row.iter_mut().enumerate() {
            f(o, r, tile[o * n_rows + r], y);
        }
    }
}

pub(super) fn linear(cx: &Cx<'_>, quant: &mut QuantRows, x: Act, outs: &[LinearOut]) {
    // SAFETY: no task writes the input of a linear op.
    let input = unsafe { cx.acts.all(x) };
    let matrices = outs.iter().map(|o| cx.weights.matrix(o.weight));
    let operand = Operand::new(cx.mode, quant, input, cx.acts.width(x), matrices);
    if operand.n_rows == 0 {
        return;
    }
    // One run of tasks over all outputs, each matrix starting a task: small ones fill the gaps of large ones.
    let step = outs_per_tile(operand.n_rows);
    let tiles = |o: &LinearOut| cx.weights.matrix(o.weight).rows.div_ceil(step);
    cx.each(outs.iter().map(tiles).sum(), |mut task| {
        for out in outs {
            if task >= tiles(out) {
                task -= tiles(out);
                continue;
            }
            let w = cx.weights.matrix(out.weight);
            let mine = task * step..w.rows.min((task + 1) * step);
            return with_buffer(mine.len() * operand.n_rows, |tile| {
                operand.product(cx.mode, w, mine.start, mine.len(), 0..operand.n_rows, tile);
                let bias = out.bias.map(|b| &cx.weights.vector(b)[mine.clone()]);
                scatter(cx, tile, out.out, mine, |o, _, sum, y| *y = sum + bias.map_or(0.0, |b| b[o]));
            });
        }
    });
}

pub(super) fn linear_add(
    cx: &Cx<'_>,
    quant: &mut QuantRows,
    x: Act,
    weight: MatrixId,
    bias: Option<VectorId>,
    gate: Option<Act>,
    stream: Act,
) {
    // SAFETY: no task writes the input or the gate of a linear op.
    let (input, gate) = unsafe { (cx.acts.all(x), gate.map(|g| cx.acts.all(g))) };
    let w = cx.weights.matrix(weight);
    let operand = Operand::new(cx.mode, quant, input, cx.acts.width(x), std::iter::once(w));
    each_tile(cx, w.rows, operand.n_rows, |outs| {
        with_buffer(outs.len() * operand.n_rows, |tile| {
            operand.product(cx.mode, w, outs.start, outs.len(), 0..operand.n_rows, tile);
            let bias = bias.map(|b| &cx.weights.vector(b)[outs.clone()]);
            scatter(cx, tile, stream, outs, |o, r, sum, y| {
                let sum = sum + bias.map_or(0.0, |b| b[o]);
                *y += gate.map_or(sum, |g| sigmoid(g[r]) * sum);
            });
        });
    });
}

pub(super) fn linear_glu(
    cx: &Cx<'_>,
    quant: &mut QuantRows,
    x: Act,
    gate: MatrixId,
    up: MatrixId,
    glu: Glu,
    out: Act,
) {
    // SAFETY: no task writes the input of a linear op.
    let input = unsafe { cx.acts.all(x) };
    let (gate, up) = (cx.weights.matrix(gate), cx.weights.matrix(up));
    let operand = Operand::new(cx.mode, quant, input, cx.acts.width(x), [gate, up].into_iter());
    each_tile(cx, gate.rows, operand.n_rows, |outs| {
        let len = outs.len() * operand.n_rows;
        with_buffer(2 * len, |tiles| {
            let (g, u) = tiles.split_at_mut(len);
            operand.product(cx.mode, gate, outs.start, outs.len(), 0..operand.n_rows, g);
            operand.product(cx.mode, up, outs.start, outs.len(), 0..operand.n_rows, u);
            apply_glu(cx.isa(), glu, g, u);
            scatter(cx, g, out, outs, |_, _, h, y| *y = h);
        });
    });
}

/// `g = glu(g, u)`, elementwise.
pub(super) fn apply_glu(isa: Isa, glu: Glu, g: &mut [f32], u: &[f32]) {
    match glu {
        Glu::Swish => simd::swish(isa, g, u),
        Glu::Clamped { alpha, limit } => simd::clamped(isa, alpha, limit, g, u),
    }
}
