//! Attention page by page: the queries of several rows and heads meet a page of keys and values together, as small
//! matrix products on the values as they are stored. Each query folds page after page into a running softmax of its
//! own, so which queries share a task changes nothing in any of them.

use std::ops::Range;

use overdraft_plan::{Attention, MAX_DRAFT_DEPTH, PAGE, RowView};

use super::Cx;
use super::attention::{Query, query};
use super::thread_buffer::with_buffer;
use crate::linear::Isa;
use crate::math::exp;
use crate::memory::AttentionMemory;
use crate::simd;
use crate::sums::{Element, Factors, Matrix, Start, weighted_sums};

/// Rows of a sequence in one task. A page of keys and values comes from memory once for all of them.
const ROW_BLOCK: usize = 16;
/// Heads of a task, which all read the same keys and values. As many sums as a tile of registers holds.
const HEADS: usize = 4;
/// Places for the keys of a row's own path in a page, in whole vectors.
const OWN_WIDTH: usize = (MAX_DRAFT_DEPTH + 1).next_multiple_of(16);

/// Floats of a task's buffer: the keys of a row's own path.
pub(super) fn buffer_len(head_dim: usize) -> usize {
    OWN_WIDTH * head_dim
}

/// One task per (up to [`ROW_BLOCK`] rows of a sequence, up to [`HEADS`] heads that share keys and values).
pub(super) fn run<T: Element + Sync>(
    cx: &Cx<'_>,
    op: &Attention,
    layer: &AttentionMemory,
    kv: &[T],
    isa: Isa,
) {
    let blocks_of = |s: usize| cx.step.seq(s).rows.len().div_ceil(ROW_BLOCK);
    let n_blocks: usize = (0..cx.step.n_seqs()).map(blocks_of).sum();
    let shared_by = op.heads / op.kv_heads;
    let mut heads = shared_by.min(HEADS);
    while heads > 1 && n_blocks * op.kv_heads * shared_by.div_ceil(heads) < cx.threads() {
        heads = heads.div_ceil(2);
    }
    let parts = shared_by.div_ceil(heads);
    let per_block = op.kv_heads * parts;
    let n_tasks = n_blocks * per_block;
    cx.each(n_tasks, |task| {
        // The last rows see the most, and what is begun last should be short.
        let task = n_tasks - 1 - task;
        let (mut block, kv_head, part) = (task / per_block, task % per_block / parts, task % parts);
        let mut s = 0;
        while block >= blocks_of(s) {
            block -= blocks_of(s);
            s += 1;
        }
        let rows = cx.step.seq(s).rows;
        let rows = &rows[block * ROW_BLOCK..rows.len().min((block + 1) * ROW_BLOCK)];
        let first_head = kv_head * shared_by;
        let heads = first_head + part * heads..first_head + ((part + 1) * heads).min(shared_by);
        with_buffer(buffer_len(op.head_dim), |own_keys| {
            Task { cx, op, layer, kv, isa, kv_head, own_keys }.run(rows, heads);
        });
    });
}

struct Task<'a, T> {
    cx: &'a Cx<'a>,
    op: &'a Attention,
    layer: &'a AttentionMemory,
    kv: &'a [T],
    isa: Isa,
    kv_head: usize,
    own_keys: &'a mut [f32],
}

/// A query and its running softmax; `out` holds the sum of the values so far.
struct Running<'a> {
    query: Query<'a>,
    view: &'a RowView<'a>,
    max: f32,
    total: f32,
}

/// A page of keys (`[channel, place]`) and values (`[place, channel]`).
struct Page<'a, T> {
    /// Its first position.
    start: u32,
    keys: &'a [T],
    values: &'a [T],
    /// Up to here its positions are common to all rows of the sequence.
    common: u32,
}

impl<T> Page<'_, T> {
    fn place(&self, position: u32) -> usize {
        (position - self.start) as usize
    }
}

impl<'a, T: Element> Task<'a, T> {
    fn run(&mut self, rows: &[u32], heads: Range<usize>) {
        let (cx, op) = (self.cx, self.op);
        let views: [Option<RowView<'_>>; ROW_BLOCK] =
            std::array::from_fn(|i| rows.get(i).map(|r| cx.step.view(*r as usize)));
        let n = rows.len() * heads.len();
        let mut all: [Option<Running<'_>>; ROW_BLOCK * HEADS] = std::array::from_fn(|i| {
            if i >= n {
                return None;
            }
            let view = views[i / heads.len()].as_ref()?;
            let head = heads.start + i % heads.len();
            // SAFETY: q is only read in this op; (row, head) pairs are dealt to tasks once.
            let query = unsafe { query(cx, op, view, rows[i / heads.len()] as usize, head) };
            let (max, total) = match op.sinks {
                Some(sinks) => (cx.weights.vector(sinks)[head], 1.0),
                None => (f32::NEG_INFINITY, 0.0),
            };
            Some(Running { query, view, max, total })
        });
        let all = &mut all[..n];
        let (mut first, mut last) = (u32::MAX, 0);
        for running in all.iter_mut().flatten() {
            running.query.out.fill(0.0);
            first = first.min(running.query.sees.start);
            last = last.max(running.query.sees.end - 1);
        }
        let Some(seq) = views[0].as_ref().map(|v| v.seq) else { return };
        for group in first / PAGE as u32..=last / PAGE as u32 {
            let start = group * PAGE as u32;
            let common = seq.sure_end().min(start + PAGE as u32).max(start);
            let (keys, values): (&[T], &[T]) = if common > start {
                let (page, layout) = (seq.page(self.layer.shape.class, start), self.layer.layout());
                (&self.kv[layout.keys(page, self.kv_head)], &self.kv[layout.values(page, self.kv_head)])
            } else {
                (&[], &[])
            };
            let page = Page { start, keys, values, common };
            for some in all.chunks_mut(HEADS) {
                self.fold(&page, some);
            }
        }
        for running in all.iter_mut().flatten() {
            let Query { gate, out, .. } = &mut running.query;
            simd::scale(self.isa, 1.0 / running.total, out);
            if let Some(gate) = gate {
                simd::times_sigmoid(self.isa, gate, out);
            }
        }
    }

    /// The page and slot of what the row has at `position`.
    fn slot(&self, running: &Running<'_>, position: u32) -> (usize, u32) {
        let slot = running.view.slot_of(position);
        (running.view.seq.page(self.layer.shape.class, slot), slot)
    }

    /// Adds what up to [`HEADS`] queries see of the page to their running softmax.
    fn fold(&mut self, page: &Page<'_, T>, some: &mut [Option<Running<'_>>]) {
        // What each sees of the page: places shared with the other rows, then its own path's.
        let mut seen: [Range<usize>; HEADS] = [const { 0..0 }; HEADS];
        let mut queries: [&[f32]; HEADS] = [&[]; HEADS];
        for ((seen, q), running) in seen.iter_mut().zip(&mut queries).zip(some.iter().flatten()) {
            let sees = &running.query.sees;
            let from = sees.start.max(page.start);
            let to = sees.end.min(page.start + PAGE as u32);
            *seen = if from < to { page.place(from)..page.place(to) } else { 0..0 };
            *q = running.query.q;
        }
        let n = some.len();
        if seen[..n].iter().all(Range::is_empty) {
            return;
        }
        let n_common = page.place(page.common);
        let mut scores = [[0.0f32; PAGE]; HEADS];
        if n_common > 0 {
            let mut sums = scores.each_mut().map(|s| s.as_mut_slice());
            let keys = Matrix { elements: page.keys, width: PAGE };
            let factors = Factors { of: &queries[..n], step: 1 };
            weighted_sums(self.isa, factors, &keys, Start::Zero, &mut sums[..n]);
        }
        for i in 0..n {
            let own = seen[i].start.max(n_common)..seen[i].end;
            if let (false, Some(running)) = (own.is_empty(), &some[i]) {
                self.score_own(page, running, own, &mut scores[i]);
            }
        }
        for ((running, seen), scores) in some.iter_mut().flatten().zip(&seen).zip(&mut scores) {
            if seen.is_empty() {
                continue;
            }
            let (max, total) = simd::softmax_part(self.isa, self.op.scale, running.max, seen.clone(), scores);
            if max > running.max {
                let shrink = if running.max == f32::NEG_INFINITY { 0.0 } else { exp(running.max - max) };
                running.total *= shrink;
                simd::scale(self.isa, shrink, running.query.out);
                running.max = max;
            }
            running.total += total;
        }
        self.add_values(page, some, &seen, &scores, n_common);
    }

    /// Scores of a row's own path past the common positions, at the places of its positions.
    fn score_own(
        &mut self,
        page: &Page<'_, T>,
        running: &Running<'_>,
        own: Range<usize>,
        scores: &mut [f32; PAGE],
    ) {
        let d = self.op.head_dim;
        for (i, place) in own.clone().enumerate() {
            let (own_page, slot) = self.slot(running, page.start + place as u32);
            let key = self.layer.layout().key(own_page, self.kv_head, slot);
            for (to, at) in self.own_keys.chunks_exact_mut(OWN_WIDTH).zip(key) {
                to[i] = self.kv[at].wide();
            }
        }
        let mut sums = [0.0f32; OWN_WIDTH];
        let keys = Matrix { elements: &self.own_keys[..d * OWN_WIDTH], width: OWN_WIDTH };
        let factors = Factors { of: &[running.query.q], step: 1 };
        let width = own.len().next_multiple_of(16);
        weighted_sums(self.isa, factors, &keys, Start::Zero, &mut [&mut sums[..width]]);
        let n = own.len();
        scores[own].copy_from_slice(&sums[..n]);
    }

    /// Values in position order: what all the queries see of the common ones together, the rest each for itself.
    fn add_values(
        &self,
        page: &Page<'_, T>,
        some: &mut [Option<Running<'_>>],
        seen: &[Range<usize>; HEADS],
        scores: &[[f32; PAGE]; HEADS],
        n_common: usize,
    ) {
        let d = self.op.head_dim;
        let n = some.len();
        let shared = |i: usize| seen[i].start..seen[i].end.min(n_common).max(seen[i].start);
        let mut from = (0..n).map(|i| shared(i).start).max().unwrap_or(0);
        let mut to = (0..n).map(|i| shared(i).end).min().unwrap_or(0);
        if from >= to {
            // Nothing is seen by all: each takes the whole of its own before the joint part, which is empty.
            (from, to) = (PAGE, PAGE);
        }
        let values = |places: Range<usize>| Matrix {
            elements: if places.is_empty() { &[] } else { &page.values[places.start * d..places.end * d] },
            width: d,
        };
        let single = |running: &mut Running<'_>, scores: &[f32; PAGE], places: Range<usize>| {
            if !places.is_empty() {
                let factors = Factors { of: &[&scores[places.clone()]], step: 1 };
                let out: &mut [f32] = running.query.out;
                weighted_sums(self.isa, factors, &values(places), Start::ADD, &mut [out]);
            }
        };
        for (i, running) in some.iter_mut().flatten().enumerate() {
            single(running, &scores[i], shared(i).start..shared(i).end.min(from));
        }
        if from < to {
            let mut sums: [&mut [f32]; HEADS] = Default::default();
            let mut weights: [&[f32]; HEADS] = [&[]; HEADS];
            for (i, running) in some.iter_mut().flatten().enumerate() {
                sums[i] = running.query.out;
                weights[i] = &scores[i][from..to];
            }
            let factors = Factors { of: &weights[..n], step: 1 };
            weighted_sums(self.isa, factors, &values(from..to), Start::ADD, &mut sums[..n]);
        }
        for (i, running) in some.iter_mut().flatten().enumerate() {
            single(running, &scores[i], shared(i).start.max(to)..shared(i).end);
            self.add_own(page, running, &scores[i], seen[i].start.max(n_common)..seen[i].end);
        }
    }

    fn add_own(
        &self,
        page: &Page<'_, T>,
        running: &mut Running<'_>,
        scores: &[f32; PAGE],
        own: Range<usize>,
    ) {
        if own.is_empty() {
            return;
        }
        let mut rows: [&[T]; MAX_DRAFT_DEPTH + 1] = [&[]; MAX_DRAFT_DEPTH + 1];
        for (row, place) in rows.iter_mut().zip(own.clone()) {
            let (own_page, slot) = self.slot(running, page.start + place as u32);
            *row = &self.kv[self.layer.layout().value(own_page, self.kv_head, slot)];
        }
        let n = own.len();
        let factors = Factors { of: &[&scores[own]], step: 1 };
        let out: &mut [f32] = running.query.out;
        weighted_sums(self.isa, factors, &rows[..n], Start::ADD, &mut [out]);
    }
}
