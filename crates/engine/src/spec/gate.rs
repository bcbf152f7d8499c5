//! A constraint at its place between drafting and drawing: drafted paths are tried on it and taken back, what joins
//! the text stays.
//!
//! A constraint is a pure function of the tokens it was given, so trying paths leaves no trace, and the mask at a place
//! in the text is the same whether the text came there by drafts or plainly.

use overdraft_plan::MAX_DRAFT_DEPTH;

use crate::constraint::Constraint;

pub struct Gate {
    constraint: Box<dyn Constraint>,
    /// Drafted tokens that it was given beyond the text.
    tried: Vec<u32>,
    /// Of the text's end.
    mask: Vec<u32>,
    is_known: bool,
}

/// What becomes of a text that a token has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    GoesOn,
    /// Nothing may follow.
    IsOver,
    /// The constraint refused a token that its mask allowed.
    Contradicted,
}

impl Gate {
    pub fn new(constraint: Box<dyn Constraint>, vocab: usize) -> Self {
        let tried = Vec::with_capacity(MAX_DRAFT_DEPTH);
        Self { constraint, tried, mask: vec![0; vocab.div_ceil(32)], is_known: false }
    }

    /// Whether `token` may be drafted below the drafted `path`.
    pub fn allows(&mut self, path: impl Iterator<Item = u32>, token: u32) -> bool {
        let mut depth = 0;
        for drafted in path {
            if self.tried.get(depth) != Some(&drafted) {
                self.take_back(depth);
                // It was allowed when it was drafted.
                if !self.constraint.accept(drafted) {
                    return false;
                }
                self.tried.push(drafted);
            }
            depth += 1;
        }
        if self.tried.get(depth) == Some(&token) {
            return true;
        }
        self.take_back(depth);
        let is_allowed = self.constraint.accept(token);
        if is_allowed {
            self.tried.push(token);
        }
        is_allowed
    }

    /// The tokens that the text may go on with.
    pub fn mask(&mut self) -> &[u32] {
        self.take_back(0);
        if !self.is_known {
            self.mask.fill(0);
            self.constraint.mask(&mut self.mask);
            self.is_known = true;
        }
        &self.mask
    }

    /// `token` joins the text.
    pub fn join(&mut self, token: u32) -> Passage {
        self.take_back(0);
        self.is_known = false;
        if !self.constraint.accept(token) {
            return Passage::Contradicted;
        }
        // The mask that is made here is the one that the next draw takes: one a token.
        if self.mask().iter().all(|word| *word == 0) { Passage::IsOver } else { Passage::GoesOn }
    }

    /// Back to the first `depth` tried tokens.
    fn take_back(&mut self, depth: usize) {
        if self.tried.len() > depth {
            self.constraint.rollback(self.tried.len() - depth);
            self.tried.truncate(depth);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::spec::by_rule::ByRule;
    use crate::spec::simulate::Random;
    use crate::spec::tree::{Source, TokenTree};

    fn gate() -> Gate {
        Gate::new(Box::new(ByRule::new(100, ascends)), 100)
    }

    /// By at most 3, until 40.
    fn ascends(given: &[u32], token: u32) -> bool {
        let last = given.last().copied().unwrap_or(0);
        token > last && token <= (last + 3).min(40)
    }

    fn allowed(gate: &mut Gate) -> Vec<u32> {
        let mask = gate.mask().to_vec();
        (0..100).filter(|t| mask[*t as usize / 32] >> (t % 32) & 1 == 1).collect()
    }

    #[test]
    fn a_tree_holds_only_paths_that_the_constraint_allows() {
        let mut random = Random(5);
        for _ in 0..300 {
            let mut tree = TokenTree::new(100).gated(Some(gate()));
            tree.clear(0);
            for _ in 0..200 {
                let parent = random.below(tree.len() as u32);
                let above = tree.nodes()[parent as usize].token;
                let token = random.below(8) + above;
                let fits = tree.nodes()[parent as usize].depth < 16 && tree.n_drafts() < 63;
                let allowed = token > above && token <= above + 3;
                let is_new = tree.child(parent, token).is_none();
                let pushed = tree.push(parent, token, -0.1, Source::Draft);
                assert_eq!(pushed.is_some(), !is_new || (fits && allowed), "{above} then {token}");
            }
        }
    }

    #[test]
    fn trying_paths_leaves_no_trace() {
        let (mut tried, mut plain, mut random) = (gate(), gate(), Random(9));
        let mut last = 0;
        while last < 40 {
            for _ in 0..10 {
                let a = last + 1 + random.below(3);
                let path = [a, a + 1, a + 2];
                let n = random.below(4) as usize;
                tried.allows(path[..n].iter().copied(), path.get(n).map_or(99, |t| *t));
            }
            assert_eq!(allowed(&mut tried), allowed(&mut plain));
            last = (last + 1 + random.below(3)).min(40);
            let want = if last == 40 { Passage::IsOver } else { Passage::GoesOn };
            assert_eq!((tried.join(last), plain.join(last)), (want, want));
        }
        assert_eq!(tried.join(41), Passage::Contradicted);
    }
}
