//! Products of a weight matrix with rows, and what is done to them on the way out.
//!
//! Quantised weights meet int8 activations, float weights meet `f32` ones; the kernels are in [`crate::linear`]. Here
//! outputs are dealt to tasks, each computes its tiles `[rows, outputs]`, and each tile gets its epilogue.

use std::ops::Range;

use overdraft_plan::{Act, Glu, LinearOut, Matrix, MatrixId, VectorId};

use super::thread_buffer::with_buffer;
use super::{Cx, Mode};
use crate::linear::{Isa, Packed, QuantRows, WeightView, dot_tile, dot_tile_float};
use crate::math::sigmoid;
use crate::simd;

/// Outputs of a task: enough that taking it costs nothing beside it, few enough that their weights stay in the
/// second-level cache while many rows pass by.
const OUTS: usize = 64;
/// The same for many rows of large matrices. They go by panels of up to 48 (`linear/panel.rs`), and 96 are 8 % faster than
/// 64 at 16 rows of Q6_K; small matrices would not be equal shares for the threads.
const LARGE_OUTS: usize = 96;
/// Rows of a tile, which is 24 KiB then at most and stays near until its epilogue.
const ROWS: usize = 64;

fn outs_a_task(n_rows: usize, n_outs: usize) -> usize {
    if n_rows > 8 && n_outs >= 20 * LARGE_OUTS { LARGE_OUTS } else { OUTS }
}

/// A matrix in the form that this mode multiplies.
#[derive(Clone, Copy)]
pub(crate) struct Weight<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) packed: Option<&'a Packed>,
}

impl Weight<'_> {
    /// Row `row` as numbers, the same from either form.
    pub(super) fn decode_row(&self, row: usize, out: &mut [f32]) {
        match self.packed {
            Some(packed) => packed.decode_row(row, out),
            None => {
                let (m, bytes) = (self.matrix, self.matrix.row_range(row, 1));
                m.dtype.decode_row(bytes, out).expect("loaders admit decodable tables only");
            }
        }
    }
}

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
        mut matrices: impl Iterator<Item = Weight<'m>>,
    ) -> Self {
        let n_rows = float.len() / width;
        if let Mode::Fast { isa, pool } = mode
            && matrices.any(|w| w.packed.is_some())
        {
            quant.quantise(*isa, pool, width, float);
        }
        Self { float, quant, n_rows }
    }

    /// `tile[r, o] = W[outs.start + o] · x[rows.start + r]`. The weight rows lie in one part of the matrix.
    pub(super) fn product(
        &self,
        mode: &Mode,
        w: Weight<'_>,
        outs: Range<usize>,
        rows: Range<usize>,
        tile: &mut [f32],
    ) {
        let m = w.matrix;
        let bytes = || m.row_range(outs.start, outs.len());
        match (mode, w.packed) {
            (Mode::Definition, _) => {
                define(m, bytes(), &self.float[rows.start * m.cols..rows.end * m.cols], tile)
            }
            (Mode::Fast { .. }, Some(packed)) => dot_tile(packed, outs, self.quant, rows, tile),
            (Mode::Fast { isa, .. }, None) => {
                let view =
                    WeightView::new(m.dtype, m.cols, bytes()).expect("loaders admit such matrices only");
                dot_tile_float(*isa, &view, 0..outs.len(), self.float, rows, tile);
            }
        }
    }

    /// Computes products of all rows with weight rows `first + outs` of each `(weight, first)`, a tile at a time, and
    /// calls `each_row(row, its products with each weight)`. `rows` are rows of the operand.
    pub(super) fn each_row<const N: usize>(
        &self,
        mode: &Mode,
        weights: [(Weight<'_>, usize); N],
        outs: &Range<usize>,
        rows: Range<usize>,
        mut each_row: impl FnMut(usize, [&mut [f32]; N]),
    ) {
        let n_outs = outs.len();
        for first_row in rows.clone().step_by(ROWS) {
            let rows = first_row..rows.end.min(first_row + ROWS);
            let len = n_outs * rows.len();
            with_buffer(N * len, |buffer| {
                for ((w, first), tile) in weights.iter().zip(buffer.chunks_exact_mut(len)) {
                    self.product(mode, *w, first + outs.start..first + outs.end, rows.clone(), tile);
                }
                for r in 0..rows.len() {
                    let mut tiles = buffer.chunks_exact_mut(len);
                    let products = std::array::from_fn(|_| {
                        let tile = tiles.next().expect("the buffer holds a tile for each weight");
                        &mut tile[r * n_outs..(r + 1) * n_outs]
                    });
                    each_row(rows.start + r, products);
                }
            });
        }
    }
}

/// The definition: weights to `f32`, products and sums in `f64`.
fn define(w: &Matrix, bytes: &[u8], x: &[f32], tile: &mut [f32]) {
    let n_outs = bytes.len() / w.row_bytes();
    let mut weights = vec![0.0f32; w.cols];
    for (o, row) in bytes.chunks_exact(w.row_bytes()).enumerate() {
        w.dtype.decode_row(row, &mut weights).expect("loaders admit decodable matrices only");
        for (x, tile) in x.chunks_exact(w.cols).zip(tile.chunks_exact_mut(n_outs)) {
            let sum: f64 = weights.iter().zip(x).map(|(w, x)| *w as f64 * *x as f64).sum();
            tile[o] = sum as f32;
        }
    }
}

/// Floats of the largest buffer that a task of these ops, or of experts, asks for: two tiles.
pub(super) fn buffer_len(bucket: usize) -> usize {
    2 * LARGE_OUTS * ROWS.min(bucket)
}

/// Deals `n_outs` outputs of `n_rows` rows to tasks.
fn each_task(cx: &Cx<'_>, n_outs: usize, n_rows: usize, task: impl Fn(Range<usize>) + Sync) {
    let each = outs_a_task(n_rows, n_outs);
    cx.each(n_outs.div_ceil(each), |t| task(t * each..n_outs.min((t + 1) * each)));
}

pub(super) fn linear(cx: &Cx<'_>, quant: &mut QuantRows, x: Act, outs: &[LinearOut]) {
    // SAFETY: no task writes the input of a linear op.
    let input = unsafe { cx.acts.all(x) };
    let weights = outs.iter().map(|o| cx.weight(o.weight));
    let operand = Operand::new(cx.mode, quant, input, cx.acts.width(x), weights);
    // One run of tasks over all outputs, each matrix starting a task: small ones fill the gaps of large ones.
    let each = |o: &LinearOut| outs_a_task(operand.n_rows, cx.weights.matrix(o.weight).rows);
    let tasks = |o: &LinearOut| cx.weights.matrix(o.weight).rows.div_ceil(each(o));
    cx.each(outs.iter().map(tasks).sum(), |mut task| {
        for out in outs {
            if task >= tasks(out) {
                task -= tasks(out);
                continue;
            }
            let w = cx.weight(out.weight);
            let mine = task * each(out)..w.matrix.rows.min((task + 1) * each(out));
            let bias = out.bias.map(|b| &cx.weights.vector(b)[mine.clone()]);
            operand.each_row(cx.mode, [(w, 0)], &mine, 0..operand.n_rows, |r, [sums]| {
                // SAFETY: a task's outputs are columns that no other task has.
                let y = unsafe { cx.acts.part_mut(out.out, r, mine.clone()) };
                match bias {
                    Some(bias) => y.iter_mut().zip(sums).zip(bias).for_each(|((y, s), b)| *y = *s + b),
                    None => y.copy_from_slice(sums),
                }
            });
            return;
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
    let w = cx.weight(weight);
    let operand = Operand::new(cx.mode, quant, input, cx.acts.width(x), std::iter::once(w));
    each_task(cx, w.matrix.rows, operand.n_rows, |outs| {
        let bias = bias.map(|b| &cx.weights.vector(b)[outs.clone()]);
        operand.each_row(cx.mode, [(w, 0)], &outs, 0..operand.n_rows, |r, [sums]| {
            if let Some(bias) = bias {
                sums.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
            }
            if let Some(gate) = gate {
                let gate = sigmoid(gate[r]);
                sums.iter_mut().for_each(|s| *s *= gate);
            }
            // SAFETY: a task's outputs are columns that no other task has.
            let y = unsafe { cx.acts.part_mut(stream, r, outs.clone()) };
            y.iter_mut().zip(sums).for_each(|(y, s)| *y += *s);
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
    let (gate, up) = (cx.weight(gate), cx.weight(up));
    let operand = Operand::new(cx.mode, quant, input, cx.acts.width(x), [gate, up].into_iter());
    each_task(cx, gate.matrix.rows, operand.n_rows, |outs| {
        operand.each_row(cx.mode, [(gate, 0), (up, 0)], &outs, 0..operand.n_rows, |r, [g, u]| {
            apply_glu(cx.isa(), glu, g, u);
            // SAFETY: a task's outputs are columns that no other task has.
            unsafe { cx.acts.part_mut(out, r, outs.clone()) }.copy_from_slice(g);
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
