//! Ops that treat each row by itself: embed, norm, select, rotary angles, gated norm. The fast path is the
//! definition, with rows shared out to the pool.

use overdraft_plan::{Act, MatrixId, RmsNorm, TAP_ROWS, VectorId};

use super::Cx;
use crate::memory::StateMemory;
use crate::simd;

pub(super) fn embed(cx: &Cx<'_>, table: MatrixId, out: Act) {
    let table = cx.weight(table);
    cx.each_row(cx.acts.rows(out), 8 * cx.acts.width(out), |r| {
        let token = cx.step.rows()[r].token as usize;
        // SAFETY: row `r` of `out` belongs to this task.
        let out = unsafe { cx.acts.row_mut(out, r) };
        table.decode_row(token, out);
    });
}

pub(super) fn norm(cx: &Cx<'_>, x: Act, norm: RmsNorm, out: Act, tap: Option<Act>) {
    let weight = cx.weights.vector(norm.weight);
    cx.each_row(cx.acts.rows(x), weight.len(), |r| {
        // SAFETY: nobody writes `x` during this op; row `r` of `out` and `tap` belongs to this task.
        let (x, out) = unsafe { (cx.acts.row(x, r), cx.acts.row_mut(out, r)) };
        simd::rms_norm(cx.isa(), weight, norm.eps, x, out);
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
    cx.each_row(cx.acts.rows(out), cx.acts.width(out), |r| {
        let row = cx.step.rows()[r];
        let slot = cx.step.seq(row.seq as usize).slot;
        let at = (slot * TAP_ROWS + row.pos as usize % TAP_ROWS) * state.tap_width;
        // SAFETY: row `r` of `out` belongs to this task.
        unsafe { cx.acts.row_mut(out, r) }.copy_from_slice(&state.taps[at..at + state.tap_width]);
    });
}

pub(super) fn concat(cx: &Cx<'_>, xs: &[Act], out: Act) {
    cx.each_row(cx.acts.rows(out), cx.acts.width(out), |r| {
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
    // A sine and a cosine of f64 for each.
    cx.each_row(cx.acts.rows(out), 60 * cx.acts.width(out), |r| {
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
    cx.each_row(cx.acts.rows(x), 3 * cx.acts.width(x), |r| {
        // SAFETY: `x` and `gate` are only read; row `r` of `out` belongs to this task.
        let (x, gate, out) = unsafe { (cx.acts.row(x, r), cx.acts.row(gate, r), cx.acts.row_mut(out, r)) };
        for h in (0..x.len()).step_by(head_dim) {
            let head = h..h + head_dim;
            simd::rms_norm(cx.isa(), weight, norm.eps, &x[head.clone()], &mut out[head]);
        }
        simd::times_silu(cx.isa(), gate, out);
    });
}
