//! Ops that treat each row by itself: embed, norm, select, rotary angles, gated norm. The fast path is the
//! definition, with rows shared out to the pool.

use overdraft_plan::{Act, MatrixId, RmsNorm, TAP_ROWS, VectorId};

use super::Cx;
use crate::math::{silu, sum_of_squares};
use crate::memory::StateMemory;

pub(super) fn embed(cx: &Cx<'_>, table: MatrixId, out: Act) {
    let table = cx.weight(table);
    cx.each(cx.acts.rows(out), |r| {
        let token = cx.step.rows()[r].token as usize;
        // SAFETY: row `r` of `out` belongs to this task.
        let out = unsafe { cx.acts.row_mut(out, r) };
        table.decode_row(token, out);
    });
}

/// `out = x / sqrt(mean(x²) + eps) · weight`
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * scale * w;
    }
}

/// [`rms_norm`] in place.
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

pub(super) fn norm(cx: &Cx<'_>, x: Act, norm: RmsNorm, out: Act, tap: Option<Act>) {
    let weight = cx.weights.vector(norm.weight);
    cx.each(cx.acts.rows(x), |r| {
        // SAFETY: nobody writes `x` during this op; row `r` of `out` and `tap` belongs to this task.
        let (x, out) = unsafe { (cx.acts.row(x, r), cx.acts.row_mut(out, r)) };
        rms_norm(x, weight, norm.eps, out);
        if let Some(tap) = tap {
            // SAFETY: as above.
            unsafe { cx.acts.row_mut(tap, r) }.copy_from_slice(x);
        }
    });
}

pub(super) fn select(cx: &Cx<'_>, x: Act, out: Act) {
    for (i, row) in cx.step.logit_rows().iter().enumerate() {
        // SAFETY: one thread, two different buffers.
        unsafe { cx.acts.row_mut(out, i).copy_from_slice(cx.acts.row(x, *row as usize)) };
    }
}

pub(super) fn load_taps(cx: &Cx<'_>, state: &StateMemory, out: Act) {
    cx.each(cx.acts.rows(out), |r| {
        let row = cx.step.rows()[r];
        let slot = cx.step.seq(row.seq as usize).slot;
        let at = (slot * TAP_ROWS + row.pos as usize % TAP_ROWS) * state.tap_width;
        // SAFETY: row `r` of `out` belongs to this task.
        unsafe { cx.acts.row_mut(out, r) }.copy_from_slice(&state.taps[at..at + state.tap_width]);
    });
}

pub(super) fn concat(cx: &Cx<'_>, xs: &[Act], out: Act) {
    cx.each(cx.acts.rows(out), |r| {
        // SAFETY: row `r` of `out` belongs to this task; the parts are only read.
        let mut rest = unsafe { cx.acts.row_mut(out, r) };
        for x in xs {
            let part;
            (part, rest) = rest.split_at_mut(cx.acts.width(*x));
            // SAFETY: as above.
            part.copy_from_slice(unsafe { cx.acts.row(*x, r) });
        }
    });
}

/// The angle is taken in `f32`, as the reference implementations do; its sine and cosine in `f64`.
pub(super) fn angles(cx: &Cx<'_>, inv_freq: VectorId, magnitude: f32, out: Act) {
    let inv_freq = cx.weights.vector(inv_freq);
    cx.each(cx.acts.rows(out), |r| {
        let pos = cx.step.rows()[r].pos as f32;
        // SAFETY: row `r` of `out` belongs to this task.
        let (cos, sin) = unsafe { cx.acts.row_mut(out, r) }.split_at_mut(inv_freq.len());
        for (i, f) in inv_freq.iter().enumerate() {
            let (s, c) = ((pos * f) as f64).sin_cos();
            cos[i] = c as f32 * magnitude;
            sin[i] = s as f32 * magnitude;
        }
    });
}

pub(super) fn gated_norm(cx: &Cx<'_>, x: Act, gate: Act, norm: RmsNorm, head_dim: usize, out: Act) {
    let weight = cx.weights.vector(norm.weight);
    cx.each(cx.acts.rows(x), |r| {
        // SAFETY: `x` and `gate` are only read; row `r` of `out` belongs to this task.
        let (x, gate, out) = unsafe { (cx.acts.row(x, r), cx.acts.row(gate, r), cx.acts.row_mut(out, r)) };
        for h in (0..x.len()).step_by(head_dim) {
            let head = h..h + head_dim;
            rms_norm(&x[head.clone()], weight, norm.eps, &mut out[head.clone()]);
            for (o, g) in out[head.clone()].iter_mut().zip(&gate[head]) {
                *o *= silu(*g);
            }
        }
    });
}
