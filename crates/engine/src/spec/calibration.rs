//! How far to trust what drafters say of their own tokens: per source and depth, accepted over predicted.
//!
//! A draft trained on other text, or a temperature it does not know of, makes its probabilities wrong by a factor
//! that drifts with depth. The budget weighs nodes against milliseconds, so that factor must be taken out.

use std::fmt::Write;

use overdraft_plan::MAX_DRAFT_DEPTH;

use super::accept::Verdict;
use super::tree::{Source, TokenTree};

/// Weight of the past at each lesson: about the last 33 rounds count.
const DECAY: f64 = 0.97;
/// Lessons that the prior counts for. The prior of a depth is the factor of the depth above: what is wrong at one is
/// likely wrong at the next, which is reached less often.
const PRIOR: f64 = 1.0;
/// A factor above 2 would promise more than certainty to siblings; one below 1/32 would take long to recover from.
const FACTORS: (f64, f64) = (1.0 / 32.0, 2.0);
/// What a round leaves of the counts of a depth at which nothing was offered. One unlucky lesson may have made the
/// budget stop above it, and nothing new would ever be learned there; so after about a hundred rounds it gets
/// another chance. (Without this, simulated rounds stayed at 3 drafts where 7 were 27 % faster.)
const RELAX: f64 = 0.99;

/// Lessons of a depth that count in the next text, and from a file: another text may be another matter. (Over recorded
/// texts of one kind, all that was learned or only this much makes less than 1 %, save at 40 tokens of code: 3 %.)
const CARRIED: f64 = 8.0;
/// First word of a remembered line, by source.
const WORDS: [(Source, &str); 2] = [(Source::Draft, "believe-draft"), (Source::NGram, "believe-lookup")];

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    predicted: f64,
    accepted: f64,
}

impl Cell {
    fn fade(&mut self, left: f64) {
        self.predicted *= left;
        self.accepted *= left;
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Scale {
    cells: [Cell; MAX_DRAFT_DEPTH],
    /// Logarithm of the factor at each depth, from the cells.
    log_factors: [f32; MAX_DRAFT_DEPTH],
}

impl Default for Scale {
    fn default() -> Self {
        Self { cells: [Cell::default(); MAX_DRAFT_DEPTH], log_factors: [0.0; MAX_DRAFT_DEPTH] }
    }
}

impl Scale {
    fn refresh(&mut self) {
        let mut factor = 1.0;
        for (cell, log_factor) in self.cells.iter().zip(&mut self.log_factors) {
            factor = (cell.accepted + PRIOR * factor) / (cell.predicted + PRIOR);
            factor = factor.clamp(FACTORS.0, FACTORS.1);
            *log_factor = factor.ln() as f32;
        }
    }
}

/// Corrections learned from verdicts. Start a new sequence from a clone of the last one's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    draft: Scale,
    ngram: Scale,
}

impl Calibration {
    /// What `logp`, said by `source` of a token at `depth` (from 1), is worth.
    pub fn believe(&self, source: Source, depth: u32, logp: f32) -> f32 {
        let depth = (depth.max(1) as usize).min(MAX_DRAFT_DEPTH);
        let believed = logp + self.scale(source).log_factors[depth - 1];
        if believed.is_nan() { f32::NEG_INFINITY } else { believed.min(0.0) }
    }

    /// What is added to a source's log-probabilities, by depth from 1.
    pub fn trust_in(&self, source: Source) -> [f32; MAX_DRAFT_DEPTH] {
        self.scale(source).log_factors
    }

    /// The factor on probabilities of `source` at `depth` (from 1).
    pub fn factor(&self, source: Source, depth: u32) -> f64 {
        let depth = (depth.max(1) as usize).min(MAX_DRAFT_DEPTH);
        (self.scale(source).log_factors[depth - 1] as f64).exp()
    }

    /// Learns from every node whose parent was reached, for there the target's token is known.
    pub fn learn(&mut self, tree: &TokenTree, verdict: &Verdict) {
        let mut offered = [[false; MAX_DRAFT_DEPTH]; 2];
        for node in &tree.nodes()[1..] {
            offered[node.source as usize][node.depth as usize - 1] = true;
        }
        let mut at = 0;
        for (depth, token) in verdict.tokens(tree).enumerate() {
            let mut is_decayed = [false; 2];
            for node in tree.nodes().iter().filter(|n| n.parent == at) {
                let cell = &mut self.scale_mut(node.source).cells[depth];
                if !std::mem::replace(&mut is_decayed[node.source as usize], true) {
                    cell.fade(DECAY);
                }
                cell.predicted += (node.logp as f64).exp();
                cell.accepted += f64::from(node.token == token);
            }
            at = verdict.path.get(depth).copied().unwrap_or(at);
        }
        for source in [Source::Draft, Source::NGram] {
            let scale = self.scale_mut(source);
            for (cell, offered) in scale.cells.iter_mut().zip(offered[source as usize]) {
                if !offered {
                    cell.fade(RELAX);
                }
            }
            scale.refresh();
        }
    }

    /// What another text begins with: the same factors, held less firmly.
    pub fn carried(&self) -> Self {
        let mut carried = self.clone();
        for scale in [&mut carried.draft, &mut carried.ngram] {
            for cell in &mut scale.cells {
                cell.fade((CARRIED / cell.predicted.max(cell.accepted).max(CARRIED)).min(1.0));
            }
            scale.refresh();
        }
        carried
    }

    /// As lines of text: source, depth, predicted, accepted.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (source, word) in WORDS {
            for (depth, cell) in (1..).zip(&self.scale(source).cells) {
                if cell.predicted > 0.0 {
                    let _ = writeln!(text, "{word} {depth} {:e} {:e}", cell.predicted, cell.accepted);
                }
            }
        }
        text
    }

    /// Reads [`Self::to_text`], as [`Self::carried`]. Lines of others, or that make no sense, are passed over.
    pub fn from_text(text: &str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().take(5).collect();
            let [word, depth, predicted, accepted] = words[..] else { continue };
            let Some((source, _)) = WORDS.iter().find(|w| w.1 == word) else { continue };
            let count = |word: &str| word.parse().ok().filter(|n: &f64| (0.0..1e6).contains(n));
            let (Ok(depth), Some(predicted), Some(accepted)) =
                (depth.parse::<usize>(), count(predicted), count(accepted))
            else {
                continue;
            };
            if let Some(cell) = depth.checked_sub(1).and_then(|d| read.scale_mut(*source).cells.get_mut(d)) {
                *cell = Cell { predicted, accepted };
            }
        }
        read.carried()
    }

    fn scale(&self, source: Source) -> &Scale {
        match source {
            Source::Draft => &self.draft,
            Source::NGram => &self.ngram,
        }
    }

    fn scale_mut(&mut self, source: Source) -> &mut Scale {
        match source {
            Source::Draft => &mut self.draft,
            Source::NGram => &mut self.ngram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::accept::walk;
    use crate::spec::simulate::Random;

    /// Rounds over a chain whose token at depth d is said to hold with `said[d]` and holds with `truth[d]`.
    /// Returns the believed probability by depth, averaged over the second half.
    fn believed(said: &[f64], truth: &[f64], source: Source, rounds: usize) -> Vec<f64> {
        let mut random = Random(11);
        let (mut calibration, mut verdict) = (Calibration::default(), Verdict::default());
        let mut tree = TokenTree::new(100);
        let mut sums = vec![0.0; said.len()];
        for round in 0..rounds {
            tree.clear(0);
            tree.chain(said.iter().map(|q| (1, q.ln() as f32)), source);
            let draw = |_, depth| {
                let holds = truth.get(depth as usize).is_some_and(|p| random.uniform() < *p);
                Ok::<_, ()>((if holds { 1 } else { 2 }, false))
            };
            walk(&tree, &mut verdict, draw).unwrap();
            calibration.learn(&tree, &verdict);
            if round >= rounds / 2 {
                for (d, sum) in sums.iter_mut().enumerate() {
                    let logp = calibration.believe(source, d as u32 + 1, said[d].ln() as f32);
                    *sum += (logp as f64).exp() / (rounds - rounds / 2) as f64;
                }
            }
        }
        sums
    }

    #[test]
    fn a_miscalibrated_drafter_is_believed_as_far_as_it_is_right() {
        let cases: [(&str, &[f64], &[f64]); 4] = [
            ("honest", &[0.9, 0.8, 0.7], &[0.9, 0.8, 0.7]),
            ("boastful", &[0.95, 0.9, 0.9], &[0.8, 0.5, 0.3]),
            ("modest", &[0.5, 0.4, 0.4], &[0.8, 0.7, 0.6]),
            ("drifting", &[0.9, 0.9, 0.9, 0.9], &[0.9, 0.85, 0.6, 0.4]),
        ];
        for (case, said, truth) in cases {
            for source in [Source::Draft, Source::NGram] {
                let got = believed(said, truth, source, 8000);
                for (depth, (got, want)) in got.iter().zip(truth).enumerate() {
                    assert!((got - want).abs() < 0.06, "{case}, depth {}: {got} for {want}", depth + 1);
                }
            }
        }
    }

    #[test]
    fn a_useless_drafter_is_known_within_few_rounds_and_forgiven_after_many() {
        let (mut calibration, mut verdict) = (Calibration::default(), Verdict::default());
        let mut tree = TokenTree::new(100);
        tree.chain([(1, -0.1), (1, -0.1), (1, -0.1)], Source::NGram);
        for _ in 0..6 {
            walk(&tree, &mut verdict, |_, _| Ok::<_, ()>((2, false))).unwrap();
            calibration.learn(&tree, &verdict);
        }
        let factors = [1, 2, 16].map(|d| calibration.factor(Source::NGram, d));
        assert!(factors.iter().all(|f| *f < 0.2), "{factors:?}");
        assert_eq!(calibration.factor(Source::Draft, 1), 1.0, "the other source is innocent");
        tree.clear(0);
        for _ in 0..400 {
            walk(&tree, &mut verdict, |_, _| Ok::<_, ()>((2, false))).unwrap();
            calibration.learn(&tree, &verdict);
        }
        assert!(calibration.factor(Source::NGram, 1) > 0.9, "{}", calibration.factor(Source::NGram, 1));
    }

    #[test]
    fn an_end_of_text_counts_as_the_draft_being_right() {
        let (mut calibration, mut verdict) = (Calibration::default(), Verdict::default());
        let mut tree = TokenTree::new(100);
        tree.chain([(1, -1.0), (1, -1.0)], Source::Draft);
        for _ in 0..50 {
            walk(&tree, &mut verdict, |_, _| Ok::<_, ()>((1, true))).unwrap();
            assert_eq!((verdict.path.len(), verdict.next), (0, 1));
            calibration.learn(&tree, &verdict);
        }
        assert!(calibration.factor(Source::Draft, 1) > 1.5);
    }

    #[test]
    fn what_is_carried_says_the_same_with_bounded_weight_and_damage_is_passed_over() {
        let (mut calibration, mut verdict) = (Calibration::default(), Verdict::default());
        let mut tree = TokenTree::new(100);
        tree.chain([(1, -0.1), (1, -0.1), (1, -0.1)], Source::Draft);
        for i in 0..200 {
            walk(&tree, &mut verdict, |_, d| Ok::<_, ()>((if d == 0 && i % 3 > 0 { 1 } else { 2 }, false)))
                .unwrap();
            calibration.learn(&tree, &verdict);
        }
        let text = calibration.to_text();
        let read = Calibration::from_text(&text);
        assert_eq!(read, calibration.carried());
        let (kept, was) = (read.factor(Source::Draft, 1), calibration.factor(Source::Draft, 1));
        assert!((kept / was - 1.0).abs() < 0.1, "{kept} for {was}");
        assert!(read.factor(Source::Draft, 2) < 0.1, "{}", read.factor(Source::Draft, 2));
        assert!(read.draft.cells.iter().all(|c| c.predicted <= CARRIED && c.accepted <= CARRIED));
        let rubbish = "believe-draft 0 1 1\nbelieve-draft 17 1 1\nbelieve-draft 3 NaN 1\nbelieve-draft 3 1 inf\n\
            believe-draft 3 -1 1\nbelieve-draft 3 1e300 1\nbelieve-draft 99999999999999999999 1 1\nbelieve-draft\n\u{0}\n";
        assert_eq!(Calibration::from_text(&format!("{rubbish}{text}{rubbish}")), read);
        assert_eq!(Calibration::from_text(rubbish), Calibration::default());
    }

    #[test]
    fn belief_is_never_more_than_certainty_nor_a_non_number() {
        let mut calibration = Calibration::default();
        calibration.draft.log_factors[0] = 0.5;
        for (said, want) in [(-0.1, 0.0), (0.0, 0.0), (-1.0, -0.5), (f32::NAN, f32::NEG_INFINITY)] {
            assert_eq!(calibration.believe(Source::Draft, 1, said), want);
        }
        assert!(calibration.believe(Source::Draft, 0, -1.0) <= 0.0, "depth out of range");
        assert!(calibration.believe(Source::Draft, 99, -1.0) <= 0.0, "depth out of range");
    }
}
