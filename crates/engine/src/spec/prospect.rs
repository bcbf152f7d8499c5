//! What drafting for all streams would bring, from what it brought to those that drafted.
//!
//! Among many a pass for one text never pays: all of them wait for it, and its few tokens are one text's. For all together
//! it may. So one text at a time tries the draft, and what comes true of its guesses says what all could expect.

use overdraft_plan::MAX_DRAFT_DEPTH;

use super::accept::Verdict;
use super::calibration::Calibration;
use super::tree::{Source, TokenTree};

/// Weight of the past at each lesson: about the last 33 count.
const DECAY: f64 = 0.97;
/// Lessons that the draft's own word counts for.
const PRIOR: f64 = 1.0;

/// Of one depth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reached {
    /// How often guesses were offered below a path that came true so far, and what the draft said of the best of them.
    times: f64,
    said: f64,
    /// How often one of them came true.
    went_on: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prospect {
    /// By depth from 1.
    depths: [Reached; MAX_DRAFT_DEPTH],
    calibration: Calibration,
}

impl Prospect {
    /// A tree that a draft's pass was run for, and what came true of it.
    pub fn learn(&mut self, tree: &TokenTree, verdict: &Verdict) {
        let mut at = 0;
        for (depth, reached) in self.depths.iter_mut().enumerate() {
            let offered = tree.nodes()[1..].iter().filter(|n| n.parent == at && n.source == Source::Draft);
            let Some(best) = offered.map(|n| n.logp).reduce(f32::max) else { break };
            let next = verdict.path.get(depth);
            reached.times = reached.times * DECAY + 1.0;
            reached.said = reached.said * DECAY + f64::from(best).exp();
            reached.went_on = reached.went_on * DECAY + f64::from(u8::from(next.is_some()));
            let Some(next) = next else { break };
            at = *next;
        }
        self.calibration.learn(tree, verdict);
    }

    /// How far the draft is to be trusted, by all that drafted.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// What each further guess of a text's best path is worth in tokens. Where a depth was never reached the draft is taken to
    /// say what it says above, and to be as right. `None` before the first pass.
    pub fn weights(&self) -> Option<[f64; MAX_DRAFT_DEPTH]> {
        let mut weights = [0.0; MAX_DRAFT_DEPTH];
        let (mut path, mut said, mut right) = (1.0, None, 1.0);
        for (reached, weight) in self.depths.iter().zip(&mut weights) {
            let says = if reached.times > 0.0 { reached.said / reached.times } else { said? };
            let expected = (says * right).min(1.0);
            let goes_on = (reached.went_on + PRIOR * expected) / (reached.times + PRIOR);
            (said, right) = (Some(says), goes_on / says.max(1e-6));
            path *= goes_on;
            *weight = path;
        }
        Some(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::accept::walk;

    #[test]
    fn what_all_can_expect_follows_what_comes_true_and_not_what_is_said() {
        let mut tree = TokenTree::new(100);
        tree.chain((0..7).map(|_| (1, 0.8f32.ln())), Source::Draft);
        for (came_true, want) in [(0, 0.0..0.2), (2, 1.8..2.2), (4, 3.6..4.2), (7, 6.5..7.0)] {
            let mut prospect = Prospect::default();
            assert_eq!(prospect.weights(), None, "nothing was tried");
            let mut verdict = Verdict::default();
            for _ in 0..12 {
                walk(&tree, &mut verdict, |_, depth| Ok::<_, ()>((u32::from(depth < came_true), false)))
                    .unwrap();
                prospect.learn(&tree, &verdict);
            }
            let weights = prospect.weights().unwrap();
            let sum: f64 = weights[..7].iter().sum();
            assert!(want.contains(&sum), "{came_true} came true: {sum} expected, {weights:?}");
            assert!(weights.windows(2).all(|w| w[0] >= w[1]), "{weights:?}");
        }
    }
}
