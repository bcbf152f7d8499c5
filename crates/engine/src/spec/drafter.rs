//! Anything that proposes: a tree of tokens with log-probabilities, and it learns what was accepted of it.
//!
//! A drafter holds no device. One that needs a model pass is handed the pass's most likely tokens. Where each pass needs
//! the tokens of the one before (MTP, EAGLE-3, DSpark's heads), the passes and the choices between them are one recorded
//! segment, and the drafter is handed the tree that came of it: to ask the host after every pass whose children it
//! should look at would cost a read-back each, for what a top-k on the device decides as well.

use overdraft_plan::Found;

use super::accept::Verdict;
use super::budget::{Forecast, Growth};
use super::calibration::Calibration;
use super::ddtree::{Grower, Ranked};
use super::ngram::{NGramIndex, force_path};
use super::tree::{MAX_DRAFTS, Source, TokenTree};

/// What a model pass found, most likely first; log-probabilities are over the whole vocabulary.
#[derive(Clone, Copy, Debug)]
pub enum Candidates<'a> {
    /// No pass ran.
    None,
    /// Of a block draft (DFlash): by depth from 1, whatever stands above.
    Depths(&'a [Ranked<'a>]),
    /// Of a draft that reads its own tokens, or any tree built on the device: (parent, token, log-probability), parents
    /// first; the root is 0.
    Tree(&'a [(u32, u32, f32)]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One child per node.
    Chain,
    Tree,
}

impl Shape {
    fn max_children(self) -> usize {
        match self {
            Shape::Chain => 1,
            Shape::Tree => usize::MAX,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProposeInput<'a> {
    pub candidates: Candidates<'a>,
    pub shape: Shape,
}

/// One per sequence. The round's caller clears the tree to the last token of the text, asks, verifies, then reports the
/// verdict and every token that joined the text.
pub trait Drafter {
    /// Whether a model pass makes its proposals better.
    fn wants_forward(&self) -> bool;

    /// Whether it can propose without one.
    fn proposes_unaided(&self) -> bool;

    /// Tokens expected of what it would propose without one at this place of the text.
    fn unaided_tokens(&self) -> f64 {
        0.0
    }

    /// What it would propose without one, further than a tree goes.
    fn unaided_path(&self) -> Found {
        Found::NOTHING
    }

    /// Whether rounds that a backend runs by itself do what it would: they ask it for what it found in the text, and for no tree.
    fn suits_rounds(&self) -> bool {
        false
    }

    /// Fills the tree and cuts it where `growth` says.
    fn propose(&mut self, input: &ProposeInput<'_>, growth: &Growth<'_>, tree: &mut TokenTree) -> Forecast;

    /// The settled tree and what was accepted of it; also after plain rounds.
    fn learn(&mut self, tree: &TokenTree, verdict: &Verdict);

    /// How far its own words were to be trusted, for the next sequence to begin with.
    fn learned(&self) -> Option<&Calibration> {
        None
    }

    /// Others have learned how far its words are to be trusted; it has had no lesson itself.
    fn trust(&mut self, _: &Calibration) {}

    /// A token joined the text for good: each of the prompt, then each emitted one, the next root included.
    fn committed(&mut self, token: u32);
}

/// Plain decoding.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDraft;

impl Drafter for NoDraft {
    fn wants_forward(&self) -> bool {
        false
    }

    fn proposes_unaided(&self) -> bool {
        false
    }

    fn suits_rounds(&self) -> bool {
        true
    }

    fn propose(&mut self, _: &ProposeInput<'_>, growth: &Growth<'_>, tree: &mut TokenTree) -> Forecast {
        growth.settle(tree)
    }

    fn learn(&mut self, _: &TokenTree, _: &Verdict) {}

    fn committed(&mut self, _: u32) {}
}

/// Lookup in the text itself, a block draft, or both in one tree: the looked-up path is forced, best-first growth
/// over the draft's candidates takes the rest.
#[derive(Default)]
pub struct BlockDraft {
    grower: Grower,
    has_draft: bool,
    ngram: Option<NGramIndex>,
    calibration: Calibration,
}

impl BlockDraft {
    /// A block draft alone.
    pub fn new() -> Self {
        Self { has_draft: true, ..Self::default() }
    }

    /// Lookup alone.
    pub fn ngram(index: NGramIndex) -> Self {
        Self { ngram: Some(index), ..Self::default() }
    }

    /// A block draft and lookup.
    pub fn merged(index: NGramIndex) -> Self {
        Self { has_draft: true, ngram: Some(index), ..Self::default() }
    }

    /// Starts from what an earlier sequence learned.
    pub fn with_calibration(mut self, calibration: Calibration) -> Self {
        self.calibration = calibration;
        self
    }

    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }
}

impl Drafter for BlockDraft {
    fn wants_forward(&self) -> bool {
        self.has_draft
    }

    fn proposes_unaided(&self) -> bool {
        self.ngram.is_some()
    }

    fn unaided_tokens(&self) -> f64 {
        let path = self.ngram.iter().flat_map(NGramIndex::propose).zip(1..);
        let believed = path.map(|((_, logp), depth)| self.calibration.believe(Source::NGram, depth, logp));
        let weights = believed.scan(0.0, |sum, logp| {
            *sum += logp;
            Some(f64::from(*sum).exp())
        });
        weights.sum()
    }

    fn unaided_path(&self) -> Found {
        let mut found = Found::NOTHING;
        let places = found.tokens.iter_mut().zip(&mut found.logps);
        let path = self.ngram.iter().flat_map(NGramIndex::follow);
        let filled = places.zip(path).map(|((token, logp), (what, said))| (*token, *logp) = (what, said));
        found.n = filled.count() as u32;
        found
    }

    fn suits_rounds(&self) -> bool {
        true
    }

    fn propose(&mut self, input: &ProposeInput<'_>, growth: &Growth<'_>, tree: &mut TokenTree) -> Forecast {
        let limit = growth.limit();
        if let Some(index) = &self.ngram {
            force_path(tree, &self.calibration, index.propose().take(limit));
        }
        match input.candidates {
            Candidates::None => {}
            Candidates::Depths(depths) => {
                let max_children = input.shape.max_children();
                self.grower.grow(depths, &self.calibration, max_children, limit, tree);
            }
            Candidates::Tree(nodes) => graft(tree, &self.calibration, input.shape, nodes),
        }
        growth.settle(tree)
    }

    fn learn(&mut self, tree: &TokenTree, verdict: &Verdict) {
        self.calibration.learn(tree, verdict);
    }

    fn trust(&mut self, calibration: &Calibration) {
        self.calibration = calibration.carried();
    }

    fn learned(&self) -> Option<&Calibration> {
        Some(&self.calibration)
    }

    fn committed(&mut self, token: u32) {
        if let Some(index) = &mut self.ngram {
            index.push(token);
        }
    }
}

/// Adds a drafted token at what it is believed to be worth, if its parent may have it.
pub fn offer(
    tree: &mut TokenTree,
    calibration: &Calibration,
    shape: Shape,
    parent: u32,
    (token, logp): (u32, f32),
) -> Option<u32> {
    let depth = tree.nodes().get(parent as usize)?.depth + 1;
    if tree.child(parent, token).is_none() && tree.n_children(parent) >= shape.max_children() {
        return None;
    }
    let believed = calibration.believe(Source::Draft, depth, logp);
    tree.push_believed(parent, token, logp, believed, Source::Draft)
}

/// Adds a tree that came from elsewhere. Its indices are its own: nodes that the tree merges or refuses shift them.
fn graft(tree: &mut TokenTree, calibration: &Calibration, shape: Shape, nodes: &[(u32, u32, f32)]) {
    const ABSENT: u32 = u32::MAX;
    let mut place = [ABSENT; MAX_DRAFTS + 1];
    place[0] = 0;
    for (i, (parent, token, logp)) in (1..).zip(nodes).take(MAX_DRAFTS) {
        let parent = place.get(*parent as usize).copied().unwrap_or(ABSENT);
        place[i] = offer(tree, calibration, shape, parent, (*token, *logp)).unwrap_or(ABSENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::accept::walk;
    use crate::spec::simulate::Random;

    fn tokens(tree: &TokenTree) -> Vec<(u32, u32)> {
        tree.nodes()[1..].iter().map(|n| (n.token, n.parent)).collect()
    }

    fn propose(drafter: &mut impl Drafter, candidates: Candidates<'_>, shape: Shape, n: usize) -> TokenTree {
        let mut tree = TokenTree::new(100);
        let forecast = drafter.propose(&ProposeInput { candidates, shape }, &Growth::Fixed(n), &mut tree);
        assert_eq!(forecast.drafts, tree.n_drafts());
        tree
    }

    #[test]
    fn each_drafter_fills_the_tree_its_own_way() {
        let depths: [Ranked<'_>; 2] = [&[(1, -0.2), (2, -1.8)], &[(3, -0.1), (4, -2.5)]];
        let depths = Candidates::Depths(&depths);
        let seen = || {
            let mut index = NGramIndex::new(vec![]);
            [7, 8, 1, 9, 7, 8].iter().for_each(|t| index.push(*t));
            index
        };
        use Shape::{Chain, Tree};
        let none = Candidates::None;
        assert_eq!(propose(&mut NoDraft, depths, Tree, 9).n_drafts(), 0);
        assert_eq!(tokens(&propose(&mut BlockDraft::new(), depths, Chain, 9)), [(1, 0), (3, 1)]);
        assert_eq!(tokens(&propose(&mut BlockDraft::new(), depths, Tree, 3)), [(1, 0), (3, 1), (2, 0)]);
        assert_eq!(propose(&mut BlockDraft::new(), none, Tree, 9).n_drafts(), 0);
        let lookup = propose(&mut BlockDraft::ngram(seen()), none, Tree, 4);
        assert_eq!(tokens(&lookup), [(1, 0), (9, 1), (7, 2), (8, 3)]);
        let merged = propose(&mut BlockDraft::merged(seen()), depths, Tree, 18);
        assert_eq!(tokens(&merged)[..2], [(1, 0), (9, 1)]);
        assert_eq!(tokens(&merged)[16..], [(3, 1), (2, 0)]);
        let chain = propose(&mut BlockDraft::merged(seen()), depths, Chain, 63);
        assert!(tokens(&chain).iter().enumerate().all(|(i, n)| n.1 == i as u32));
    }

    #[test]
    fn a_tree_built_elsewhere_is_taken_over_without_its_faults() {
        // 200 is no token, 5 hangs below it, 42 below a node that is not there, 1 comes twice with different children.
        let nodes = [
            (0, 1, -0.1),
            (0, 200, -0.1),
            (2, 5, -0.1),
            (77, 42, -0.1),
            (0, 1, -0.1),
            (5, 6, -0.1),
            (1, 7, -0.1),
        ];
        let tree = propose(&mut BlockDraft::new(), Candidates::Tree(&nodes), Shape::Tree, 63);
        assert_eq!(tokens(&tree), [(1, 0), (6, 1), (7, 1)]);
        let tree = propose(&mut BlockDraft::new(), Candidates::Tree(&nodes), Shape::Chain, 63);
        assert_eq!(tokens(&tree), [(1, 0), (6, 1)]);
    }

    #[test]
    fn a_draft_of_several_passes_hands_over_a_tree_and_learns_like_any_other() {
        // As MTP or EAGLE-3 would: each pass looked at what the one before had chosen.
        let passes = [(0, 1, -0.1), (0, 2, -2.5), (1, 3, -0.2), (1, 4, -2.0), (3, 5, -0.3)];
        let mut drafter = BlockDraft::new();
        let mut verdict = Verdict::default();
        for _ in 0..40 {
            let tree = propose(&mut drafter, Candidates::Tree(&passes), Shape::Tree, 63);
            assert_eq!(tokens(&tree), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 3)]);
            // The second pass is always wrong.
            walk(&tree, &mut verdict, |_, depth| Ok::<_, ()>((1 + 8 * depth, false))).unwrap();
            assert_eq!(verdict.n_tokens(), 2);
            drafter.learn(&tree, &verdict);
        }
        let factor = |depth| drafter.calibration().factor(Source::Draft, depth);
        assert!(factor(1) > 0.9 && factor(2) < 0.1, "{} {}", factor(1), factor(2));
    }

    /// Plain text that repeats itself with errors, so that lookup is right, wrong and silent in turn.
    fn repetitive(random: &mut Random, n: usize) -> Vec<u32> {
        let phrases: Vec<Vec<u32>> = (0..6).map(|_| (0..20).map(|_| random.below(40)).collect()).collect();
        let mut text = Vec::new();
        while text.len() < n {
            let phrase = &phrases[random.below(6) as usize];
            text.extend(phrase.iter().map(|t| if random.below(15) == 0 { random.below(40) } else { *t }));
        }
        text
    }

    #[test]
    fn lookup_speculates_without_changing_the_text() {
        let text = repetitive(&mut Random(31), 60_000);
        let mut drafter = BlockDraft::ngram(NGramIndex::new(vec![]));
        let (mut tree, mut verdict) = (TokenTree::new(40), Verdict::default());
        text[..2].iter().for_each(|t| drafter.committed(*t));
        let (mut done, mut rounds) = (2, 0);
        while done + 20 < text.len() {
            tree.clear(text[done - 1]);
            let input = ProposeInput { candidates: Candidates::None, shape: Shape::Tree };
            drafter.propose(&input, &Growth::Fixed(15), &mut tree);
            let draw = |_, depth: u32| Ok::<_, ()>((text[done + depth as usize], false));
            walk(&tree, &mut verdict, draw).unwrap();
            let emitted: Vec<u32> = verdict.tokens(&tree).collect();
            assert_eq!(emitted, text[done..done + emitted.len()]);
            drafter.learn(&tree, &verdict);
            emitted.iter().for_each(|t| drafter.committed(*t));
            done += emitted.len();
            rounds += 1;
        }
        assert!(done > 3 * rounds, "{:.2} tokens a round", done as f64 / rounds as f64);
    }
}
