//! Acceptance, by one rule for greedy and sampled text, chains and trees: draw the target's own token at the node,
//! emit it, and go on below if it was drafted there.
//!
//! Every emitted token is the target's draw after the text before it; the tree only decides how many are drawn from
//! one pass. With noise that depends on the position alone this is plain decoding, token for token.

use super::tree::TokenTree;

/// What a round brought. Kept and refilled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Drafted nodes that were accepted, from below the root down.
    pub path: Vec<u32>,
    /// The token after them, the target's own: the next round's root, or the text's last.
    pub next: u32,
}

impl Verdict {
    /// The tokens that the round adds to the text.
    pub fn tokens(&self, tree: &TokenTree) -> impl Iterator<Item = u32> {
        let accepted = self.path.iter().map(|n| tree.nodes()[*n as usize].token);
        accepted.chain(std::iter::once(self.next))
    }

    pub fn n_tokens(&self) -> usize {
        self.path.len() + 1
    }
}

/// Walks down from the root. `draw(node, depth)` returns the target's token after that node and whether it ends the
/// text; the walk never goes past an end, so nothing is drawn that plain decoding would not have drawn.
///
/// An error of `draw` stops the walk; the verdict's path then holds what was accepted before it.
pub fn walk<E>(
    tree: &TokenTree,
    verdict: &mut Verdict,
    mut draw: impl FnMut(u32, u32) -> Result<(u32, bool), E>,
) -> Result<(), E> {
    verdict.path.clear();
    let mut at = 0;
    loop {
        let (token, is_end) = draw(at, verdict.path.len() as u32)?;
        verdict.next = token;
        match tree.child(at, token) {
            Some(child) if !is_end => {
                verdict.path.push(child);
                at = child;
            }
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use overdraft_plan::draw::Drawing;

    use super::*;
    use crate::sampling::{History, Sampler, Sampling};
    use crate::spec::simulate::Random;
    use crate::spec::tree::Source;

    const VOCAB: usize = 24;
    const PROMPT: [u32; 3] = [3, 1, 4];

    /// Stands for a target: logits that depend on the last three tokens and nothing else, now and then no number.
    fn logits_after(prefix: &[u32], out: &mut Vec<f32>) {
        let last = &prefix[prefix.len() - 3..];
        let mut random = Random(((last[0] as u64 * 64 + last[1] as u64) * 64 + last[2] as u64) << 20);
        out.clear();
        out.extend((0..VOCAB).map(|_| random.uniform() as f32 * 8.0));
        out[random.below(VOCAB as u32) as usize] = f32::NAN;
    }

    struct Text {
        tokens: Vec<u32>,
        history: History,
        sampler: Sampler,
        logits: Vec<f32>,
    }

    impl Text {
        fn new(sampling: &Sampling) -> Self {
            let history = History::new(sampling, &PROMPT, VOCAB);
            Self { tokens: PROMPT.to_vec(), history, sampler: Sampler::default(), logits: Vec::new() }
        }

        /// Plain decoding's step, and the walk's draw: there is no other.
        fn next(&mut self, sampling: &Sampling) -> u32 {
            logits_after(&self.tokens, &mut self.logits);
            let position = self.tokens.len() as u32;
            let token = self.sampler.choose(&self.logits, sampling, &self.history, position).unwrap();
            self.history.answer(token);
            self.tokens.push(token);
            token
        }
    }

    fn samplings() -> [Sampling; 3] {
        let greedy = Drawing { repetition_penalty: 1.1, ..Default::default() };
        let hot = Drawing { temperature: 0.8, top_p: 0.9, seed: 9, ..Default::default() };
        let penal = Drawing { frequency_penalty: 0.3, presence_penalty: 0.5, top_k: 9, seed: 4, ..hot };
        [greedy, hot, penal].map(Sampling::from)
    }

    fn plain(sampling: &Sampling, n: usize) -> Vec<u32> {
        let mut text = Text::new(sampling);
        for _ in 0..n {
            text.next(sampling);
        }
        text.tokens
    }

    /// A tree that follows `truth` with random gaps, wrong branches, ids outside the vocabulary and true tokens under
    /// wrong parents.
    fn draft(tree: &mut TokenTree, random: &mut Random, truth: &[u32], chain: bool) {
        let n = random.below(40);
        let mut last = 0;
        for i in 0..n {
            let parent = if chain || random.below(3) > 0 { last } else { random.below(tree.len() as u32) };
            let depth = tree.nodes()[parent as usize].depth as usize;
            let token = match (random.below(12), truth.get(depth)) {
                (0, _) => VOCAB as u32 + i,
                (1, _) => u32::MAX - 1,
                (2..10, Some(right)) => *right,
                _ => random.below(VOCAB as u32),
            };
            if let Some(node) = tree.push(parent, token, -0.5, Source::Draft) {
                last = node;
            }
        }
    }

    /// Speculates until `rounds` are over; returns the text and how many drafts were accepted.
    fn speculate(sampling: &Sampling, truth: &[u32], chain: bool, rounds: usize) -> (Vec<u32>, usize) {
        let mut random = Random(77);
        // No limit on ids, to see that the walk alone never accepts one that the target cannot draw.
        let mut tree = TokenTree::new(u32::MAX);
        let (mut text, mut verdict, mut accepted) = (Text::new(sampling), Verdict::default(), 0);
        text.next(sampling);
        for _ in 0..rounds {
            let done = text.tokens.len();
            tree.clear(text.tokens[done - 1]);
            draft(&mut tree, &mut random, &truth[done.min(truth.len())..], chain);
            walk(&tree, &mut verdict, |_, _| Ok::<_, ()>((text.next(sampling), false))).unwrap();
            assert_eq!(verdict.tokens(&tree).collect::<Vec<_>>(), text.tokens[done..]);
            accepted += verdict.path.len();
        }
        (text.tokens, accepted)
    }

    #[test]
    fn speculation_writes_what_plain_decoding_writes() {
        let rounds = 17_000;
        for (case, sampling) in samplings().iter().enumerate() {
            let truth = plain(sampling, 6 * rounds);
            for chain in [false, true] {
                let (text, accepted) = speculate(sampling, &truth, chain, rounds);
                let n = text.len().min(truth.len());
                assert!(n > rounds && text[..n] == truth[..n], "sampling {case}, chain {chain}");
                assert!(accepted > rounds, "sampling {case}, chain {chain}: accepted only {accepted}");
            }
        }
    }

    #[test]
    fn a_walk_that_accepts_without_asking_is_caught() {
        let sampling = &samplings()[1];
        let truth = plain(sampling, 2000);
        let (mut text, mut random, mut tree) =
            (Text::new(sampling), Random(77), TokenTree::new(VOCAB as u32));
        for _ in 0..100 {
            let done = text.tokens.len();
            tree.clear(text.tokens[done - 1]);
            draft(&mut tree, &mut random, &truth[done..], false);
            let first = tree.nodes().iter().find(|n| n.parent == 0);
            text.tokens.extend(first.map(|n| n.token));
            text.next(sampling);
        }
        assert_ne!(text.tokens, truth[..text.tokens.len()]);
    }

    #[test]
    fn a_sampler_that_leans_towards_the_draft_is_caught() {
        let sampling = &samplings()[1];
        let truth = plain(sampling, 4000);
        // Nothing but the draw differs, and with no lean at all the text is plain decoding's.
        for lean in [0.0, 0.2, 1.0] {
            let (mut text, mut random, mut tree) =
                (Text::new(sampling), Random(77), TokenTree::new(VOCAB as u32));
            let mut verdict = Verdict::default();
            text.next(sampling);
            for _ in 0..600 {
                let done = text.tokens.len();
                tree.clear(text.tokens[done - 1]);
                draft(&mut tree, &mut random, &truth[done..], false);
                let draw = |node, _| {
                    let children = tree.nodes().iter().filter(|n| n.parent == node && n.depth > 0);
                    let bias = children.map(|n| (n.token, lean)).collect();
                    let leaning = Sampling { bias, ..sampling.clone() };
                    text.history = History::new(&leaning, &PROMPT, VOCAB);
                    Ok::<_, ()>((text.next(&leaning), false))
                };
                walk(&tree, &mut verdict, draw).unwrap();
            }
            let same = text.tokens == truth[..text.tokens.len()];
            assert_eq!(same, lean == 0.0, "a lean of {lean}");
        }
    }

    #[test]
    fn the_walk_stops_where_the_text_ends() {
        let mut tree = TokenTree::new(100);
        tree.chain([(1, -0.1), (2, -0.1), (3, -0.1)], Source::Draft);
        let mut verdict = Verdict::default();
        let draws = [1, 2, 3, 4];
        for end in 0..4 {
            let mut drawn = 0;
            let draw = |node, depth: u32| {
                drawn += 1;
                assert_eq!(node, depth, "in a chain");
                Ok::<_, ()>((draws[depth as usize], depth as usize == end))
            };
            walk(&tree, &mut verdict, draw).unwrap();
            assert_eq!(drawn, end + 1, "nothing is drawn past the end");
            assert_eq!(verdict.tokens(&tree).collect::<Vec<_>>(), draws[..=end]);
            assert_eq!(verdict.n_tokens(), end + 1);
        }
    }

    #[test]
    fn a_failed_draw_keeps_what_was_accepted_before_it() {
        let mut tree = TokenTree::new(100);
        let last = tree.chain([(1, -0.1), (2, -0.1), (3, -0.1)], Source::Draft);
        let mut verdict = Verdict::default();
        let draw = |_, depth| if depth == 2 { Err("no usable logits") } else { Ok((depth + 1, false)) };
        assert_eq!(walk(&tree, &mut verdict, draw), Err("no usable logits"));
        assert_eq!(verdict.path, tree.path_to(last).take(2).collect::<Vec<_>>());
    }
}
