//! For the tests of this folder: randomness, and a world of costs and acceptance to speculate in.

use super::accept::{Verdict, walk};
use super::budget::Beside;
use super::cost::CostModel;
use super::ddtree::Ranked;
use super::drafter::{BlockDraft, Candidates, Drafter, ProposeInput};
use super::policy::Policy;
use super::tree::TokenTree;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Two multiplications of a counter; 53 bits.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, n: u32) -> u32 {
        ((self.uniform() * n as f64) as u32).min(n - 1)
    }
}

/// How good a draft is. Its blocks differ: each draws what it says of its first choices from `said`.
#[derive(Clone, Copy)]
pub(crate) struct Quality {
    pub(crate) said: (f64, f64),
    /// True probabilities over said ones.
    pub(crate) truth: f64,
}

/// Costs in units of a plain step.
pub(crate) struct World<'a> {
    pub(crate) steps: &'a [(usize, f64)],
    pub(crate) draft: f64,
    pub(crate) quality: &'a dyn Fn(usize) -> Quality,
}

/// Candidates by depth, most likely first.
pub(crate) type Lists = Vec<Vec<(u32, f32)>>;

const DEPTHS: usize = 15;
const RANKS: u32 = 12;

impl World<'_> {
    fn true_costs(&self) -> CostModel {
        let mut cost = CostModel::default();
        cost.seed(self.steps.iter().copied(), Some(self.draft));
        cost
    }

    /// Candidates of a block, token = rank + 1, and the target's tokens; 0 is none of the candidates.
    fn block(&self, quality: Quality, random: &mut Random, lists: &mut Lists) -> Vec<u32> {
        let (low, high) = quality.said;
        let ease = low + (high - low) * random.uniform();
        lists.clear();
        let mut text = Vec::new();
        for depth in 0..DEPTHS {
            let first = ease * 0.98f64.powi(depth as i32);
            let second = first.min(1.0 - first) / 2.0;
            let share = |rank: u32| if rank == 0 { first } else { second * 0.5f64.powi(rank as i32 - 1) };
            let list: Vec<(u32, f32)> = (0..RANKS).map(|r| (r + 1, share(r).ln() as f32)).collect();
            let mut left = random.uniform();
            let drawn = list.iter().find(|c| {
                left -= (c.1 as f64).exp() * quality.truth;
                left < 0.0
            });
            text.push(drawn.map_or(0, |c| c.0));
            lists.push(list);
        }
        text.push(0);
        text
    }

    /// Writes `n` tokens; returns the seconds spent at the end of each. Policy and drafter see noisy times.
    pub(crate) fn run(
        &self,
        policy: &mut Policy,
        drafter: &mut BlockDraft,
        cost: &mut CostModel,
        n: usize,
        seed: u64,
    ) -> Vec<f64> {
        let blocks =
            |at: usize, random: &mut Random, lists: &mut Lists| self.block((self.quality)(at), random, lists);
        speculate(&self.true_costs(), blocks, policy, drafter, cost, n, seed)
    }
}

/// Rounds over what a draft says at each position of a text of `n` tokens; returns the seconds spent at the end of
/// each. `block(position, ...)` fills in the candidates and returns the target's tokens, one more than there are
/// depths.
pub(crate) fn speculate(
    truth: &CostModel,
    mut block: impl FnMut(usize, &mut Random, &mut Lists) -> Vec<u32>,
    policy: &mut Policy,
    drafter: &mut BlockDraft,
    cost: &mut CostModel,
    n: usize,
    seed: u64,
) -> Vec<f64> {
    let mut random = Random(seed << 32);
    let (mut tree, mut verdict, mut lists) = (TokenTree::new(u32::MAX), Verdict::default(), Vec::new());
    let (mut spent, mut ends) = (0.0, Vec::new());
    while ends.len() < n {
        let text = block(ends.len(), &mut random, &mut lists);
        let ranked: Vec<Ranked<'_>> = lists.iter().map(Vec::as_slice).take(n - ends.len() - 1).collect();
        let round = policy.decide(cost, Beside::default());
        tree.clear(0);
        let candidates = if round.forward { Candidates::Depths(&ranked) } else { Candidates::None };
        let growth = round.growth(cost, Beside::default());
        let input = ProposeInput { candidates, shape: round.shape };
        let forecast = drafter.propose(&input, &growth, &mut tree);
        walk(&tree, &mut verdict, |_, depth| Ok::<_, ()>((text[depth as usize], false))).unwrap();
        drafter.learn(&tree, &verdict);
        verdict.tokens(&tree).for_each(|t| drafter.committed(t));
        policy.learn(&round, &forecast, verdict.n_tokens(), cost, Beside::default());

        let step = truth.step_seconds(tree.len()).unwrap();
        let outlier = if random.below(50) == 0 { 10.0 } else { 1.0 };
        cost.learn_step(tree.len(), step * outlier * (0.95 + 0.1 * random.uniform()));
        spent += step;
        if round.forward {
            let draft = truth.draft_seconds().unwrap();
            cost.learn_draft(draft * outlier * (0.95 + 0.1 * random.uniform()));
            spent += draft;
        }
        ends.extend(std::iter::repeat_n(spent, verdict.n_tokens()));
    }
    ends.truncate(n);
    ends
}
