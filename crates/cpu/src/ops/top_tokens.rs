//! The most likely tokens of each row, for a draft's tree.

use overdraft_plan::{Act, Choice};

use super::Cx;

pub(super) fn run(cx: &Cx<'_>, logits: Act, choice: Choice) {
    cx.each(cx.acts.rows(logits), |r| {
        // SAFETY: logits are only read; the row's choice belongs to this task.
        let (logits, best) = unsafe { (cx.acts.row(logits, r), cx.acts.choice_mut(choice, r)) };
        top(logits, best);
    });
}

/// Fills `best` with the largest logits as log-probabilities. What is not a number counts as impossible; a row with
/// fewer tokens than places ends in impossible ones.
fn top(logits: &[f32], best: &mut [(u32, f32)]) {
    best.fill((u32::MAX, f32::NEG_INFINITY));
    for (token, logit) in logits.iter().enumerate() {
        // Most tokens end here: one comparison with the least of the best so far.
        if *logit > best[best.len() - 1].1 {
            let place = best.partition_point(|b| b.1 >= *logit);
            best[place..].rotate_right(1);
            best[place] = (token as u32, *logit);
        }
    }
    let max = best[0].1;
    let total: f64 = logits.iter().filter(|l| !l.is_nan()).map(|l| ((l - max) as f64).exp()).sum();
    let norm = max as f64 + total.ln();
    for b in best {
        b.1 = if b.1 == f32::NEG_INFINITY { b.1 } else { (b.1 as f64 - norm) as f32 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_with_their_share_of_the_whole_row() {
        let logits: Vec<f32> = [0.1f32, 0.4, 0.05, 0.4, 0.05].iter().map(|p: &f32| p.ln() + 3.0).collect();
        let mut best = [(0, 0.0); 3];
        top(&logits, &mut best);
        assert_eq!(best.map(|b| b.0), [1, 3, 0], "the lower of equals first");
        for (b, p) in best.iter().zip([0.4f32, 0.4, 0.1]) {
            assert!((b.1.exp() - p).abs() < 1e-5, "{b:?}");
        }
        top(&[f32::NAN, 2.0], &mut best);
        assert_eq!(best[0], (1, 0.0));
        assert_eq!(best[1], (u32::MAX, f32::NEG_INFINITY));
    }
}
