//! Budgets of sequences that share a step: the nodes that bring most tokens a second for all of them together.
//!
//! Each sequence alone would see the others' rows as they are without drafts; eight that each think so fill the step
//! with rows that only one of them could have had cheaply.

use overdraft_plan::{BUCKETS, Terms};

use super::budget::Beside;
use super::cost::CostModel;

/// What the sequences of a step decide together.
#[derive(Clone, Copy, Debug)]
pub struct Together<'a> {
    pub cost: &'a CostModel,
    /// Rows that are there anyway, and the tokens they bring: roots, trees that were insisted on, prompts.
    pub sure: Beside,
    /// Of this round's draft passes; spent whatever is verified.
    pub draft_seconds: f64,
    /// Tokens a second that are written in the long run, by all.
    pub rate: Option<f64>,
    /// Drafted nodes at most, over all.
    pub room: usize,
}

/// Share of verified nodes that an excellent draft gets right: chains of seven at 93 % a token. If all came true, three of
/// sixteen streams on a CPU would gain 2 % by the cost model, and in truth lost 3 % (simulated).
const EXCELLENT: f64 = 0.75;

/// What a node is taken to be worth of its weight where streams compete for rows: those that win are those that were
/// thought too well of. Sixteen streams on a CPU that only look up lost 4 % without it (simulated).
const HEDGE: f64 = 0.85;

/// How much more a second it has to be for half as many texts to draft: the others are left behind, and later write with few beside them. (On an H200 drafting for
/// eight of sixteen texts of a 27B was thought 9 % faster than for all, whose every guess came true up to four: costs were 20 % off.)
const FEWER: f64 = 1.1;

/// Sequences of a step at most.
pub const MAX_SEQUENCES: usize = 64;

/// Of the trees, of which so many nodes are kept, the one whose `next` node is heaviest, and that node's log-weight: among equals the tree that has fewest, or
/// the first texts would have all guesses, and the others write on alone when these have ended.
pub fn heaviest<N: Ord>(kept: &[N], next: impl Fn(usize) -> Option<f32>) -> Option<(usize, f32)> {
    let offered = (0..kept.len()).filter_map(|tree| next(tree).map(|log_weight| (tree, log_weight)));
    offered.reduce(|best, other| {
        let comes_first = other.1 > best.1 || other.1 == best.1 && kept[other.0] < kept[best.0];
        if comes_first { other } else { best }
    })
}

impl Together<'_> {
    /// How many drafted nodes of each tree are worth it, over all of them. `next(tree, n)` is the log-weight of the
    /// tree's node after its first `n` drafted ones, heaviest first. The [`heaviest`] are taken first wherever they hang, so what stays of each is a tree and all of them the best of their size.
    pub fn best_counts(
        &self,
        trees: usize,
        next: impl Fn(usize, usize) -> Option<f32>,
    ) -> [u8; MAX_SEQUENCES] {
        let trees = trees.min(MAX_SEQUENCES);
        let mut kept = [0u8; MAX_SEQUENCES];
        let mut best = kept;
        let mut tokens = self.sure.tokens;
        let mut best_value = self.value(0, tokens);
        let hedge = if self.sure.tokens > 1.0 { HEDGE } else { 1.0 };
        for n in 1..=self.most_nodes() {
            let next = |tree: usize| next(tree, kept[tree] as usize);
            let Some((tree, log_weight)) = heaviest(&kept[..trees], next) else { break };
            kept[tree] += 1;
            tokens += hedge * f64::from(log_weight).exp();
            let value = self.value(n, tokens);
            if value > best_value {
                (best, best_value) = (kept, value);
            }
        }
        best
    }

    /// The same for a round that is cut where it runs: what each count of rows is worth, those that are there anyway included.
    /// Returns how many there can be.
    pub fn price_rows(&self, terms: &mut Terms) -> usize {
        terms.hedge = if self.sure.tokens > 1.0 { HEDGE as f32 } else { 1.0 };
        let most = self.sure.rows + self.most_nodes();
        for (rows, (gain, price)) in terms.gain.iter_mut().zip(&mut terms.price).enumerate() {
            let seconds = self.cost.step_seconds(rows.max(1)).filter(|_| rows <= most);
            let seconds = seconds.map_or(f64::INFINITY, |seconds| seconds + self.draft_seconds);
            (*gain, *price) = match self.rate {
                Some(rate) => (1.0, (rate * seconds) as f32),
                None => ((1.0 / seconds) as f32, 0.0),
            };
        }
        most
    }

    /// Whether so many draft passes, of at most `depth` tokens each, could pay for an excellent draft. Where costs are
    /// not known yet, they could.
    pub fn could_pay(&self, drafting: usize, depth: usize) -> bool {
        let (Some(draft), Some(plain)) =
            (self.cost.draft_seconds_of(drafting), self.cost.step_seconds(self.sure.rows))
        else {
            return true;
        };
        let room = self.room.min(drafting * depth);
        self.bucket_nodes(room).any(|nodes| {
            let step = self.cost.hoped_seconds(self.sure.rows + nodes).unwrap_or(plain);
            (self.sure.tokens + EXCELLENT * nodes as f64) * plain > self.sure.tokens * (step + draft)
        })
    }

    /// For how many of `asking` texts it is best to ask the draft, where a text's further guesses bring `weights` each: the
    /// most tokens a second, 0 where plain decoding has them. Rows that were not measured yet are hoped to be cheap, or nobody would find out.
    pub fn best_drafting(&self, asking: usize, weights: &[f64]) -> usize {
        let Some(plain) = self.cost.step_seconds(self.sure.rows) else { return 0 };
        let mut best = (0, self.sure.tokens / plain);
        let halves = std::iter::successors(Some(asking), |n| Some(n / 2)).take_while(|n| *n > 0);
        for drafting in halves {
            let Some(draft) = self.cost.draft_seconds_of(drafting) else { continue };
            for nodes in self.bucket_nodes(self.room.min(drafting * weights.len())) {
                let tokens = self.expected_tokens(drafting, nodes, weights);
                let seconds = self.cost.hoped_seconds(self.sure.rows + nodes).unwrap_or(plain) + draft;
                let needed = if best.0 > drafting { FEWER * best.1 } else { best.1 };
                if tokens / seconds > needed {
                    best = (drafting, tokens / seconds);
                }
            }
        }
        best.0
    }

    /// The best round in which so many draft, by costs that are known: its tokens a second, and drafted nodes. That is what time is worth at least, though the
    /// rounds before were slower. (By what those wrote alone, sixteen texts of 128 tokens each, 5 of them a round, verified 96 rows a quarter of the time, which brought
    /// 2.4 tokens a millisecond, where 64 brought 3.4: a 27B on an H200.)
    pub fn expected_round(&self, drafting: usize, weights: &[f64]) -> Option<(f64, usize)> {
        let round = |nodes| {
            let seconds = self.cost.step_seconds(self.sure.rows + nodes)? + self.draft_seconds;
            Some((self.expected_tokens(drafting, nodes, weights) / seconds, nodes))
        };
        let most = self.most_nodes().min(drafting * weights.len());
        let rounds = self.bucket_nodes(most).filter_map(round);
        rounds.reduce(|best, round| if round.0 > best.0 { round } else { best })
    }

    /// With time worth what such a round makes of it, if that is more.
    pub fn expecting(self, round: Option<(f64, usize)>) -> Self {
        let rate = self.rate.map(|lately| round.map_or(lately, |(rate, _)| lately.max(rate)));
        Self { rate, ..self }
    }

    /// Of a round in which `drafting` texts share so many nodes.
    fn expected_tokens(&self, drafting: usize, nodes: usize, weights: &[f64]) -> f64 {
        let (whole, rest) = (nodes / drafting, nodes % drafting);
        let chain: f64 = weights[..whole].iter().sum();
        let more = weights.get(whole).map_or(0.0, |w| w * rest as f64);
        self.sure.tokens + HEDGE * (drafting as f64 * chain + more)
    }

    /// Counts of drafted nodes that fill a bucket, and the most there is room for.
    fn bucket_nodes(&self, room: usize) -> impl Iterator<Item = usize> {
        let full = BUCKETS.into_iter().filter_map(move |bucket| bucket.checked_sub(self.sure.rows));
        full.filter(move |nodes| (1..room).contains(nodes)).chain((room > 0).then_some(room))
    }

    /// As many as there is room for, and as costs can be relied on for.
    fn most_nodes(&self) -> usize {
        let known = self.cost.known_rows().saturating_sub(self.sure.rows).max(1);
        self.room.min(known)
    }

    fn value(&self, nodes: usize, tokens: f64) -> Option<f64> {
        let seconds = self.cost.step_seconds(self.sure.rows + nodes)? + self.draft_seconds;
        Some(match self.rate {
            Some(rate) => tokens - rate * seconds,
            None => tokens / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::budget::{Forecast, Growth, Worth};
    use crate::spec::simulate::Random;
    use crate::spec::tree::{MAX_DRAFTS, Source, TokenTree};

    fn costs(steps: &[(usize, f64)], draft: Option<f64>) -> CostModel {
        let mut cost = CostModel::new(crate::spec::cost::Padding::None);
        cost.seed(steps.iter().copied(), draft);
        cost
    }

    /// A tree with random weights, offered.
    fn offered(random: &mut Random, n: usize) -> TokenTree {
        let mut tree = TokenTree::new(1000);
        for token in 0..n as u32 {
            let parent = random.below(tree.len() as u32);
            tree.push(parent, token, -(random.uniform() as f32), Source::Draft);
        }
        Growth::Offer(MAX_DRAFTS).settle(&mut tree);
        tree
    }

    fn settle(together: &Together<'_>, trees: &mut [TokenTree]) -> Vec<Forecast> {
        let next = |tree: usize, n: usize| trees[tree].nodes().get(n + 1).map(|node| node.log_weight);
        let counts = together.best_counts(trees.len(), next);
        let cut = trees.iter_mut().zip(counts).map(|(tree, n)| {
            tree.truncate(n as usize + 1);
            Forecast::of(tree)
        });
        cut.collect()
    }

    const STEPS: [(usize, f64); 6] = [(1, 1.0), (4, 1.3), (8, 1.7), (16, 2.6), (32, 4.4), (64, 8.2)];

    #[test]
    fn one_alone_decides_as_it_would_by_itself() {
        let (cost, mut random) = (costs(&STEPS, None), Random(4));
        for round in 0..200 {
            let mut tree = offered(&mut random, round % 60);
            let mut same = TokenTree::new(1000);
            for node in &tree.nodes()[1..] {
                same.push(node.parent, node.token, node.logp, Source::Draft);
            }
            let rate = (round % 2 == 0).then_some(0.8);
            let sure = Beside { rows: 1, tokens: 1.0, ..Default::default() };
            let together = Together { cost: &cost, sure, draft_seconds: 0.3, rate, room: 63 };
            let got = settle(&together, std::slice::from_mut(&mut tree)).remove(0);
            let worth =
                Worth { cost: &cost, draft_seconds: 0.3, beside: Beside::default(), rate, limit: MAX_DRAFTS };
            let want = Growth::Worth(worth).settle(&mut same);
            assert_eq!(got.drafts, want.drafts, "round {round}");
            assert!((got.tokens - want.tokens).abs() < 1e-9, "round {round}");
        }
    }

    #[test]
    fn what_all_can_expect_keeps_rows_away_that_bring_less() {
        let cost = costs(&[(16, 1.0), (64, 1.5), (96, 2.6)], None);
        let sure = Beside { rows: 16, tokens: 16.0, ..Default::default() };
        let together = Together { cost: &cost, sure, draft_seconds: 0.3, rate: Some(16.0), room: 112 };
        let weights = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0];
        // Three guesses each, in 64 rows.
        let (expected, nodes) = together.expected_round(16, &weights).unwrap();
        assert!((expected - (16.0 + HEDGE * 48.0) / 1.8).abs() < 1e-9 && nodes == 48, "{expected}, {nodes}");
        let right = |_: usize, n: usize| (n < 4).then_some(0.0);
        for (round, nodes) in [(None, 4), (Some((1.0, 48)), 4), (Some((expected, 48)), 3)] {
            let counts = together.expecting(round).best_counts(16, right);
            assert!(counts[..16].iter().all(|n| *n == nodes), "{round:?}: {counts:?}");
        }
        assert_eq!(Together { room: 0, ..together }.expected_round(16, &weights), None, "no room for any");
    }

    #[test]
    fn half_as_many_draft_only_where_that_is_much_better() {
        let weights = [1.0, 1.0, 1.0, 1.0];
        let sure = Beside { rows: 16, tokens: 16.0, ..Default::default() };
        // Seconds of 48 and of 64 rows: for eight with four guesses each, and for sixteen with three.
        for (few, many, drafting) in [(1.5, 1.8, 16), (1.35, 1.8, 16), (1.0, 1.8, 8), (3.0, 9.0, 0)] {
            let mut cost = costs(&[(16, 1.0), (48, few), (64, many), (80, 9.0)], None);
            [(8, 0.2), (16, 0.4)].into_iter().for_each(|(n, seconds)| cost.learn_drafts(n, seconds));
            let together = Together { cost: &cost, sure, draft_seconds: 0.0, rate: None, room: 48 };
            assert_eq!(together.best_drafting(16, &weights), drafting, "{few} and {many} s");
        }
    }

    #[test]
    fn the_sum_over_all_is_as_high_as_any_choice_makes_it() {
        let (cost, mut random) = (costs(&STEPS, None), Random(7));
        for round in 0..60 {
            let n = 2 + round % 2;
            let mut trees: Vec<TokenTree> = (0..n).map(|_| offered(&mut random, 8)).collect();
            let sure = Beside { rows: n, tokens: n as f64, ..Default::default() };
            let together = Together { cost: &cost, sure, draft_seconds: 0.2, rate: None, room: 63 };
            // Every count of the heaviest nodes of each: exact for trees of this size.
            let weights: Vec<Vec<f64>> = trees
                .iter()
                .map(|t| t.nodes()[1..].iter().map(|n| f64::from(n.log_weight).exp()).collect())
                .collect();
            let mut best: f64 = 0.0;
            let mut counts = vec![0; n];
            'all: loop {
                let tokens: f64 = counts.iter().zip(&weights).map(|(c, w)| w[..*c].iter().sum::<f64>()).sum();
                let rows = counts.iter().sum::<usize>() + n;
                best = best.max((n as f64 + HEDGE * tokens) / (cost.step_seconds(rows).unwrap() + 0.2));
                for i in 0..n {
                    counts[i] += 1;
                    if counts[i] <= weights[i].len() {
                        continue 'all;
                    }
                    counts[i] = 0;
                }
                break;
            }
            let forecasts = settle(&together, &mut trees);
            let rows = n + forecasts.iter().map(|f| f.drafts).sum::<usize>();
            let tokens: f64 = forecasts.iter().map(|f| 1.0 + HEDGE * (f.tokens - 1.0)).sum();
            let got = tokens / (cost.step_seconds(rows).unwrap() + 0.2);
            assert!((got - best).abs() < 1e-9, "round {round}: {got} of {best}");
        }
    }

    #[test]
    fn as_streams_grow_budgets_shrink_to_nothing() {
        let cost = costs(&STEPS, None);
        let mut per_stream = Vec::new();
        for n in [1, 2, 4, 8, 16, 32] {
            let tree = |_| {
                let mut tree = TokenTree::new(99);
                tree.chain((0..15).map(|_| (1, 0.8f32.ln())), Source::Draft);
                tree
            };
            let mut trees: Vec<TokenTree> = (0..n).map(tree).collect();
            let sure = Beside { rows: n, tokens: n as f64, ..Default::default() };
            let together = Together { cost: &cost, sure, draft_seconds: 0.0, rate: None, room: 64 - n };
            let forecasts = settle(&together, &mut trees);
            per_stream.push(forecasts.iter().map(|f| f.drafts).sum::<usize>() / n);
        }
        assert!(per_stream.windows(2).all(|w| w[0] >= w[1]), "{per_stream:?}");
        assert!(per_stream[0] >= 4 && per_stream[5] == 0, "{per_stream:?}");
    }

    #[test]
    fn passes_run_for_as_many_texts_as_they_pay_for() {
        let h200 = |many: [(usize, f64); 2]| {
            let mut cost = costs(&[(16, 7.3), (32, 10.2)], None);
            cost.seed(many, None);
            (0..3).for_each(|_| cost.learn_drafts(16, 10.0));
            cost
        };
        let (cheap, dear) = (h200([(64, 10.5), (128, 21.0)]), h200([(64, 20.4), (128, 40.8)]));
        let mut unmeasured = costs(&[(16, 7.3), (24, 8.75)], None);
        (0..3).for_each(|_| unmeasured.learn_drafts(1, 1.2));
        let never_drafted = costs(&STEPS, None);
        let right =
            |n: usize| -> [f64; 15] { std::array::from_fn(|depth| if depth < n { 1.0 } else { 0.0 }) };
        for (case, cost, came_true, want) in [
            ("cheap rows, four come true", &cheap, 4, 16),
            ("cheap rows, one does", &cheap, 1, 0),
            ("dear rows, four", &dear, 4, 0),
            ("nothing known of many rows: all, in hope", &unmeasured, 7, 16),
            ("nothing known of many rows, one comes true", &unmeasured, 1, 0),
            ("a draft that never ran", &never_drafted, 15, 0),
        ] {
            let sure = Beside { rows: 16, tokens: 16.0, ..Default::default() };
            let together = Together { cost, sure, draft_seconds: 0.0, rate: None, room: 112 };
            assert_eq!(together.best_drafting(16, &right(came_true)), want, "{case}");
        }
    }

    #[test]
    fn a_draft_that_could_never_pay_is_not_asked() {
        // As measured on two cores: a row costs a seventh of a step, the draft half a step for each sequence.
        let linear: Vec<(usize, f64)> = [1, 2, 4, 8, 16, 32, 64].map(|n| (n, 0.86 + 0.14 * n as f64)).into();
        let dear = costs(&linear, Some(0.5));
        let cheap = costs(&[(1, 1.0), (64, 1.1)], Some(0.05));
        let unknown = costs(&linear, None);
        for (case, cost, streams, drafting, want) in [
            ("alone", &dear, 1, 1, true),
            ("sixteen at once", &dear, 16, 16, false),
            ("no room for a node", &cheap, 64, 64, false),
            ("rows for nothing", &cheap, 16, 16, true),
            ("never measured", &unknown, 16, 16, true),
        ] {
            let sure = Beside { rows: streams, tokens: streams as f64, ..Default::default() };
            let together = Together {
                cost,
                sure,
                draft_seconds: 0.0,
                rate: None,
                room: 64usize.saturating_sub(streams),
            };
            assert_eq!(together.could_pay(drafting, 15), want, "{case}");
        }
    }
}
