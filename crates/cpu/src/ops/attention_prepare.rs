//! Head norms, rotary embedding, and the write of keys and values to their pages.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use overdraft_plan::{AttentionPrepare, RmsNorm, RopeStyle};

use super::Cx;
use crate::memory::{AttentionMemory, KvMemory};
use crate::shared::Shared;
use crate::simd;

/// A layer's pages while tasks write to them.
enum KvShared<'a> {
    F32(Shared<'a, f32>),
    F16(Shared<'a, f16>),
    Bf16(Shared<'a, bf16>),
}

pub(super) fn run(cx: &Cx<'_>, op: &AttentionPrepare, layer: &mut AttentionMemory) {
    let d = op.head_dim;
    let q_stride = if op.gated { 2 * d } else { d };
    let (layout, class) = (layer.layout(), layer.shape.class);
    let kv = match &mut layer.kv {
        KvMemory::F32(v) => KvShared::F32(Shared::new(v)),
        KvMemory::F16(v) => KvShared::F16(Shared::new(v)),
        KvMemory::Bf16(v) => KvShared::Bf16(Shared::new(v)),
    };
    // Rows next to each other write to the same lines of a page of keys: they had better be one thread's.
    let width = op.q.map_or(0, |q| cx.acts.width(q)) + 4 * cx.acts.width(op.k);
    cx.each_row(cx.acts.rows(op.k), 2 * width, |r| {
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
                simd::rms_norm_in_place(cx.isa(), cx.weights.vector(norm.weight), norm.eps, head);
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
        for (h, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
            let (key, value) = (layout.key(page, h, slot), layout.value(page, h, slot));
            // SAFETY: every row of a step has a KV slot of its own (pages that no other sequence writes, which the
            // step's validation saw to, and its local index), so no two tasks write the same places.
            unsafe {
                match &kv {
                    KvShared::F32(kv) => {
                        scatter(kv, key, k, |to, x| to.copy_from_slice(x));
                        kv.write(value).copy_from_slice(v);
                    }
                    KvShared::F16(kv) => {
                        scatter(kv, key, k, |to, x| to.convert_from_f32_slice(x));
                        kv.write(value).convert_from_f32_slice(v);
                    }
                    KvShared::Bf16(kv) => {
                        scatter(kv, key, k, |to, x| to.convert_from_f32_slice(x));
                        kv.write(value).convert_from_f32_slice(v);
                    }
                }
            }
        }
    });
}

/// Converts `source` into its places.
///
/// # Safety
/// No other task touches the places.
unsafe fn scatter<T: Copy + Default>(
    kv: &Shared<'_, T>,
    mut places: impl Iterator<Item = usize>,
    source: &[f32],
    convert: impl Fn(&mut [T], &[f32]),
) {
    const AT_ONCE: usize = 64;
    let mut converted = [T::default(); AT_ONCE];
    for source in source.chunks(AT_ONCE) {
        let converted = &mut converted[..source.len()];
        convert(converted, source);
        for (x, at) in converted.iter().zip(&mut places) {
            // SAFETY: the caller's promise.
            unsafe { kv.write(at..at + 1)[0] = *x };
        }
    }
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
