//! Convolution along a row's path, SiLU, normalised q and k, and the gates of the delta rule.

use overdraft_plan::{CONV_ROWS, NO_PARENT, RecurrentPrepare};

use super::Cx;
use crate::math::{sigmoid, softplus};
use crate::memory::RecurrentMemory;
use crate::simd;

/// Inside the square root, as in the reference implementations.
const L2_EPS: f32 = 1e-6;

pub(super) fn run(cx: &Cx<'_>, op: &RecurrentPrepare, layer: &mut RecurrentMemory) {
    let shape = layer.shape;
    let width = shape.conv_width();
    let (conv, decay, dt_bias) =
        (cx.weights.vector(op.conv), cx.weights.vector(op.decay), cx.weights.vector(op.dt_bias));
    let (isa, kept, zeros) = (cx.isa(), &layer.conv, layer.zeros.as_slice());
    // Four taps, and an exponential and a division for SiLU.
    cx.each_row(cx.acts.rows(op.qkv), 4 * width, |r| {
        let view = cx.step.view(r);
        // The inputs at positions p-3, p-2, p-1, p as this row sees them; before the sequence starts they are zero.
        let mut inputs: [&[f32]; 4] = [zeros; 4];
        let mut at = r as u32;
        for (back, input) in inputs.iter_mut().rev().enumerate() {
            let Some(pos) = view.row.pos.checked_sub(back as u32) else { break };
            *input = if pos >= view.seq.committed {
                // SAFETY: `qkv` is only read during this op.
                let row = unsafe { cx.acts.row(op.qkv, at as usize) };
                at = cx.step.rows()[at as usize].parent;
                debug_assert!(at != NO_PARENT || pos == view.seq.committed);
                row
            } else {
                let ring = (view.seq.slot * CONV_ROWS + pos as usize % CONV_ROWS) * width;
                &kept[ring..ring + width]
            };
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
        simd::convolve(isa, inputs, conv, out);
        let keys = shape.key_heads * shape.key_dim;
        let scale = (shape.key_dim as f32).sqrt().recip();
        for head in out[..keys].chunks_exact_mut(shape.key_dim) {
            simd::to_length(isa, scale, L2_EPS, head);
        }
        for head in out[keys..2 * keys].chunks_exact_mut(shape.key_dim) {
            simd::to_length(isa, 1.0, L2_EPS, head);
        }
        let (g, beta) = gates.split_at_mut(shape.value_heads);
        for h in 0..shape.value_heads {
            g[h] = decay[h] * softplus(a[h] + dt_bias[h]);
            beta[h] = sigmoid(b[h]);
        }
    });
}
