//! Softmax attention of each row over its own past.

use std::ops::Range;

use overdraft_plan::{Attention, RowView};

use super::{Cx, Mode, attention_pages};
use crate::math::sigmoid;
use crate::memory::{AttentionMemory, KvMemory};

pub(super) fn run(cx: &Cx<'_>, op: &Attention, layer: &mut AttentionMemory) {
    let layer = &*layer;
    match cx.mode {
        Mode::Definition => {
            for r in 0..cx.acts.rows(op.q) {
                for h in 0..op.heads {
                    define(cx, op, layer, r, h);
                }
            }
        }
        Mode::Fast { isa, .. } => match &layer.kv {
            KvMemory::F32(kv) => attention_pages::run(cx, op, layer, kv, *isa),
            KvMemory::F16(kv) => attention_pages::run(cx, op, layer, kv, *isa),
            KvMemory::Bf16(kv) => attention_pages::run(cx, op, layer, kv, *isa),
        },
    }
}

/// A row's query of one head, where its output goes, and the positions it sees.
pub(super) struct Query<'a> {
    pub(super) q: &'a [f32],
    pub(super) gate: Option<&'a [f32]>,
    pub(super) out: &'a mut [f32],
    pub(super) sees: Range<u32>,
}

/// # Safety
/// `q` is not written meanwhile, and no other task has (r, h).
pub(super) unsafe fn query<'a>(
    cx: &Cx<'a>,
    op: &Attention,
    view: &RowView<'_>,
    r: usize,
    h: usize,
) -> Query<'a> {
    let d = op.head_dim;
    let stride = if op.gated { 2 * d } else { d };
    // SAFETY: the caller's promise; the output of a head is a column range of its own.
    let (q, out) = unsafe { (cx.acts.row(op.q, r), cx.acts.part_mut(op.out, r, h * d..(h + 1) * d)) };
    let q = &q[h * stride..(h + 1) * stride];
    let pos = view.row.pos;
    let first = op.window.map_or(0, |w| (pos + 1).saturating_sub(w));
    let end = if op.see_ahead { view.seq.sure_end().max(pos + 1) } else { pos + 1 };
    Query { q: &q[..d], gate: op.gated.then(|| &q[d..]), out, sees: first..end }
}

fn gather(layer: &AttentionMemory, places: impl Iterator<Item = usize>) -> Vec<f32> {
    match &layer.kv {
        KvMemory::F32(kv) => places.map(|i| kv[i]).collect(),
        KvMemory::F16(kv) => places.map(|i| kv[i].to_f32()).collect(),
        KvMemory::Bf16(kv) => places.map(|i| kv[i].to_f32()).collect(),
    }
}

/// Two passes in `f64`: all scores, then the weighted sum.
fn define(cx: &Cx<'_>, op: &Attention, layer: &AttentionMemory, r: usize, h: usize) {
    let view = cx.step.view(r);
    // SAFETY: one thread.
    let query = unsafe { query(cx, op, &view, r, h) };
    let kv_head = h / (op.heads / op.kv_heads);
    let slot_of = |p: u32| {
        let slot = view.slot_of(p);
        (view.seq.page(layer.shape.class, slot), slot)
    };
    let key = |(page, slot)| gather(layer, layer.layout().key(page, kv_head, slot));
    let value = |(page, slot)| gather(layer, layer.layout().value(page, kv_head, slot));
    let scores: Vec<f64> = query
        .sees
        .clone()
        .map(|p| {
            let k = key(slot_of(p));
            op.scale as f64 * query.q.iter().zip(&k).map(|(a, b)| *a as f64 * *b as f64).sum::<f64>()
        })
        .collect();
    let sink = op.sinks.map(|s| cx.weights.vector(s)[h] as f64);
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 =
        scores.iter().map(|s| (s - max).exp()).sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    let mut sum = vec![0.0f64; op.head_dim];
    for (p, score) in query.sees.clone().zip(&scores) {
        let weight = (score - max).exp() / total;
        for (s, v) in sum.iter_mut().zip(value(slot_of(p))) {
            *s += weight * v as f64;
        }
    }
    for (i, (o, s)) in query.out.iter_mut().zip(sum).enumerate() {
        *o = s as f32 * query.gate.map_or(1.0, |g| sigmoid(g[i]));
    }
}
