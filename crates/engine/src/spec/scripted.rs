//! A drafter for tests and `overdraft check`: it knows the plain text and is wrong exactly where it is told to be, so that every
//! accepted length can be driven at every alignment.

use std::collections::HashSet;

use overdraft_plan::{GRID, MAX_DRAFT_DEPTH};

use super::accept::Verdict;
use super::budget::{Forecast, Growth};
use super::drafter::{Drafter, ProposeInput};
use super::tree::{Source, TokenTree};

/// One round's proposal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScriptedRound {
    /// Drafts below the root on the main path.
    pub length: usize,
    /// Depth (from 1) at which the path is wrong; the true tokens go on below the wrong one. `None`: all right.
    pub spoil_at: Option<usize>,
    /// Wrong siblings at each depth of the main path, each with the true next token below it: a verify that looks at
    /// the wrong parent would accept those. Every other one comes before the right one.
    pub decoys: usize,
}

impl ScriptedRound {
    /// Drafts that must be accepted, with at least `length` tokens of text left.
    pub fn accepts(&self) -> usize {
        self.spoil_at.map_or(self.length, |depth| self.length.min(depth.saturating_sub(1)))
    }
}

/// Accepted lengths at alignments of the root to the grid on which kept rows are folded, over as many texts as it takes.
#[derive(Clone, Debug)]
pub struct Curriculum {
    left: HashSet<(usize, usize)>,
}

impl Default for Curriculum {
    fn default() -> Self {
        let lengths = |alignment| (0..=MAX_DRAFT_DEPTH).map(move |length| (alignment, length));
        Self { left: (0..GRID).flat_map(lengths).collect() }
    }
}

impl Curriculum {
    /// Pairs of an alignment and a length.
    pub const ALL: usize = GRID * (MAX_DRAFT_DEPTH + 1);

    /// How many are left to be driven.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Rounds that write `tokens` behind the root at `first_root`, right to the end or wrong at the depth after; every other one
    /// `with_decoys`. What is left is driven as soon as it can be, and counts as done.
    pub fn rounds(&mut self, first_root: usize, tokens: usize, with_decoys: bool) -> Vec<ScriptedRound> {
        let (mut root, mut rounds) = (first_root, Vec::new());
        let end = first_root + tokens;
        while root < end {
            let most = MAX_DRAFT_DEPTH.min(end - root - 1);
            // Long and short by turns: a short text has some of each.
            let nth = rounds.len();
            let aim = 7 * nth % (MAX_DRAFT_DEPTH + 1);
            let wanted =
                (0..=most).filter(|n| self.left.contains(&(root % GRID, *n))).min_by_key(|n| n.abs_diff(aim));
            let accept = wanted.unwrap_or(if self.left.is_empty() { most } else { 0 });
            self.left.remove(&(root % GRID, accept));
            // Where nothing is to be accepted something has to be guessed all the same.
            let is_spoiled = (nth % 3 == 1 || accept == 0) && accept < MAX_DRAFT_DEPTH;
            rounds.push(ScriptedRound {
                length: if is_spoiled { MAX_DRAFT_DEPTH } else { accept },
                spoil_at: is_spoiled.then_some(accept + 1),
                decoys: if with_decoys { nth % 2 } else { 0 },
            });
            root += accept + 1;
        }
        rounds
    }
}

/// Proposes from the text it was given, by a list of rounds taken in turn and over again.
#[derive(Clone, Debug)]
pub struct Scripted {
    text: Vec<u32>,
    rounds: Vec<ScriptedRound>,
    vocab: u32,
    /// Tokens of `text` that are already written.
    written: usize,
    next_round: usize,
    prompt_left: usize,
    accepted: Vec<usize>,
    strayed_at: Option<usize>,
}

impl Scripted {
    /// `text`: the answer that plain decoding writes after a prompt of `prompt_len` tokens, in a vocabulary of at
    /// least two.
    pub fn new(text: Vec<u32>, prompt_len: usize, vocab: u32, rounds: Vec<ScriptedRound>) -> Self {
        Self {
            text,
            rounds,
            vocab: vocab.max(2),
            written: 0,
            next_round: 0,
            prompt_left: prompt_len,
            accepted: Vec::new(),
            strayed_at: None,
        }
    }

    /// Drafts accepted, round by round.
    pub fn accepted(&self) -> &[usize] {
        &self.accepted
    }

    /// The first token of the answer that was not the text's.
    pub fn strayed_at(&self) -> Option<usize> {
        self.strayed_at
    }

    /// Another token than the text's at `index`, a different one for each `nth`.
    fn wrong(&self, index: usize, nth: usize) -> u32 {
        let right = self.text.get(index).copied().unwrap_or(0) as u64;
        ((right + 1 + nth as u64 % (self.vocab as u64 - 1)) % self.vocab as u64) as u32
    }

    fn add_decoy(&self, tree: &mut TokenTree, parent: u32, index: usize, nth: usize) {
        if let Some(node) = tree.push(parent, self.wrong(index, nth), -2.0, Source::Draft)
            && let Some(right) = self.text.get(index + 1)
        {
            tree.push(node, *right, -2.0, Source::Draft);
        }
    }
}

impl Drafter for Scripted {
    fn wants_forward(&self) -> bool {
        false
    }

    fn proposes_unaided(&self) -> bool {
        true
    }

    fn propose(&mut self, _: &ProposeInput<'_>, growth: &Growth<'_>, tree: &mut TokenTree) -> Forecast {
        let round = match self.rounds.len() {
            0 => ScriptedRound::default(),
            n => self.rounds[self.next_round % n],
        };
        self.next_round += 1;
        let mut parent = 0;
        for depth in 1..=round.length {
            let index = self.written + depth - 1;
            let Some(right) = self.text.get(index) else { break };
            // The spoiled token is the first wrong one; decoys are the others.
            let is_spoiled = round.spoil_at == Some(depth);
            let token = if is_spoiled { self.wrong(index, 0) } else { *right };
            (1..=round.decoys).step_by(2).for_each(|nth| self.add_decoy(tree, parent, index, nth));
            let Some(node) = tree.push(parent, token, -0.1, Source::Draft) else { break };
            (2..=round.decoys).step_by(2).for_each(|nth| self.add_decoy(tree, parent, index, nth));
            parent = node;
        }
        growth.settle(tree)
    }

    fn learn(&mut self, _: &TokenTree, verdict: &Verdict) {
        self.accepted.push(verdict.path.len());
    }

    fn committed(&mut self, token: u32) {
        if self.prompt_left > 0 {
            self.prompt_left -= 1;
            return;
        }
        if self.text.get(self.written) != Some(&token) {
            self.strayed_at.get_or_insert(self.written);
        }
        self.written += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::accept::walk;
    use crate::spec::drafter::{Candidates, Shape};

    /// Runs until the text is short of another full round.
    fn run(drafter: &mut Scripted, text: &[u32], vocab: u32) {
        let (mut tree, mut verdict) = (TokenTree::new(vocab), Verdict::default());
        drafter.committed(99);
        drafter.committed(text[0]);
        let mut done = 1;
        while done + 17 < text.len() {
            tree.clear(text[done - 1]);
            let input = ProposeInput { candidates: Candidates::None, shape: Shape::Tree };
            drafter.propose(&input, &Growth::Fixed(63), &mut tree);
            walk(&tree, &mut verdict, |_, d: u32| Ok::<_, ()>((text[done + d as usize], false))).unwrap();
            drafter.learn(&tree, &verdict);
            for token in verdict.tokens(&tree) {
                drafter.committed(token);
                done += 1;
            }
        }
    }

    #[test]
    fn every_accepted_length_is_driven_as_scripted() {
        let text: Vec<u32> = (0..4000u32).map(|i| i * i % 97).collect();
        for decoys in [0, 1, 2, 3] {
            let longest = if decoys == 0 { 16 } else { 63 / (2 * decoys + 1) };
            let rounds: Vec<ScriptedRound> = (0..longest.min(16))
                .map(|n| ScriptedRound { length: longest.min(16), spoil_at: Some(n + 1), decoys })
                .chain([ScriptedRound { length: longest.min(16), spoil_at: None, decoys }])
                .collect();
            let mut drafter = Scripted::new(text.clone(), 1, 100, rounds.clone());
            run(&mut drafter, &text, 100);
            assert_eq!(drafter.strayed_at(), None);
            assert!(drafter.accepted().len() > rounds.len(), "all rounds were played");
            for (i, accepted) in drafter.accepted().iter().enumerate() {
                let round = rounds[i % rounds.len()];
                assert_eq!(*accepted, round.accepts(), "round {i}, {round:?}");
            }
        }
    }

    #[test]
    fn a_curriculum_drives_every_length_at_every_alignment_over_several_texts() {
        let (mut all, mut seen) = (Curriculum::default(), HashSet::new());
        let mut texts = 0;
        while all.left() > 0 {
            let first_root = 37 + 5 * texts;
            let mut root = first_root;
            for round in all.rounds(first_root, 255, texts % 2 == 0) {
                seen.insert((root % GRID, round.accepts()));
                root += round.accepts() + 1;
            }
            assert_eq!(root, first_root + 255, "a text's rounds write all of it");
            texts += 1;
        }
        assert_eq!(seen.len(), Curriculum::ALL);
        assert!(texts < 16, "{texts} texts of 255 tokens, where 10 hold as many as are accepted");
    }

    #[test]
    fn a_text_that_strays_is_noticed() {
        let mut drafter = Scripted::new(vec![1, 2, 3], 2, 10, vec![]);
        [8, 8, 1, 2].iter().for_each(|t| drafter.committed(*t));
        assert_eq!(drafter.strayed_at(), None);
        [4, 5].iter().for_each(|t| drafter.committed(*t));
        assert_eq!(drafter.strayed_at(), Some(2));
    }
}
