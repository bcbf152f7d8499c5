//! Acceptance by a set pattern, for measurements: with random weights no guess comes true, yet what a round of so many
//! tokens costs does not depend on which tokens they are. The text that comes of it is not the model's.

use overdraft_plan::{MAX_DRAFT_DEPTH, Pace};

use super::tree::TokenTree;

/// So many tokens a round, as far as its tree is deep enough. Every sequence counts its own rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forced {
    pace: Pace,
    /// Of the round at hand: the node that is accepted last.
    last: u32,
}

impl Forced {
    /// The guesses of the deepest path, and the target's own token behind them.
    pub const MOST: f64 = (MAX_DRAFT_DEPTH + 1) as f64;

    /// `None` where no round can write so many. A fraction is met on average: 2.5 is 2 and 3 by turns.
    pub fn new(tokens_a_round: f64) -> Option<Self> {
        let can_be = (1.0..=Self::MOST).contains(&tokens_a_round);
        let pace = Pace { tokens: (tokens_a_round * 65536.0).round() as u32, owed: 0 };
        can_be.then_some(Self { pace, last: 0 })
    }

    pub fn tokens_a_round(&self) -> f64 {
        f64::from(self.pace.tokens) / 65536.0
    }

    /// As a backend is told of it.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Decides the next round: the first path that is deep enough, or the deepest there is. What a tree was too
    /// shallow for is not made up for later, as a draft would not.
    pub fn begin(&mut self, tree: &TokenTree) {
        let depth = self.pace.next_depth();
        let nodes = || (0..tree.len() as u32).zip(tree.nodes());
        let deepest = nodes().map(|(_, n)| n.depth).max().unwrap_or(0);
        self.last = nodes().find(|(_, n)| n.depth == depth.min(deepest)).map_or(0, |(i, _)| i);
    }

    /// The token after `node` at `depth`, in place of the target's `own`.
    pub fn token(&self, tree: &TokenTree, node: u32, depth: u32, own: u32) -> u32 {
        match tree.path_to(self.last).nth(depth as usize) {
            Some(next) => tree.nodes()[next as usize].token,
            None => Pace::unguessed(own, tree.n_children(node), |token| tree.child(node, token).is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::accept::{Verdict, walk};
    use crate::spec::tree::Source;

    /// Tokens of so many rounds over a tree, with a target that says 7 everywhere.
    fn rounds(tokens: f64, tree: &TokenTree, n: usize) -> Vec<usize> {
        let mut forced = Forced::new(tokens).unwrap();
        let mut verdict = Verdict::default();
        let round = |_| {
            forced.begin(tree);
            walk(tree, &mut verdict, |node, depth| Ok::<_, ()>((forced.token(tree, node, depth, 7), false)))
                .unwrap();
            verdict.n_tokens()
        };
        (0..n).map(round).collect()
    }

    #[test]
    #[rustfmt::skip]
    fn a_round_writes_as_many_tokens_as_it_is_told_and_its_tree_has() {
        let mut chain = TokenTree::new(100);
        chain.chain((0..7).map(|t| (t + 5, -0.1)), Source::Draft);
        let mut bushy = TokenTree::new(100);
        // The heaviest child has none of its own; the target's own token is among the guesses.
        (0..8).for_each(|t| { bushy.push(0, t, -0.1, Source::Draft); });
        let below = bushy.push(3, 7, -0.5, Source::Draft).unwrap();
        bushy.push(below, 7, -0.5, Source::Draft);
        let root = TokenTree::new(100);
        let cases: [(&str, &TokenTree, f64, &[usize]); 9] = [
            ("nothing comes true",   &chain, 1.0,  &[1, 1, 1]),
            ("some do",              &chain, 3.0,  &[3, 3, 3]),
            ("all do",               &chain, 8.0,  &[8, 8, 8]),
            ("more than there are",  &chain, 12.0, &[8, 8, 8]),
            ("by turns",             &chain, 2.5,  &[2, 3, 2, 3]),
            ("one in four",          &chain, 1.25, &[1, 1, 1, 2]),
            ("no guess comes true where all are likely", &bushy, 1.0, &[1, 1]),
            ("the path that is deep enough",             &bushy, 4.0, &[4, 4]),
            ("nothing was guessed",  &root,  5.0,  &[1, 1]),
        ];
        for (case, tree, tokens, want) in cases {
            assert_eq!(rounds(tokens, tree, want.len()), want, "{case}");
        }
    }

    #[test]
    fn what_no_round_can_write_is_no_pattern() {
        for bad in [0.0, 0.99, -1.0, 17.5, f64::NAN, f64::INFINITY] {
            assert_eq!(Forced::new(bad), None, "{bad}");
        }
        assert!(Forced::new(1.0).is_some() && Forced::new(Forced::MOST).is_some());
    }
}
