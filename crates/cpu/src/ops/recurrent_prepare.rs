//! Convolution along a row's path, SiLU, normalised q and k, and the gates of the delta rule.

use overdraft_plan::{CONV_ROWS, NO_PARENT, RecurrentPrepare};

use super::Cx;
use crate::linear::Isa;
use crate::math::{sigmoid, softplus, sum_of_squares};
use crate::memory::RecurrentMemory;
use crate::simd;

/// Inside the square root, as in the reference implementations.
const L2_EPS: f32 = 1e-6;

pub(super) fn run(cx: &Cx<'_>, op: &RecurrentPrepare, layer: &mut RecurrentMemory) {
    let shape = layer.shape;
    let width = shape.conv_width();
    let (conv, decay, dt_bias) =
        (cx.weights.vector(op.conv), cx.weights.vector(op.decay), cx.weights.vector(op.dt_bias));
    let kept = &layer.conv;
    cx.each(cx.acts.rows(op.qkv), |r| {
        let view = cx.step.view(r);
        // The inputs at positions p-3, p-2, p-1, p as this row sees them; before the sequence starts they are zero.
        let mut inputs: [Option<&[f32]>; 4] = [None; 4];
        let mut at = r as u32;
        for (back, input) in inputs.iter_mut().rev().enumerate() {
            let Some(pos) = view.row.pos.checked_sub(back as u32) else { break };
            *input = Some(if pos >= view.seq.committed {
                // SAFETY: `qkv` is only read during this op.
                let row = unsafe { cx.acts.row(op.qkv, at as usize) };
                at = cx.step.rows()[at as usize].parent;
                debug_assert!(at != NO_PARENT || pos == view.seq.committed);
                row
            } else {
                let ring = (view.seq.slot * CONV_ROWS + pos as usize % CONV_ROWS) * width;
                &kept[ring..ring + width]
            });
        }
        // SAFETY: row `r` of `out` and `gates` belongs to this task; `a` and `b` are only read.
        let (out, gates, a, b) = unsafe {
            (
                cx.acts.row_mut(op.out, r),
                cx.acts.row_mut(op.gates, r),
                cx.acts.row(op.a, r),
                cx.acts.row(op.b, r),
            )
        };
        convolve(cx.isa(), inputs, conv, out);
        let keys = shape.key_heads * shape.key_dim;
        let scale = (shape.key_dim as f32).sqrt().recip();
        for head in out[..keys].chunks_exact_mut(shape.key_dim) {
            normalise(head, scale);
        }
        for head in out[keys..2 * keys].chunks_exact_mut(shape.key_dim) {
            normalise(head, 1.0);
        }
        let (g, beta) = gates.split_at_mut(shape.value_heads);
        for h in 0..shape.value_heads {
            g[h] = decay[h] * softplus(a[h] + dt_bias[h]);
            beta[h] = sigmoid(b[h]);
        }
    });
}

/// `out[c] = silu(Σ_j w[c, j] x_j[c])`, taps in order, absent inputs as zero.
fn convolve(isa: Isa, inputs: [Option<&[f32]>; 4], conv: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (j, input) in inputs.into_iter().enumerate() {
        let Some(x) = input else { continue };
        for ((o, w), x) in out.iter_mut().zip(conv.chunks_exact(4)).zip(x) {
            *o += w[j] * x;
        }
    }
    simd::silu(isa, out);
}

fn normalise(head: &mut [f32], scale: f32) {
    let factor = scale / (sum_of_squares(head) + L2_EPS).sqrt();
    for x in head {
        *x *= factor;
    }
}
