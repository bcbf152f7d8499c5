//! Whether a round drafts at all. In `auto`, speculation runs on account: it may lose a little against plain decoding
//! before it is stopped, and from there a draft every so often, ever more rarely, finds the way back.

use super::budget::{Beside, Forecast, Growth, Worth};
use super::cost::CostModel;
use super::drafter::Shape;
use super::tree::MAX_DRAFTS;

/// What speculation may be behind plain decoding before it stops, and what it can save up for that, both in plain
/// steps. By forecasts, which vary little: this is what a probe may cost. Blocks of one text differ, so one poor
/// block is no verdict on a text that has been good: judged by one alone, a draft worth 12 % went unused half the
/// time (simulated).
const FORESEEN_OVERDRAFT: f64 = 0.45;
const FORESEEN_CREDIT: f64 = 2.0;
/// Credit that a text begins with: for a pair of which nothing is known, and at most after texts that went well. After
/// one that went badly it is nothing, and the first poor block ends the probe. (Four prose texts of 40 tokens in a row,
/// recorded: 0.97 of plain speed; with 0.75 for every text it was 0.94 to 0.99 each.)
const UNKNOWN_CREDIT: f64 = 0.35;
const CARRIED_CREDIT: f64 = 1.0;
/// By what was really accepted, which varies much, and catches forecasts that are wrong. A short answer must not lose
/// what a long one makes up for: so much at first, more with each token written, up to the most.
const FIRST_OVERDRAFT: f64 = 1.5;
const OVERDRAFT_PER_TOKEN: f64 = 0.02;
const OVERDRAFT: f64 = 3.0;
const MAX_CREDIT: f64 = 4.0;
/// How many times that a text may lose where others draft along: whether all of them should is decided together, and what it
/// costs to find out how dear rows are is nobody's fault. (Two of sixteen that stopped then went on plainly for 16 tokens, and
/// soon nine; texts with all guesses right wrote 1.2 times plain speed in place of 1.7, simulated.)
const PATIENCE: f64 = 3.0;
/// Really this far ahead, the next plain stretch is a short one again.
const EARNED: f64 = 2.0;
/// Tokens written plainly before the next probe, doubled with each that fails.
const FIRST_WAIT: usize = 16;
const LONGEST_WAIT: usize = 512;
/// The longest that a new text begins with: past an answer of 40 tokens, and soon enough for one of 128 that is another
/// matter. (With no bound one poor text kept the next three plain, where drafting was worth 1.3 times plain speed.)
const CARRIED_WAIT: usize = 48;
/// Weight of the past in the rate, a round.
const RATE_DECAY: f64 = 0.95;

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Whatever is fastest.
    #[default]
    Auto,
    Off,
    /// Always, one child per node.
    Chain,
    /// Always, branching.
    Tree,
}

/// What a round should do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    pub shape: Shape,
    /// Run the draft's pass.
    pub forward: bool,
    /// Drafted nodes at most; 0 is plain decoding.
    pub limit: usize,
    /// Take as many as the limit says, whatever they are worth.
    pub is_fixed: bool,
    /// Drafts among many for what there is to learn.
    pub is_try: bool,
    rate: Option<f64>,
}

impl Round {
    pub fn is_plain(&self) -> bool {
        self.limit == 0
    }

    pub fn is_chain(&self) -> bool {
        self.shape == Shape::Chain
    }

    /// How far its tree may grow where the sequences of a step decide [together](super::together).
    pub fn offer(&self) -> Growth<'static> {
        if self.is_fixed { Growth::Fixed(self.limit) } else { Growth::Offer(self.limit) }
    }

    /// Tokens a second by which its time is worth.
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Takes so many nodes, whatever they are worth, to find out for all.
    pub fn trying(self, limit: usize) -> Self {
        Self { limit: self.limit.min(limit), is_fixed: true, is_try: true, ..self }
    }

    /// Goes without the draft's pass, as if it had not been asked for.
    pub fn without_forward(self, is_unaided: bool) -> Self {
        Self { forward: false, limit: if is_unaided { self.limit } else { 0 }, ..self }
    }

    /// How far its tree may grow.
    pub fn growth<'a>(&self, cost: &'a CostModel, beside: Beside) -> Growth<'a> {
        if self.is_fixed {
            return Growth::Fixed(self.limit);
        }
        let draft_seconds = if self.forward { cost.draft_share(beside.drafting + 1) } else { 0.0 };
        Growth::Worth(Worth { cost, draft_seconds, beside, rate: self.rate, limit: self.limit })
    }
}

/// How drafting went lately, for texts to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Tokens to write plainly if the first probe fails.
    pub wait: usize,
    /// Plain steps that drafting may lose besides what any text may.
    pub credit: f64,
}

/// One sequence's choice, round by round.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    mode: Mode,
    budget: Option<usize>,
    has_forward: bool,
    is_unaided: bool,
    /// Tokens to write without a draft pass before the next probe; 0 while speculating.
    plain_left: usize,
    /// The next such stretch.
    wait: usize,
    /// Time won (or lost) against plain decoding since speculation last began, in plain steps: as forecast, and as
    /// it came.
    foreseen: f64,
    account: f64,
    /// Recent tokens and the seconds they took.
    recent: (f64, f64),
    /// Tokens written so far.
    written: usize,
}

impl Policy {
    /// `budget`: drafted nodes, at most 63, 0 for none. With chain or tree it is taken as it is, with auto it is an
    /// upper limit. `has_forward` and `is_unaided` as the drafter says of itself.
    pub fn new(mode: Mode, budget: Option<usize>, has_forward: bool, is_unaided: bool) -> Self {
        let can_draft = has_forward || is_unaided;
        Self {
            mode: if budget == Some(0) || !can_draft { Mode::Off } else { mode },
            budget: budget.map(|n| n.min(MAX_DRAFTS)),
            has_forward,
            is_unaided,
            plain_left: 0,
            wait: FIRST_WAIT,
            foreseen: UNKNOWN_CREDIT,
            account: 0.0,
            recent: (0.0, 0.0),
            written: 0,
        }
    }

    /// What the next text of the same pair begins with.
    pub fn standing(&self) -> Standing {
        let credit = if self.plain_left > 0 { 0.0 } else { self.foreseen.clamp(0.0, CARRIED_CREDIT) };
        Standing { wait: self.wait, credit }
    }

    /// A policy for the same pair that begins from `standing`: it probes at once, and if that fails waits as long as
    /// the one before would have.
    pub fn beginning(&self, standing: Standing) -> Self {
        let wait = standing.wait.clamp(FIRST_WAIT, CARRIED_WAIT);
        let foreseen =
            if standing.credit.is_finite() { standing.credit.clamp(0.0, CARRIED_CREDIT) } else { 0.0 };
        Self { wait, foreseen, ..Self::new(self.mode, self.budget, self.has_forward, self.is_unaided) }
    }

    /// For the next sequence of the same pair.
    pub fn successor(&self) -> Self {
        self.beginning(self.standing())
    }

    /// Whether what went well or badly under one says something of the other.
    pub fn is_of_same_pair(&self, other: &Self) -> bool {
        let pair = |p: &Self| (p.mode, p.has_forward, p.is_unaided);
        pair(self) == pair(other)
    }

    /// How much it has saved up, or lost, in plain steps: who is to draft where not all can.
    pub fn credit(&self) -> f64 {
        self.foreseen
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn decide(&self, cost: &CostModel, beside: Beside) -> Round {
        let plain =
            Round { shape: Shape::Tree, forward: false, limit: 0, is_fixed: true, is_try: false, rate: None };
        let limit = self.budget.unwrap_or(MAX_DRAFTS);
        let is_fixed = self.budget.is_some();
        let insisted =
            |shape| Round { shape, forward: self.has_forward, limit, is_fixed, is_try: false, rate: None };
        match self.mode {
            Mode::Off => plain,
            Mode::Chain => insisted(Shape::Chain),
            Mode::Tree => insisted(Shape::Tree),
            Mode::Auto => {
                // Without the cost of a plain step there is nothing to compare with: run one.
                let Some(rate) = self.rate(cost, beside) else { return plain };
                let forward = self.has_forward && self.plain_left == 0;
                let limit = if forward || self.is_unaided { limit } else { 0 };
                Round { forward, limit, is_fixed: false, rate: Some(rate), ..plain }
            }
        }
    }

    /// What a round brought: its decision, its drafter's forecast, and the tokens it added to the text.
    pub fn learn(
        &mut self,
        round: &Round,
        forecast: &Forecast,
        tokens: usize,
        cost: &CostModel,
        beside: Beside,
    ) {
        self.written += tokens;
        let rows = beside.rows + 1 + forecast.drafts;
        let (Some(plain_step), Some(step)) = (cost.step_seconds(beside.rows + 1), cost.step_seconds(rows))
        else {
            return;
        };
        // The others' passes run in either case: who leaves them out thinks his own four times as dear as they are.
        let drafts = |n: usize| cost.draft_seconds_of(n).unwrap_or(0.0);
        let (plain_step, seconds) = (
            plain_step + drafts(beside.drafting),
            step + drafts(beside.drafting + usize::from(round.forward)),
        );
        let with_others = |tokens: f64| beside.tokens + tokens;
        self.recent.0 = self.recent.0 * RATE_DECAY + with_others(tokens as f64);
        self.recent.1 = self.recent.1 * RATE_DECAY + seconds;
        if !round.forward {
            self.plain_left = self.plain_left.saturating_sub(tokens);
            return;
        }
        // In tokens of the whole step: a stream among many may lose its own share and no more.
        let gain = |tokens: f64| with_others(tokens) - with_others(1.0) * seconds / plain_step;
        self.foreseen = (self.foreseen + gain(forecast.tokens)).min(FORESEEN_CREDIT);
        self.account = (self.account + gain(tokens as f64)).min(MAX_CREDIT);
        if self.account >= EARNED {
            self.wait = FIRST_WAIT;
        }
        let overdraft = (FIRST_OVERDRAFT + OVERDRAFT_PER_TOKEN * self.written as f64).min(OVERDRAFT);
        let patience = if beside.drafting > 0 { PATIENCE } else { 1.0 };
        if self.foreseen < -FORESEEN_OVERDRAFT * patience || self.account < -overdraft * patience {
            self.plain_left = self.wait;
            self.wait = (self.wait * 2).min(LONGEST_WAIT);
            (self.foreseen, self.account) = (0.0, 0.0);
        }
    }

    /// A round whose draft ran for the sake of all brought so many tokens; the text has nothing to answer for.
    pub fn pass_by(&mut self, tokens: usize) {
        self.written += tokens;
    }

    /// Tokens a second lately, or plain decoding's rate if that is more. `None` while no step was measured.
    fn rate(&self, cost: &CostModel, beside: Beside) -> Option<f64> {
        let plain = (beside.tokens + 1.0) / cost.step_seconds(beside.rows + 1)?;
        let (tokens, seconds) = self.recent;
        Some(if seconds > 0.0 { plain.max(tokens / seconds) } else { plain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::drafter::BlockDraft;
    use crate::spec::simulate::{Quality, World};

    /// Seconds by rows as on a GPU, where rows are nearly free, and as on a CPU, where they are not.
    type Steps = &'static [(usize, f64)];
    const GPU: Steps =
        &[(1, 1.0), (2, 1.01), (4, 1.02), (8, 1.04), (16, 1.1), (24, 1.2), (32, 1.3), (48, 1.6), (64, 2.0)];
    const CPU: Steps =
        &[(1, 1.0), (2, 1.2), (4, 1.5), (8, 2.1), (16, 3.4), (24, 4.9), (32, 6.4), (48, 9.5), (64, 12.5)];
    /// Name, steps, seconds of the draft.
    const MACHINES: [(&str, Steps, f64); 3] =
        [("gpu", GPU, 0.25), ("cpu", CPU, 0.4), ("cpu, dear draft", CPU, 1.5)];

    const HOPELESS: Quality = Quality { said: (0.02, 0.1), truth: 1.0 };
    const BOASTFUL: Quality = Quality { said: (0.8, 0.95), truth: 0.01 };
    const POOR: Quality = Quality { said: (0.1, 0.5), truth: 0.8 };
    const MIXED: Quality = Quality { said: (0.1, 0.95), truth: 1.0 };
    const GOOD: Quality = Quality { said: (0.6, 0.98), truth: 0.95 };
    const EXCELLENT: Quality = Quality { said: (0.93, 0.99), truth: 1.0 };

    fn seeded(steps: &[(usize, f64)], draft: f64) -> CostModel {
        let mut cost = CostModel::default();
        cost.seed(steps.iter().copied(), Some(draft));
        cost
    }

    fn auto() -> Policy {
        Policy::new(Mode::Auto, None, true, false)
    }

    fn seconds(world: &World<'_>, mut policy: Policy, n: usize) -> f64 {
        let mut cost = seeded(world.steps, world.draft);
        world.run(&mut policy, &mut BlockDraft::new(), &mut cost, n, 3)[n - 1]
    }

    #[test]
    fn a_useless_draft_costs_less_than_three_percent() {
        for (machine, steps, draft) in MACHINES {
            for (case, quality) in [("hopeless", HOPELESS), ("boastful", BOASTFUL)] {
                let world = World { steps, draft, quality: &|_| quality };
                let n = 2000;
                let overhead = seconds(&world, auto(), n) / n as f64 - 1.0;
                assert!(overhead < 0.03, "{machine}, {case}: {:.1} %", overhead * 100.0);
            }
        }
    }

    #[test]
    fn auto_is_within_three_percent_of_the_best_fixed_choice() {
        let n = 10_000;
        for (machine, steps, draft) in MACHINES {
            for (case, quality) in
                [("poor", POOR), ("mixed", MIXED), ("good", GOOD), ("excellent", EXCELLENT)]
            {
                let world = World { steps, draft, quality: &|_| quality };
                let fixed = |mode, n_drafts: &[usize]| {
                    let run = |b: &usize| (seconds(&world, Policy::new(mode, Some(*b), true, false), n), *b);
                    n_drafts.iter().map(run).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
                };
                let chain = fixed(Mode::Chain, &[1, 3, 7, 15]);
                let tree = fixed(Mode::Tree, &[3, 7, 15, 23, 47]);
                let best = chain.0.min(tree.0).min(n as f64);
                let got = seconds(&world, auto(), n);
                let lost = got / best - 1.0;
                assert!(
                    lost < 0.03,
                    "{machine}, {case}: auto {got}, chain {chain:?}, tree {tree:?}, plain {n}"
                );
            }
        }
    }

    #[test]
    fn costs_need_not_be_known_beforehand() {
        for (machine, steps, draft) in MACHINES {
            for (case, quality) in [("hopeless", HOPELESS), ("good", GOOD)] {
                let world = World { steps, draft, quality: &|_| quality };
                let n = 4000;
                let (mut cost, mut policy) = (CostModel::default(), auto());
                let unseeded = world.run(&mut policy, &mut BlockDraft::new(), &mut cost, n, 3)[n - 1];
                let lost = unseeded / seconds(&world, auto(), n) - 1.0;
                assert!(lost < 0.03, "{machine}, {case}: {:.1} % slower than seeded", lost * 100.0);
            }
        }
    }

    #[test]
    fn short_texts_that_the_draft_does_not_know_cost_less_than_three_percent() {
        let (n, texts) = (128, 32);
        for (machine, steps, draft) in MACHINES {
            for (case, quality) in [("hopeless", HOPELESS), ("boastful", BOASTFUL)] {
                let world = World { steps, draft, quality: &|_| quality };
                let (mut cost, mut policy, mut drafter) = (seeded(steps, draft), auto(), BlockDraft::new());
                let mut total = 0.0;
                for text in 0..texts {
                    total += world.run(&mut policy, &mut drafter, &mut cost, n, text)[n - 1];
                    policy = policy.successor();
                    drafter = BlockDraft::new().with_calibration(drafter.calibration().clone());
                }
                let overhead = total / (n as f64 * texts as f64) - 1.0;
                assert!(overhead < 0.03, "{machine}, {case}: {:.1} %", overhead * 100.0);
            }
        }
    }

    #[test]
    fn a_draft_that_becomes_good_is_found_and_one_that_becomes_bad_is_dropped() {
        let (half, late) = (4000, 1000);
        for (machine, steps, draft) in [MACHINES[0], MACHINES[1]] {
            for (case, before, after) in [
                ("hopeless to good", HOPELESS, GOOD),
                ("boastful to good", BOASTFUL, GOOD),
                ("good to hopeless", GOOD, HOPELESS),
                ("good to boastful", GOOD, BOASTFUL),
            ] {
                let world = World { steps, draft, quality: &|at| if at < half { before } else { after } };
                let mut cost = seeded(steps, draft);
                let ends = world.run(&mut auto(), &mut BlockDraft::new(), &mut cost, 2 * half, 5);
                let settled = World { steps, draft, quality: &|_| after };
                let ideal = seconds(&settled, auto(), half) / half as f64;
                let rate = |from: usize, to: usize| (ends[to - 1] - ends[from - 1]) / (to - from) as f64;
                // At worst the first stretch is plain, and nothing of it is left afterwards.
                let first = rate(half, half + late);
                assert!(first < 1.03, "{machine}, {case}: {first} plain steps a token after the change");
                let lost = rate(half + late, 2 * half) / ideal - 1.0;
                assert!(lost < 0.05, "{machine}, {case}: {:.1} % slower once settled", lost * 100.0);
            }
        }
    }

    #[test]
    #[rustfmt::skip]
    fn what_the_user_insists_on_is_done() {
        let cost = seeded(GPU, 0.25);
        // mode, budget, draft model, lookup -> limit, fixed, runs the draft, shape
        let cases = [
            (Mode::Off,   None,            true,  true,  0,  true,  false, Shape::Tree),
            (Mode::Auto,  Some(0),         true,  true,  0,  true,  false, Shape::Tree),
            (Mode::Tree,  Some(0),         true,  false, 0,  true,  false, Shape::Tree),
            (Mode::Tree,  Some(22),        true,  false, 22, true,  true,  Shape::Tree),
            (Mode::Chain, Some(1_000_000), true,  false, 63, true,  true,  Shape::Chain),
            (Mode::Chain, None,            true,  false, 63, false, true,  Shape::Chain),
            (Mode::Tree,  Some(5),         false, true,  5,  true,  false, Shape::Tree),
            (Mode::Auto,  None,            true,  false, 63, false, true,  Shape::Tree),
            (Mode::Auto,  Some(7),         true,  false, 7,  false, true,  Shape::Tree),
            (Mode::Auto,  None,            false, true,  63, false, false, Shape::Tree),
            (Mode::Auto,  None,            false, false, 0,  true,  false, Shape::Tree),
            (Mode::Chain, Some(4),         false, false, 0,  true,  false, Shape::Tree),
        ];
        for (mode, budget, draft, lookup, limit, fixed, forward, shape) in cases {
            let round = Policy::new(mode, budget, draft, lookup).decide(&cost, Beside::default());
            let got = (round.limit, round.is_fixed, round.forward, round.shape);
            assert_eq!(got, (limit, fixed, forward, shape), "{mode:?} {budget:?} draft {draft} lookup {lookup}");
            assert_eq!(round.is_plain(), limit == 0);
        }
        let unmeasured = CostModel::default();
        assert!(auto().decide(&unmeasured, Beside::default()).is_plain(), "a plain step is measured first");
    }

    #[test]
    fn probes_come_ever_more_rarely_and_lookup_goes_on_between_them() {
        let cost = seeded(CPU, 0.4);
        for lookup in [false, true] {
            let mut policy = Policy::new(Mode::Auto, None, true, lookup);
            let nothing = Forecast { drafts: 0, tokens: 1.0 };
            let mut probes = Vec::new();
            for at in 0..3000 {
                let round = policy.decide(&cost, Beside::default());
                if round.forward {
                    probes.push(at);
                } else {
                    assert_eq!(round.is_plain(), !lookup);
                }
                policy.learn(&round, &nothing, 1, &cost, Beside::default());
            }
            // A probe drafts until it has cost more than it may: twice at 0.4, the first time thrice.
            let gaps: Vec<i32> = probes.windows(2).map(|w| w[1] - w[0] - 1).filter(|g| *g > 0).collect();
            assert_eq!(probes[..4], [0, 1, 2, 19]);
            assert_eq!(gaps, [16, 32, 64, 128, 256, 512, 512, 512, 512]);
        }
    }

    #[test]
    fn a_full_house_decodes_plainly_where_a_lone_sequence_speculates() {
        // 15 others fill the rows that were free: whatever is drafted now costs a larger bucket.
        let cost = seeded(&[(1, 1.0), (16, 1.1), (24, 1.7), (32, 2.3), (64, 4.6)], 0.3);
        let quality = Forecast { drafts: 7, tokens: 3.0 };
        for (beside, stays) in
            [(Beside::default(), true), (Beside { rows: 15, tokens: 15.0, drafting: 0 }, false)]
        {
            let mut policy = auto();
            for _ in 0..3 {
                let round = policy.decide(&cost, beside);
                policy.learn(&round, &quality, 3, &cost, beside);
            }
            assert_eq!(policy.decide(&cost, beside).forward, stays, "{beside:?}");
        }
    }
}
