//! Head norms, rotary embedding, and the write of keys and values to their pages.

use half::f16;
use half::slice::HalfFloatSliceExt;
use overdraft_plan::{AttentionPrepare, PAGE, RmsNorm, RopeStyle};

use super::Cx;
use super::row_ops::rms_norm_in_place;
use crate::memory::{AttentionMemory, KvMemory};
use crate::shared::Shared;

/// A layer's pages while tasks write to them.
enum KvShared<'a> {
    F32(Shared<'a, f32>),
    F16(Shared<'a, f16>),
}

pub(super) fn run(cx: &Cx<'_>, op: &AttentionPrepare, layer: &mut AttentionMemory) {
    let d = op.head_dim;
    let q_stride = if op.gated { 2 * d } else { d };
    let class = layer.shape.class;
    let kv = match &mut layer.kv {
        KvMemory::F32(v) => KvShared::F32(Shared::new(v)),
        KvMemory::F16(v) => KvShared::F16(Shared::new(v)),
    };
    cx.each(cx.acts.rows(op.k), |r| {
        // SAFETY: row `r` of q and k belongs to this task; angles and v are only read.
        let (q, k, v, angles) = unsafe {
            (
                op.q.map(|q| cx.acts.row_mut(q, r)),
                cx.acts.row_mut(op.k, r),
                cx.acts.row(op.v, r),
                cx.acts.row(op.angles, r),
            )
        };
        let (cos, sin) = angles.split_at(op.rotary_dims / 2);
        let turn = |head: &mut [f32], norm: Option<RmsNorm>| {
            if let Some(norm) = norm {
                rms_norm_in_place(head, cx.weights.vector(norm.weight), norm.eps);
            }
            rotate(&mut head[..op.rotary_dims], cos, sin, op.style);
        };
        for head in q.into_iter().flat_map(|q| q.chunks_exact_mut(q_stride)) {
            turn(&mut head[..d], op.q_norm);
        }
        for head in k.chunks_exact_mut(d) {
            turn(head, op.k_norm);
        }
        let view = cx.step.view(r);
        let slot = view.kv_slot();
        let page = view.seq.page(class, slot);
        for h in 0..op.kv_heads {
            for (which, source) in [&*k, v].into_iter().enumerate() {
                let at = kv_offset(page, which, h, op.kv_heads, d) + slot as usize % PAGE * d;
                let source = &source[h * d..(h + 1) * d];
                match &kv {
                    // SAFETY: every row of a step has a KV slot of its own (pages that no other sequence writes, which
                    // the step's validation saw to, and its local index), so no two tasks write the same range.
                    KvShared::F32(kv) => unsafe { kv.write(at..at + d) }.copy_from_slice(source),
                    // SAFETY: as above.
                    KvShared::F16(kv) => unsafe { kv.write(at..at + d) }.convert_from_f32_slice(source),
                }
            }
        }
    });
}

/// First element of (page, k = 0 or v = 1, kv head): a run of `PAGE` positions of `d` values.
pub(super) fn kv_offset(page: usize, which: usize, head: usize, kv_heads: usize, d: usize) -> usize {
    ((page * 2 + which) * kv_heads + head) * PAGE * d
}

fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    let half = cos.len();
    for i in 0..half {
        let (a, b) = match style {
            RopeStyle::Halves => (i, i + half),
            RopeStyle::Pairs => (2 * i, 2 * i + 1),
        };
        let (xa, xb) = (x[a], x[b]);
        x[a] = xa * cos[i] - xb * sin[i];
        x[b] = xb * cos[i] + xa * sin[i];
    }
}
