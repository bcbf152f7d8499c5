//! Mixture of experts: who is chosen, and the chosen experts' feed-forward layers.

use overdraft_plan::{ExpertAdd, ExpertGlu, Matrix, Route, RouteRule};

use super::linear::{Operand, apply_glu};
use super::thread_buffer::with_buffer;
use super::{Cx, OpScratch};

/// The (row, rank) pairs of each expert, so that an expert's weights are read once for all rows that chose it.
#[derive(Default)]
pub(crate) struct Grouping {
    /// Experts chosen by at least one row, with their ranges of `pairs`.
    used: Vec<(u32, std::ops::Range<usize>)>,
    /// `row * k + rank`
    pairs: Vec<u32>,
    counts: Vec<u32>,
    /// The chosen rows side by side, expert after expert.
    gathered: Vec<f32>,
}

impl Grouping {
    /// Makes room for `pairs` choices among `n_experts`, with inputs of `width`.
    pub(super) fn reserve(&mut self, pairs: usize, n_experts: usize, width: usize) {
        fn grow<T>(vec: &mut Vec<T>, capacity: usize) {
            vec.clear();
            vec.reserve(capacity);
        }
        grow(&mut self.used, n_experts.min(pairs));
        grow(&mut self.pairs, pairs);
        grow(&mut self.counts, n_experts);
        grow(&mut self.gathered, pairs * width);
    }

    fn fill(&mut self, choices: &[(u32, f32)], n_experts: usize) {
        self.counts.clear();
        self.counts.resize(n_experts, 0);
        choices.iter().for_each(|c| self.counts[c.0 as usize] += 1);
        self.used.clear();
        let mut start = 0;
        for (e, count) in self.counts.iter_mut().enumerate() {
            if *count > 0 {
                self.used.push((e as u32, start..start + *count as usize));
            }
            let n = *count as usize;
            *count = start as u32;
            start += n;
        }
        self.pairs.clear();
        self.pairs.resize(choices.len(), 0);
        for (pair, choice) in choices.iter().enumerate() {
            let at = &mut self.counts[choice.0 as usize];
            self.pairs[*at as usize] = pair as u32;
            *at += 1;
        }
    }

    /// Lays the input of each pair, `width` floats at `source(pair)`, in the grouped order.
    fn gather<'x>(&mut self, width: usize, source: impl Fn(usize) -> &'x [f32]) {
        self.gathered.clear();
        for pair in &self.pairs {
            self.gathered.extend_from_slice(&source(*pair as usize)[..width]);
        }
    }
}

/// The definition and the only path: a row's experts, best first, ties to the lower index.
pub(super) fn route(cx: &Cx<'_>, op: &Route) {
    cx.each(cx.acts.rows(op.logits), |r| {
        // SAFETY: logits are only read; the row's choice belongs to this task.
        let (logits, choice) = unsafe { (cx.acts.row(op.logits, r), cx.acts.choice_mut(op.choice, r)) };
        for rank in 0..choice.len() {
            let (chosen, rest) = choice.split_at_mut(rank);
            let mut best: Option<(u32, f32)> = None;
            for (e, logit) in logits.iter().enumerate() {
                let taken = chosen.iter().any(|c| c.0 == e as u32);
                if !taken && best.is_none_or(|b| *logit > b.1) {
                    best = Some((e as u32, *logit));
                }
            }
            // More experts than `k` are guaranteed at load; only NaN logits leave `best` to the first free one.
            rest[0] = best.unwrap_or((rank as u32, f32::NAN));
        }
        let max = choice[0].1;
        let total: f32 = match op.rule {
            RouteRule::Softmax => logits.iter().map(|l| (l - max).exp()).sum(),
            RouteRule::SoftmaxRenormalised | RouteRule::TopThenSoftmax => {
                choice.iter().map(|c| (c.1 - max).exp()).sum()
            }
        };
        for c in choice {
            c.1 = (c.1 - max).exp() / total;
        }
    });
}

/// Outputs of one task: few, since an expert's rows are few and there are many experts.
const OUTS: usize = 32;

/// Floats of the largest buffer that a task of these ops asks for in steps of up to `bucket` rows: two tiles of an
/// expert that every row chose.
pub(super) fn buffer_len(bucket: usize) -> usize {
    2 * OUTS * bucket
}

/// Calls `tile(expert, its pair range, its outputs from..to)` for every tile of every expert that was chosen.
fn each_expert_tile(
    cx: &Cx<'_>,
    grouping: &Grouping,
    n_outs: usize,
    tile: impl Fn(usize, std::ops::Range<usize>, std::ops::Range<usize>) + Sync,
) {
    let tiles = n_outs.div_ceil(OUTS);
    cx.each(grouping.used.len() * tiles, |task| {
        let (expert, pairs) = &grouping.used[task / tiles];
        let first = task % tiles * OUTS;
        tile(*expert as usize, pairs.clone(), first..n_outs.min(first + OUTS));
    });
}

pub(super) fn glu(cx: &Cx<'_>, scratch: &mut OpScratch, op: &ExpertGlu) {
    let OpScratch { quant, grouping, .. } = scratch;
    // SAFETY: choices and x are only read in this op.
    let (choices, k) = unsafe { cx.acts.choices(op.choice) };
    let (gate, up) = (cx.weights.matrix(op.gate), cx.weights.matrix(op.up));
    grouping.fill(choices, gate.rows / op.stride);
    // SAFETY: as above.
    grouping.gather(cx.acts.width(op.x), |pair| unsafe { cx.acts.row(op.x, pair / k) });
    let grouping = &*grouping;
    let operand =
        Operand::new(cx.mode, quant, &grouping.gathered, cx.acts.width(op.x), [gate, up].into_iter());
    each_expert_tile(cx, grouping, op.width, |expert, pairs, outs| {
        let n = pairs.len();
        with_buffer(2 * outs.len() * n, |tiles| {
            let (g, u) = tiles.split_at_mut(outs.len() * n);
            for (m, first, bias, tile) in
                [(gate, 0, op.gate_bias, &mut *g), (up, op.up_row, op.up_bias, &mut *u)]
            {
                let row = expert * op.stride + first + outs.start;
                operand.product(cx.mode, m, row, outs.len(), pairs.clone(), tile);
                if let Some(bias) = bias {
                    let bias = &cx.weights.vector(bias)[expert * op.width..][outs.clone()];
                    for (o, b) in bias.iter().enumerate() {
                        tile[o * n..(o + 1) * n].iter_mut().for_each(|y| *y += b);
                    }
                }
            }
            apply_glu(cx.isa(), op.glu, g, u);
            let columns = |rank: usize| rank * op.width + outs.start..rank * op.width + outs.end;
            spread(cx, op.out, &grouping.pairs[pairs], k, g, columns);
        });
    });
}

/// Writes a tile `[outputs, pairs]` to each pair's columns of its row.
fn spread(
    cx: &Cx<'_>,
    act: overdraft_plan::Act,
    pairs: &[u32],
    k: usize,
    tile: &[f32],
    columns: impl Fn(usize) -> std::ops::Range<usize>,
) {
    for (i, pair) in pairs.iter().enumerate() {
        let (row, rank) = (*pair as usize / k, *pair as usize % k);
        // SAFETY: a (row, rank, output) is computed by one task.
        let out = unsafe { cx.acts.part_mut(act, row, columns(rank)) };
        for (o, y) in out.iter_mut().enumerate() {
            *y = tile[o * pairs.len() + i];
        }
    }
}

pub(super) fn add(cx: &Cx<'_>, scratch: &mut OpScratch, op: &ExpertAdd) {
    let OpScratch { quant, grouping, .. } = scratch;
    // SAFETY: choices and h are only read in this op.
    let (choices, k) = unsafe { cx.acts.choices(op.choice) };
    let down: &Matrix = cx.weights.matrix(op.down);
    let hidden = cx.acts.width(op.stream);
    grouping.fill(choices, down.rows / hidden);
    let width = down.cols;
    // SAFETY: as above.
    grouping.gather(width, |pair| unsafe { &cx.acts.row(op.h, pair / k)[pair % k * width..] });
    let grouping = &*grouping;
    let operand = Operand::new(cx.mode, quant, &grouping.gathered, width, std::iter::once(down));
    each_expert_tile(cx, grouping, hidden, |expert, pairs, outs| {
        with_buffer(outs.len() * pairs.len(), |tile| {
            operand.product(cx.mode, down, expert * hidden + outs.start, outs.len(), pairs.clone(), tile);
            let columns = |rank: usize| rank * hidden + outs.start..rank * hidden + outs.end;
            spread(cx, op.parts, &grouping.pairs[pairs], k, tile, columns);
        });
    });
    let bias = op.bias.map(|b| cx.weights.vector(b));
    cx.each(cx.acts.rows(op.stream), |r| {
        // SAFETY: row `r` of the stream belongs to this task; the parts are complete.
        let (stream, parts) = unsafe { (cx.acts.row_mut(op.stream, r), cx.acts.row(op.parts, r)) };
        for (rank, (expert, weight)) in choices[r * k..(r + 1) * k].iter().enumerate() {
            let bias = bias.map(|b| &b[*expert as usize * hidden..][..hidden]);
            for (i, s) in stream.iter_mut().enumerate() {
                *s += weight * (parts[rank * hidden + i] + bias.map_or(0.0, |b| b[i]));
            }
        }
    });
}
