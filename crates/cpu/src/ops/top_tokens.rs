//! The most likely tokens of each row, for a draft's tree.
//!
//! A row is taken in slices of fixed length, each with its best tokens, its maximum and its sum of exponentials, and
//! the slices are merged in order: neither rows nor threads change a bit of it.

use overdraft_plan::{Act, Choice, Plan};

use super::{Cx, Mode};
use crate::linear::Isa;
use crate::math;
use crate::shared::Shared;
use crate::simd;

/// Tokens of a slice: their logits stay in the first cache between the two looks at them.
const SLICE: usize = 4096;
/// Logits compared with the least of the best at once.
const GLANCE: usize = 64;

/// What is known of a slice: its maximum, the sum of `e^(logit - maximum)`, and behind them its best tokens.
pub(crate) type Slices = Vec<(u32, f32)>;

/// Entries that the slices of a plan's rows take.
pub(super) fn scratch_len(plan: &Plan, logits: Act, choice: Choice) -> usize {
    let k = plan.choices[choice.0 as usize].width;
    let spec = plan.act(logits);
    plan.capacity(spec.rows) * spec.width.div_ceil(SLICE) * (k + 1)
}

pub(super) fn run(cx: &Cx<'_>, scratch: &mut Slices, logits: Act, choice: Choice) {
    let (n_rows, width) = (cx.acts.rows(logits), cx.acts.width(logits));
    if let Mode::Definition = cx.mode {
        for r in 0..n_rows {
            // SAFETY: one thread; logits are only read.
            unsafe { define(cx.acts.row(logits, r), cx.acts.choice_mut(choice, r)) };
        }
        return;
    }
    let k = cx.acts.choices_per_row(choice);
    let n_slices = width.div_ceil(SLICE);
    let shared = Shared::new(scratch);
    // Two looks, one of them with an exponential.
    cx.each_row(n_rows * n_slices, 2 * width.min(SLICE), |task| {
        let (r, slice) = (task / n_slices, task % n_slices);
        let tokens = slice * SLICE..width.min((slice + 1) * SLICE);
        // SAFETY: logits are only read; the slice's entries belong to this task.
        let (logits, found) = unsafe {
            (cx.acts.part(logits, r, tokens.clone()), shared.write(task * (k + 1)..(task + 1) * (k + 1)))
        };
        look(cx.isa(), logits, tokens.start as u32, found);
    });
    for r in 0..n_rows {
        // SAFETY: no task is left.
        let (slices, best) = unsafe {
            let per_row = n_slices * (k + 1);
            (shared.read(r * per_row..(r + 1) * per_row), cx.acts.choice_mut(choice, r))
        };
        merge(slices.chunks_exact(k + 1), best);
    }
}

/// Fills `best` with the largest logits as log-probabilities. What is not a number counts as impossible; a row with
/// fewer tokens than places ends in impossible ones.
fn define(logits: &[f32], best: &mut [(u32, f32)]) {
    best.fill(IMPOSSIBLE);
    for (token, logit) in logits.iter().enumerate() {
        offer(best, token as u32, *logit);
    }
    let max = best[0].1;
    let total: f64 = logits.iter().filter(|l| !l.is_nan()).map(|l| ((l - max) as f64).exp()).sum();
    to_log_probabilities(best, total);
}

const IMPOSSIBLE: (u32, f32) = (u32::MAX, f32::NEG_INFINITY);

/// The token takes its place among the best, behind those it equals. False: it is not one of them.
fn offer(best: &mut [(u32, f32)], token: u32, logit: f32) -> bool {
    let among = best.last().is_some_and(|least| logit > least.1);
    if among {
        let place = best.partition_point(|b| b.1 >= logit);
        best[place..].rotate_right(1);
        best[place] = (token, logit);
    }
    among
}

/// `total`: the sum of `e^(logit - best logit)` over the whole row.
fn to_log_probabilities(best: &mut [(u32, f32)], total: f64) {
    let norm = best[0].1 as f64 + total.ln();
    for b in best {
        b.1 = if b.1 == f32::NEG_INFINITY { b.1 } else { (b.1 as f64 - norm) as f32 };
    }
}

/// One slice; its first token is `first`.
fn look(isa: Isa, logits: &[f32], first: u32, found: &mut [(u32, f32)]) {
    let (sum, best) = found.split_first_mut().expect("a place for the sum comes before the best");
    best.fill(IMPOSSIBLE);
    for (i, some) in logits.chunks(GLANCE).enumerate() {
        // Most tokens end here.
        if simd::max(isa, some) > best[best.len() - 1].1 {
            for (token, logit) in (first + (i * GLANCE) as u32..).zip(some) {
                offer(best, token, *logit);
            }
        }
    }
    let max = best[0].1;
    *sum = (0, if max == f32::NEG_INFINITY { 0.0 } else { simd::sum_of_exp(isa, max, logits) });
}

/// Slices in order, the lower token first among equals as in each of them.
fn merge<'a>(slices: impl Iterator<Item = &'a [(u32, f32)]> + Clone, best: &mut [(u32, f32)]) {
    best.fill(IMPOSSIBLE);
    for slice in slices.clone() {
        // Best first: where one is not among the best, none behind it is.
        let _ = slice[1..].iter().take_while(|(token, logit)| offer(best, *token, *logit)).count();
    }
    let max = best[0].1;
    let share = |slice: &[(u32, f32)]| match slice[1].1 {
        f32::NEG_INFINITY => 0.0,
        own => slice[0].1 as f64 * math::exp(own - max) as f64,
    };
    to_log_probabilities(best, slices.map(share).sum());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(logits: &[f32], best: &mut [(u32, f32)]) {
        let mut found = vec![IMPOSSIBLE; (best.len() + 1) * logits.len().div_ceil(SLICE)];
        for (i, (logits, found)) in logits.chunks(SLICE).zip(found.chunks_mut(best.len() + 1)).enumerate() {
            look(Isa::detect(), logits, (i * SLICE) as u32, found);
        }
        merge(found.chunks_exact(best.len() + 1), best);
    }

    #[test]
    fn the_best_come_first_with_their_share_of_the_whole_row() {
        for top in [top, define] {
            let logits: Vec<f32> =
                [0.1f32, 0.4, 0.05, 0.4, 0.05].iter().map(|p: &f32| p.ln() + 3.0).collect();
            let mut best = [(0, 0.0); 3];
            top(&logits, &mut best);
            assert_eq!(best.map(|b| b.0), [1, 3, 0], "the lower of equals first");
            for (b, p) in best.iter().zip([0.4f32, 0.4, 0.1]) {
                assert!((b.1.exp() - p).abs() < 1e-5, "{b:?}");
            }
            top(&[f32::NAN, 2.0], &mut best);
            assert_eq!(best[0], (1, 0.0));
            assert_eq!(best[1], (u32::MAX, f32::NEG_INFINITY));
            top(&[f32::NEG_INFINITY, f32::NAN], &mut best);
            assert_eq!(best, [IMPOSSIBLE; 3], "nothing is possible");
        }
    }

    #[test]
    fn slices_merge_to_the_best_of_the_row() {
        // Equals in several slices, the best in the last, and a slice of nothing.
        let mut logits: Vec<f32> = (0..4 * SLICE + 77).map(|i| ((i * 7919) % 1013) as f32 * 0.01).collect();
        logits[2 * SLICE..3 * SLICE].fill(f32::NAN);
        logits[4 * SLICE + 5] = 30.0;
        let (mut got, mut want) = ([(0, 0.0); 16], [(0, 0.0); 16]);
        top(&logits, &mut got);
        define(&logits, &mut want);
        assert_eq!(got.map(|b| b.0), want.map(|b| b.0));
        for (got, want) in got.iter().zip(want) {
            assert!((got.1 - want.1).abs() < 1e-5, "{got:?} {want:?}");
        }
    }
}
