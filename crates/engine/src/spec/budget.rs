//! How many nodes of a tree to verify: as many as make the round bring most tokens a second.

use super::cost::CostModel;
use super::tree::{MAX_DRAFTS, TokenTree};

/// Drafted nodes of a round while costs are unknown: enough to learn from, in a bucket that is cheap everywhere.
const UNMEASURED_DRAFTS: usize = 3;

/// What else the step holds: rows of other sequences, and the tokens they are expected to bring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    pub rows: usize,
    pub tokens: f64,
    /// Others whose draft passes ran along.
    pub drafting: usize,
}

/// Where a tree stops growing.
#[derive(Clone, Copy, Debug)]
pub enum Growth<'a> {
    /// So many drafted nodes, whatever they are worth.
    Fixed(usize),
    Worth(Worth<'a>),
    /// So many at most, heaviest first: others of the step have a say in how many stay.
    Offer(usize),
}

/// Grow while it pays.
#[derive(Clone, Copy, Debug)]
pub struct Worth<'a> {
    pub cost: &'a CostModel,
    /// Of this round's draft pass; 0 if none ran.
    pub draft_seconds: f64,
    pub beside: Beside,
    /// Tokens a second that the text is written with in the long run. Time is worth that much also in a round whose
    /// draft is poor; without it the round is weighed by its own rate.
    pub rate: Option<f64>,
    /// Drafted nodes at most.
    pub limit: usize,
}

/// What is expected of a settled tree.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Drafted nodes to verify; 0 is plain decoding.
    pub drafts: usize,
    /// Tokens that the round brings, the target's own included.
    pub tokens: f64,
}

impl Forecast {
    /// Of a tree that is verified as it is.
    pub fn of(tree: &TokenTree) -> Self {
        let caught: f64 = tree.nodes()[1..].iter().map(|n| weight(n.log_weight)).sum();
        Self { drafts: tree.n_drafts(), tokens: 1.0 + caught }
    }
}

impl Growth<'_> {
    /// Drafted nodes that a drafter should offer. More are cut, fewer may miss the best count.
    pub fn limit(&self) -> usize {
        match self {
            Growth::Fixed(n) | Growth::Offer(n) => *n,
            Growth::Worth(worth) => worth.limit,
        }
        .min(MAX_DRAFTS)
    }

    /// Cuts the tree to the best count of nodes. By worth, nodes are ordered by weight first, so what is kept is the
    /// best tree of its size and closed under parents.
    pub fn settle(&self, tree: &mut TokenTree) -> Forecast {
        let forecast = match self {
            Growth::Fixed(n) => {
                tree.truncate(n.saturating_add(1));
                Forecast::of(tree)
            }
            Growth::Offer(n) => {
                tree.sort_by_weight();
                tree.truncate(n.saturating_add(1));
                Forecast::of(tree)
            }
            Growth::Worth(worth) => {
                tree.sort_by_weight();
                worth.best_count(tree)
            }
        };
        tree.truncate(forecast.drafts + 1);
        forecast
    }
}

impl Worth<'_> {
    /// Rows are computed by the bucket, so cost jumps and then is level: the best count may lie past one that is not
    /// worth it. All are compared; a rule that stops at the first loss would never leave a bucket.
    fn best_count(&self, tree: &TokenTree) -> Forecast {
        let mut tokens = 1.0;
        let mut best = Forecast { drafts: 0, tokens };
        let Some(plain) = self.value(0, tokens) else {
            let drafts = tree.n_drafts().min(UNMEASURED_DRAFTS).min(self.limit);
            let caught: f64 = tree.nodes()[1..=drafts].iter().map(|n| weight(n.log_weight)).sum();
            return Forecast { drafts, tokens: 1.0 + caught };
        };
        let mut best_value = plain;
        let known = self.cost.known_rows().saturating_sub(self.beside.rows + 1).max(1);
        let limit = self.limit.min(MAX_DRAFTS).min(known);
        for (i, node) in tree.nodes().iter().enumerate().skip(1).take(limit) {
            tokens += weight(node.log_weight);
            if let Some(value) = self.value(i, tokens)
                && value > best_value
            {
                best_value = value;
                best = Forecast { drafts: i, tokens };
            }
        }
        best
    }

    fn value(&self, drafts: usize, tokens: f64) -> Option<f64> {
        let seconds = self.cost.step_seconds(self.beside.rows + 1 + drafts)? + self.draft_seconds;
        let tokens = self.beside.tokens + tokens;
        Some(match self.rate {
            Some(rate) => tokens - rate * seconds,
            None => tokens / seconds,
        })
    }
}

fn weight(log_weight: f32) -> f64 {
    (log_weight as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tree::Source;

    /// A chain whose every token is right with probability `p`.
    fn chain(p: f64, n: usize) -> TokenTree {
        let mut tree = TokenTree::new(100);
        tree.chain((0..n).map(|_| (1, p.ln() as f32)), Source::Draft);
        tree
    }

    fn costs(steps: &[(usize, f64)]) -> CostModel {
        let mut cost = CostModel::default();
        cost.seed(steps.iter().copied(), None);
        cost
    }

    fn worth(cost: &CostModel) -> Worth<'_> {
        Worth { cost, draft_seconds: 0.0, beside: Beside::default(), rate: None, limit: MAX_DRAFTS }
    }

    #[test]
    fn the_count_is_the_one_with_the_highest_rate() {
        let level = costs(&[(1, 1.0), (64, 1.0)]);
        let linear = costs(&[(1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0), (16, 16.0)]);
        // A step up at 2 rows that only 4 tokens pay for, then level to 16.
        let cliff = costs(&[(1, 1.0), (2, 2.0), (16, 2.0), (24, 9.0), (64, 20.0)]);
        let (draft_free, draft_dear) = (0.0, 3.0);
        let cases = [
            ("free rows are filled", &level, draft_free, 0.5, 16),
            ("rows at full price never pay", &linear, draft_free, 0.9, 0),
            ("... except to make up for a dear draft", &linear, draft_dear, 0.95, 7),
            ("across a cliff to the bucket's end", &cliff, draft_free, 0.9, 15),
            ("a poor draft stays before the cliff", &cliff, draft_free, 0.4, 0),
        ];
        for (case, cost, draft_seconds, p, want) in cases {
            let mut tree = chain(p, 16);
            let growth = Growth::Worth(Worth { draft_seconds, ..worth(cost) });
            let forecast = growth.settle(&mut tree);
            assert_eq!(forecast.drafts, want, "{case}");
            assert_eq!(tree.n_drafts(), want, "{case}");
            let caught: f64 = (1..=want).map(|d| p.powi(d as i32)).sum();
            assert!((forecast.tokens - 1.0 - caught).abs() < 1e-4, "{case}: {}", forecast.tokens);
        }
    }

    #[test]
    fn every_count_up_to_the_limit_is_compared() {
        let cost = costs(&[(1, 1.0), (2, 1.1), (4, 1.3), (8, 1.6), (16, 2.4), (32, 4.5), (64, 9.0)]);
        for p in [0.1, 0.3, 0.5, 0.7, 0.9, 0.99] {
            for limit in [0, 1, 5, 16, 63] {
                let mut tree = chain(p, 16);
                let growth = Growth::Worth(Worth { draft_seconds: 0.4, limit, ..worth(&cost) });
                let got = growth.settle(&mut tree);
                let rate = |n: usize| {
                    let tokens: f64 = (0..=n).map(|d| p.powi(d as i32)).sum();
                    tokens / (0.4 + cost.step_seconds(1 + n).unwrap())
                };
                let best = (0..=limit.min(16)).map(rate).fold(0.0, f64::max);
                assert!((rate(got.drafts) - best).abs() < 1e-6, "p {p}, limit {limit}: {}", got.drafts);
                assert!(got.drafts <= limit);
            }
        }
    }

    #[test]
    fn a_node_out_of_order_is_weighed_before_it_is_cut() {
        let cost = costs(&[(1, 1.0), (2, 1.2), (4, 2.0), (64, 40.0)]);
        let mut tree = TokenTree::new(100);
        tree.chain([(1, -3.0), (2, -1.0)], Source::NGram);
        tree.push(0, 7, -0.1, Source::Draft);
        let forecast = Growth::Worth(worth(&cost)).settle(&mut tree);
        assert_eq!((forecast.drafts, tree.nodes()[1].token), (1, 7));
    }

    #[test]
    fn others_in_the_step_make_rows_dearer_and_the_draft_cheaper() {
        // 16 sequences already fill the cheap rows; a bucket more costs half as much again.
        let cost = costs(&[(1, 1.0), (16, 1.1), (24, 1.6), (64, 4.0)]);
        let beside = Beside { rows: 15, tokens: 15.0, ..Default::default() };
        let alone = Growth::Worth(worth(&cost)).settle(&mut chain(0.8, 15));
        let crowded = Growth::Worth(Worth { beside, ..worth(&cost) }).settle(&mut chain(0.8, 15));
        assert_eq!((alone.drafts, crowded.drafts), (15, 0));
    }

    #[test]
    fn fixed_and_unmeasured_budgets_hold() {
        for (n, want) in [(0, 0), (5, 5), (16, 16), (1_000_000, 16)] {
            let mut tree = chain(0.5, 16);
            assert_eq!(Growth::Fixed(n).settle(&mut tree).drafts, want);
            assert_eq!(tree.n_drafts(), want);
        }
        assert_eq!(Growth::Fixed(1_000_000).limit(), MAX_DRAFTS);
        let unknown = CostModel::default();
        let growth = Growth::Worth(worth(&unknown));
        assert_eq!(growth.settle(&mut chain(0.5, 16)).drafts, UNMEASURED_DRAFTS);
        assert_eq!(growth.settle(&mut TokenTree::new(9)), Forecast { drafts: 0, tokens: 1.0 });
    }
}
