//! Softmax attention of each row over its own past.

use std::ops::Range;

use overdraft_plan::{Attention, PAGE, RowView};

use super::attention_prepare::kv_offset;
use super::thread_buffer::with_buffer;
use super::{Cx, Mode};
use crate::linear::Isa;
use crate::math::{exp, sigmoid};
use crate::memory::{AttentionMemory, KvMemory};
use crate::simd;

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
        Mode::Fast { isa, .. } => fast(cx, op, layer, *isa),
    }
}

/// A row's query, where its output goes, and its first visible position.
struct Query<'a> {
    q: &'a [f32],
    gate: Option<&'a [f32]>,
    out: &'a mut [f32],
    /// Positions it sees.
    sees: Range<u32>,
}

/// # Safety
/// `q` is not written meanwhile, and no other task has (r, h).
unsafe fn query<'a>(cx: &Cx<'a>, op: &Attention, view: &RowView<'_>, r: usize, h: usize) -> Query<'a> {
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

/// The key or value at KV slot `slot` into `out`.
fn load(layer: &AttentionMemory, page: usize, which: usize, head: usize, slot: u32, out: &mut [f32]) {
    let d = out.len();
    let at = kv_offset(page, which, head, layer.shape.kv_heads, d) + slot as usize % PAGE * d;
    match &layer.kv {
        KvMemory::F32(kv) => out.copy_from_slice(&kv[at..at + d]),
        KvMemory::F16(kv) => {
            for (o, x) in out.iter_mut().zip(&kv[at..at + d]) {
                *o = x.to_f32();
            }
        }
    }
}

/// Two passes in `f64`: all scores, then the weighted sum.
fn define(cx: &Cx<'_>, op: &Attention, layer: &AttentionMemory, r: usize, h: usize) {
    let view = cx.step.view(r);
    // SAFETY: one thread.
    let query = unsafe { query(cx, op, &view, r, h) };
    let kv_head = h / (op.heads / op.kv_heads);
    let mut row = vec![0.0f32; op.head_dim];
    let mut read = |p: u32, which: usize| {
        let slot = view.slot_of(p);
        load(layer, view.seq.page(layer.shape.class, slot), which, kv_head, slot, &mut row);
        row.clone()
    };
    let scores: Vec<f64> = query
        .sees
        .clone()
        .map(|p| {
            let k = read(p, 0);
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
        for (s, v) in sum.iter_mut().zip(read(p, 1)) {
            *s += weight * v as f64;
        }
    }
    for (i, (o, s)) in query.out.iter_mut().zip(sum).enumerate() {
        *o = s as f32 * query.gate.map_or(1.0, |g| sigmoid(g[i]));
    }
}

/// Rows of one sequence that share the keys and values a task converts. A page of 256-wide f16 keys costs about as
/// much to convert as to use once, so sharing halves a prefill's attention; more rows gain little.
const ROW_BLOCK: usize = 16;

/// Floats of a task's buffer: a page of keys and values.
pub(super) fn buffer_len(head_dim: usize) -> usize {
    2 * PAGE * head_dim
}

/// Running softmax of one row: maximum, sum, weighted values.
struct Running {
    max: f32,
    total: f32,
}

/// One task per (up to [`ROW_BLOCK`] rows of a sequence, head). A page of keys and values is brought to `f32` once
/// and met by every row of the block; each row folds page after page into its running softmax. Which rows share a
/// block changes nothing in any row's order of operations.
fn fast(cx: &Cx<'_>, op: &Attention, layer: &AttentionMemory, isa: Isa) {
    let mut n_blocks = 0;
    for s in 0..cx.step.n_seqs() {
        n_blocks += cx.step.seq(s).rows.len().div_ceil(ROW_BLOCK);
    }
    cx.each(n_blocks * op.heads, |task| {
        let (mut block, h) = (task / op.heads, task % op.heads);
        for s in 0..cx.step.n_seqs() {
            let rows = cx.step.seq(s).rows;
            let blocks = rows.len().div_ceil(ROW_BLOCK);
            if block < blocks {
                let rows = &rows[block * ROW_BLOCK..rows.len().min((block + 1) * ROW_BLOCK)];
                return block_task(cx, op, layer, isa, rows, h);
            }
            block -= blocks;
        }
    });
}

fn block_task(cx: &Cx<'_>, op: &Attention, layer: &AttentionMemory, isa: Isa, rows: &[u32], h: usize) {
    let d = op.head_dim;
    let kv_head = h / (op.heads / op.kv_heads);
    let class = layer.shape.class;
    let sink = op.sinks.map(|s| cx.weights.vector(s)[h]);
    let views: [Option<RowView<'_>>; ROW_BLOCK] =
        std::array::from_fn(|i| rows.get(i).map(|r| cx.step.view(*r as usize)));
    let mut queries: [Option<Query<'_>>; ROW_BLOCK] = std::array::from_fn(|i| {
        let view = views[i].as_ref()?;
        // SAFETY: q is only read in this op; (row, head) pairs are dealt to tasks once.
        Some(unsafe { query(cx, op, view, rows[i] as usize, h) })
    });
    let mut running: [Running; ROW_BLOCK] = std::array::from_fn(|_| match sink {
        Some(s) => Running { max: s, total: 1.0 },
        None => Running { max: f32::NEG_INFINITY, total: 0.0 },
    });
    let (mut first, mut last) = (u32::MAX, 0);
    for query in queries.iter_mut().flatten() {
        query.out.fill(0.0);
        first = first.min(query.sees.start);
        last = last.max(query.sees.end - 1);
    }
    let Some(seq) = views[0].as_ref().map(|v| v.seq) else { return };
    with_buffer(buffer_len(d), |tiles| {
        for group in first / PAGE as u32..=last / PAGE as u32 {
            let start = group * PAGE as u32;
            // Positions up to the end of the sure rows are common to all rows of the sequence.
            let common = seq.sure_end().min(start + PAGE as u32).min(last + 1).max(start);
            if common > start {
                let n = (common - start) as usize;
                let page = seq.page(class, start);
                for which in 0..2 {
                    let at = kv_offset(page, which, kv_head, layer.shape.kv_heads, d);
                    let tile = &mut tiles[which * PAGE * d..][..n * d];
                    match &layer.kv {
                        KvMemory::F32(kv) => tile.copy_from_slice(&kv[at..at + n * d]),
                        KvMemory::F16(kv) => simd::f16_to_f32(isa, &kv[at..at + n * d], tile),
                    }
                }
            }
            for ((view, query), run) in views.iter().zip(&mut queries).zip(&mut running) {
                let (Some(view), Some(query)) = (view, query) else { continue };
                let from = query.sees.start.max(start);
                let to = query.sees.end.min(start + PAGE as u32);
                if from >= to {
                    continue;
                }
                // The row's own path past the common positions goes to the places of those positions.
                for p in from.max(common)..to {
                    let slot = view.slot_of(p);
                    let page = view.seq.page(class, slot);
                    for which in 0..2 {
                        let at = which * PAGE * d + (p - start) as usize * d;
                        load(layer, page, which, kv_head, slot, &mut tiles[at..at + d]);
                    }
                }
                let (k, v) = tiles.split_at(PAGE * d);
                let places = (from - start) as usize..(to - start) as usize;
                fold_page(isa, op.scale, query, run, k, v, places);
            }
        }
    });
    for (query, run) in queries.iter_mut().zip(&running) {
        let Some(query) = query else { continue };
        let scale = 1.0 / run.total;
        for (i, o) in query.out.iter_mut().enumerate() {
            *o *= scale * query.gate.map_or(1.0, |g| sigmoid(g[i]));
        }
    }
}

/// Adds the page's visible places to the row's running softmax.
fn fold_page(
    isa: Isa,
    scale: f32,
    query: &mut Query<'_>,
    run: &mut Running,
    k: &[f32],
    v: &[f32],
    places: Range<usize>,
) {
    let d = query.q.len();
    let mut scores = [0.0f32; PAGE];
    let scores = &mut scores[..places.len()];
    let mut max = run.max;
    for (score, place) in scores.iter_mut().zip(places.clone()) {
        *score = scale * simd::dot(isa, query.q, &k[place * d..(place + 1) * d]);
        max = max.max(*score);
    }
    if max > run.max {
        let shrink = if run.max == f32::NEG_INFINITY { 0.0 } else { exp(run.max - max) };
        run.total *= shrink;
        for o in query.out.iter_mut() {
            *o *= shrink;
        }
        run.max = max;
    }
    simd::exp_less(isa, max, scores);
    let mut values: [&[f32]; PAGE] = [&[]; PAGE];
    for ((score, value), row) in scores.iter().zip(&mut values).zip(v[places.start * d..].chunks_exact(d)) {
        run.total += *score;
        *value = row;
    }
    simd::add_weighted(isa, scores, &values, query.out);
}
