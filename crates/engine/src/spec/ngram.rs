//! Prompt lookup: what followed the last few tokens when they were last seen. Free to ask, and right where text
//! repeats itself (code being edited, quotations, tables).

use overdraft_plan::MAX_DRAFT_DEPTH;

use super::calibration::Calibration;
use super::tree::{Source, TokenTree};

/// Longest and shortest run of tokens looked up. One token alone is followed by too many things.
const LONGEST: usize = 8;
const SHORTEST: usize = 2;
/// Tokens remembered at most; half are forgotten when it is full.
const MAX_HISTORY: usize = 1 << 16;
const FIRST_SLOTS: usize = 1 << 9;
/// 8 bytes each: 2 MiB for a sequence that filled its history.
const MAX_SLOTS: usize = 1 << 18;

/// Where runs of tokens were last followed by something. Updated with every token, in constant time.
#[derive(Clone, Debug)]
pub struct NGramIndex {
    history: Vec<u32>,
    /// By hash of a run, the two latest that share it: index of the token that followed, plus 1; 0 is empty. A hit
    /// is compared with the history, so a collision costs a proposal and nothing else. (With one place each, a third
    /// of the longest matches in random text were lost; with two, an eighth.)
    slots: Vec<[u32; 2]>,
    /// Tokens after which a text ends; nothing is proposed beyond one.
    ends: Vec<u32>,
}

/// The longest run found, and where it was followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    follows_at: usize,
    length: usize,
}

impl NGramIndex {
    pub fn new(ends: Vec<u32>) -> Self {
        Self { history: Vec::new(), slots: vec![[0; 2]; FIRST_SLOTS], ends }
    }

    /// Takes the next token of the text, prompt or answer.
    pub fn push(&mut self, token: u32) {
        if self.history.len() == MAX_HISTORY {
            self.history.drain(..MAX_HISTORY / 2);
            self.reindex();
        }
        let runs = LONGEST - SHORTEST + 1;
        if self.history.len() * runs > self.slots.len() && self.slots.len() < MAX_SLOTS {
            self.slots.resize(self.slots.len() * 2, [0; 2]);
            self.reindex();
        }
        self.index(self.history.len());
        self.history.push(token);
    }

    /// Enters all runs that end just before `end`: the token there follows them.
    fn index(&mut self, end: usize) {
        let mask = self.slots.len() - 1;
        for (length, hash) in runs_before(&self.history[..end]) {
            if length >= SHORTEST {
                let slot = &mut self.slots[hash as usize & mask];
                if !followed(&self.history[..end], length, slot[0]) {
                    slot[1] = slot[0];
                }
                slot[0] = end as u32 + 1;
            }
        }
    }

    fn reindex(&mut self) {
        self.slots.fill([0; 2]);
        (0..self.history.len()).for_each(|end| self.index(end));
    }

    fn longest_match(&self) -> Option<Match> {
        let mask = self.slots.len() - 1;
        let mut found = None;
        for (length, hash) in runs_before(&self.history).filter(|run| run.0 >= SHORTEST) {
            let places = self.slots[hash as usize & mask];
            if let Some(place) = places.iter().find(|p| followed(&self.history, length, **p)) {
                found = Some(Match { follows_at: *place as usize - 1, length });
            }
        }
        found
    }

    /// Up to [`MAX_DRAFT_DEPTH`] tokens that followed the longest, most recent match, with what they are worth.
    pub fn propose(&self) -> impl Iterator<Item = (u32, f32)> {
        self.follow().take(MAX_DRAFT_DEPTH)
    }

    /// As many as are asked for. Where the match reaches the end of the text it goes on with itself, so a repeated line stays
    /// repeated.
    pub fn follow(&self) -> impl Iterator<Item = (u32, f32)> {
        let found = self.longest_match();
        let period = found.map_or(1, |m| self.history.len() - m.follows_at);
        let mut ended = found.is_none();
        (0..).map_while(move |i: usize| {
            let m = found.filter(|_| !ended)?;
            let token = self.history[m.follows_at + i % period];
            ended = self.ends.contains(&token);
            // A match of n tokens is wrong about twice in n + 2 times, and grows with each token that holds.
            let n = (m.length + i) as f32;
            Some((token, (n / (n + 2.0)).ln()))
        })
    }
}

/// Whether the last `length` tokens also stand before `place` (an index plus 1).
fn followed(tokens: &[u32], length: usize, place: u32) -> bool {
    let place = place as usize;
    place > length && tokens[place - 1 - length..place - 1] == tokens[tokens.len() - length..]
}

/// (length, hash) of the runs at the end of `tokens`, shortest first.
fn runs_before(tokens: &[u32]) -> impl Iterator<Item = (usize, u64)> {
    let back = tokens.iter().rev().take(LONGEST);
    back.scan(0u64, |hash, token| {
        *hash = (*hash ^ *token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *hash ^= *hash >> 29;
        Some(*hash)
    })
    .enumerate()
    .map(|(i, hash)| (i + 1, hash))
}

/// Puts `tokens` under the root as a forced path, before best-first growth takes the rest of the budget. Returns its
/// last node.
pub fn force_path(
    tree: &mut TokenTree,
    calibration: &Calibration,
    tokens: impl IntoIterator<Item = (u32, f32)>,
) -> u32 {
    let mut last = 0;
    for (depth, (token, logp)) in (1..).zip(tokens) {
        let believed = calibration.believe(Source::NGram, depth, logp);
        match tree.push_believed(last, token, logp, believed, Source::NGram) {
            Some(node) => last = node,
            None => break,
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::simulate::Random;

    fn proposed(text: &[u32], ends: &[u32]) -> Vec<u32> {
        let mut index = NGramIndex::new(ends.to_vec());
        text.iter().for_each(|t| index.push(*t));
        index.propose().map(|p| p.0).collect()
    }

    #[test]
    #[rustfmt::skip]
    fn the_longest_then_most_recent_match_is_continued() {
        let cases: [(&str, &[u32], &[u32]); 8] = [
            ("nothing yet", &[], &[]),
            ("one token is no match", &[5, 6, 5], &[]),
            ("never followed by anything", &[1, 2, 3, 4], &[]),
            ("two tokens", &[1, 2, 9, 8, 1, 2], &[9, 8, 1, 2]),
            ("the later of two", &[1, 2, 7, 7, 1, 2, 8, 8, 1, 2], &[8, 8, 1, 2]),
            ("the longer before the later", &[5, 1, 2, 7, 1, 2, 8, 5, 1, 2], &[7, 1, 2, 8]),
            ("a match as long as can be", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8], &[9, 1, 2, 3]),
            ("a repeated line stays repeated", &[3, 4, 3, 4, 3, 4], &[3, 4, 3, 4]),
        ];
        for (case, text, want) in cases {
            let got = proposed(text, &[]);
            assert_eq!(&got[..want.len().min(got.len())], want, "{case}");
            assert_eq!(got.len(), if want.is_empty() { 0 } else { MAX_DRAFT_DEPTH }, "{case}");
        }
        assert_eq!(proposed(&[1, 2, 9, 8, 7, 1, 2], &[8]), [9, 8], "nothing beyond an end of text");
    }

    #[test]
    fn a_scan_finds_nothing_that_the_index_does_not() {
        let mut random = Random(2);
        let mut index = NGramIndex::new(vec![]);
        let (mut lost, mut found) = (0, 0);
        for _ in 0..4000 {
            index.push(random.below(6));
            let text = &index.history;
            let scan = (SHORTEST..=LONGEST.min(text.len())).rev().find_map(|n| {
                let ends_at = |p: &usize| text[p - n..*p] == text[text.len() - n..];
                (n..text.len()).rev().find(ends_at).map(|p| Match { follows_at: p, length: n })
            });
            match (index.longest_match(), scan) {
                (None, None) => {}
                (Some(got), Some(want)) if got == want => found += 1,
                // A slot taken by another run; what was found instead must still be a match.
                (Some(got), Some(want)) => {
                    assert!(got.length <= want.length);
                    lost += 1;
                }
                (None, Some(_)) => lost += 1,
                (Some(got), None) => panic!("{got:?} is no match"),
            }
        }
        assert!(lost * 6 < found, "{lost} lost, {found} found");
    }

    #[test]
    fn a_text_without_end_takes_bounded_memory() {
        let mut index = NGramIndex::new(vec![]);
        for token in 0..3 * MAX_HISTORY as u32 {
            index.push(token / 3 * 7 % 50_021);
        }
        assert!(index.history.len() <= MAX_HISTORY && index.slots.len() <= MAX_SLOTS);
        let tail = index.history[index.history.len() - 40..].to_vec();
        tail[..20].iter().for_each(|t| index.push(*t));
        let got: Vec<u32> = index.propose().map(|p| p.0).collect();
        assert_eq!(got, tail[20..20 + MAX_DRAFT_DEPTH], "still finds what it holds");
    }

    #[test]
    fn a_forced_path_goes_under_the_root_and_no_deeper_than_allowed() {
        let mut tree = TokenTree::new(100);
        tree.push(0, 1, -0.1, Source::Draft);
        let last = force_path(&mut tree, &Calibration::default(), (0..40).map(|i| (1 + i, -0.2)));
        assert_eq!(tree.nodes()[last as usize].depth as usize, MAX_DRAFT_DEPTH);
        assert_eq!(tree.n_drafts(), MAX_DRAFT_DEPTH, "the equal first node is shared");
        let mut tree = TokenTree::new(3);
        force_path(&mut tree, &Calibration::default(), [(1, -0.2), (9, -0.2), (2, -0.2)]);
        assert_eq!(tree.n_drafts(), 1, "cut at an id outside the vocabulary");
    }
}
