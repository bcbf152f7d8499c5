//! Mixture of experts: who is chosen, and the chosen experts' feed-forward layers.

use overdraft_plan::{ExpertAdd, ExpertGlu, Route, RouteRule};

use super::linear::{Operand, apply_glu};
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

/// Outputs of one task, no more than those of [`super::linear`]: few, since an expert's rows are few and there are many
/// experts.
const OUTS: usize = 32;

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
    let (gate, up) = (cx.weight(op.gate), cx.weight(op.up));
    grouping.fill(choices, gate.matrix.rows / op.stride);
    // SAFETY: as above.
    grouping.gather(cx.acts.width(op.x), |pair| unsafe { cx.acts.row(op.x, pair / k) });
    let grouping = &*grouping;
    let operand =
        Operand::new(cx.mode, quant, &grouping.gathered, cx.acts.width(op.x), [gate, up].into_iter());
    each_expert_tile(cx, grouping, op.width, |expert, pairs, outs| {
        let first = expert * op.stride;
        let weights = [(gate, first), (up, first + op.up_row)];
        let bias = [op.gate_bias, op.up_bias]
            .map(|bias| bias.map(|bias| &cx.weights.vector(bias)[expert * op.width..][outs.clone()]));
        operand.each_row(cx.mode, weights, &outs, pairs, |i, mut products| {
            for (product, bias) in products.iter_mut().zip(bias) {
                for (y, b) in product.iter_mut().zip(bias.unwrap_or_default()) {
                    *y += b;
                }
            }
            let [g, u] = products;
            apply_glu(cx.isa(), op.glu, g, u);
            let pair = grouping.pairs[i] as usize;
            let at = pair % k * op.width;
            // SAFETY: a (row, rank, output) is computed by one task.
            unsafe { cx.acts.part_mut(op.out, pair / k, at + outs.start..at + outs.end) }.copy_from_slice(g);
        });
    });
}

pub(super) fn add(cx: &Cx<'_>, scratch: &mut OpScratch, op: &ExpertAdd) {
    let OpScratch { quant, grouping, .. } = scratch;
    // SAFETY: choices and h are only read in this op.
    let (choices, k) = unsafe { cx.acts.choices(op.choice) };
    let down = cx.weight(op.down);
    let hidden = cx.acts.width(op.stream);
    grouping.fill(choices, down.matrix.rows / hidden);
    let width = down.matrix.cols;
    // SAFETY: as above.
    grouping.gather(width, |pair| unsafe { &cx.acts.row(op.h, pair / k)[pair % k * width..] });
    let grouping = &*grouping;
    let operand = Operand::new(cx.mode, quant, &grouping.gathered, width, std::iter::once(down));
    each_expert_tile(cx, grouping, hidden, |expert, pairs, outs| {
        operand.each_row(cx.mode, [(down, expert * hidden)], &outs, pairs, |i, [sums]| {
            let pair = grouping.pairs[i] as usize;
            let at = pair % k * hidden;
            // SAFETY: a (row, rank, output) is computed by one task.
            unsafe { cx.acts.part_mut(op.parts, pair / k, at + outs.start..at + outs.end) }
                .copy_from_slice(sums);
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
