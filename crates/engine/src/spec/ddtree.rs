//! The best tree for a block draft. Depths are taken as independent, so a path weighs the product of its tokens'
//! probabilities; the tree that catches most tokens holds the heaviest paths, and best-first search finds them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use overdraft_plan::MAX_DRAFT_DEPTH;

use super::calibration::Calibration;
use super::tree::{MAX_DRAFTS, Source, TokenTree};

/// Best tokens of one depth with log-probabilities over the whole vocabulary, most likely first.
pub type Ranked<'a> = &'a [(u32, f32)];

/// A path not yet in the tree: a node of the tree and the candidate that would follow it.
#[derive(Clone, Copy)]
struct Entry {
    log_weight: f32,
    /// Rank of the token at each depth, a byte each, the first depth in the highest.
    ranks: u128,
    parent: u32,
    /// Of the candidate.
    depth: u8,
    rank: u8,
}

impl Ord for Entry {
    /// Heavier is greater; among equals the lexicographically smaller path of ranks, so that the tree is unique.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_weight = self.log_weight.total_cmp(&other.log_weight);
        by_weight.then(other.ranks.cmp(&self.ranks)).then(other.depth.cmp(&self.depth))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Rank of a node that no candidate list holds (a forced one): after all that have one.
const UNRANKED: u8 = u8::MAX;

/// Grows trees; keeps its heap.
pub struct Grower {
    heap: BinaryHeap<Entry>,
    /// `Entry::ranks` of each node of the tree.
    ranks: Vec<u128>,
}

impl Default for Grower {
    /// With room for the largest tree: a node that is taken leaves at most two in its place.
    fn default() -> Self {
        Self {
            heap: BinaryHeap::with_capacity(2 * MAX_DRAFTS + 2),
            ranks: Vec::with_capacity(MAX_DRAFTS + 1),
        }
    }
}

impl Grower {
    /// Adds the heaviest paths over `candidates` (depth by depth from 1) until the tree has `n_drafts` drafted nodes
    /// or nothing is left. Nodes already there (a forced path) stay, count, and are built upon. `max_children` 1
    /// makes a chain.
    pub fn grow(
        &mut self,
        candidates: &[Ranked<'_>],
        calibration: &Calibration,
        max_children: usize,
        n_drafts: usize,
        tree: &mut TokenTree,
    ) {
        let search = Search { candidates, calibration };
        self.heap.clear();
        self.adopt(&search, tree);
        for node in 0..tree.len() as u32 {
            self.heap.extend(search.entry(tree, node, self.ranks[node as usize], 0));
        }
        let limit = n_drafts.min(MAX_DRAFTS);
        while tree.n_drafts() < limit
            && let Some(best) = self.heap.pop()
        {
            let (token, logp) = candidates[best.depth as usize - 1][best.rank as usize];
            let is_new = tree.child(best.parent, token).is_none();
            if is_new && tree.n_children(best.parent) >= max_children {
                continue;
            }
            let believed = calibration.believe(Source::Draft, best.depth as u32, logp);
            let node = tree.push_believed(best.parent, token, logp, believed, Source::Draft);
            let above = best.ranks & !(0xff << shift(best.depth));
            self.heap.extend(search.entry(tree, best.parent, above, best.rank + 1));
            if is_new && let Some(node) = node {
                self.ranks.push(best.ranks);
                self.heap.extend(search.entry(tree, node, best.ranks, 0));
            }
        }
    }

    /// Finds the ranks of nodes already in the tree, and lets the draft's belief raise their weight: two drafters
    /// that agree are no less likely to be right than the surer of them.
    fn adopt(&mut self, search: &Search<'_>, tree: &mut TokenTree) {
        self.ranks.clear();
        self.ranks.push(0);
        for index in 1..tree.len() {
            let node = tree.nodes()[index];
            let list = search.candidates.get(node.depth as usize - 1).copied().unwrap_or_default();
            let rank = list.iter().take(UNRANKED as usize).position(|c| c.0 == node.token);
            if let Some(rank) = rank {
                let believed = search.calibration.believe(Source::Draft, node.depth, list[rank].1);
                tree.raise(index as u32, tree.nodes()[node.parent as usize].log_weight + believed);
            }
            let rank = rank.map_or(UNRANKED, |r| r as u8);
            let ranks = self.ranks[node.parent as usize] | (rank as u128) << shift(node.depth as u8);
            self.ranks.push(ranks);
        }
    }
}

struct Search<'a> {
    candidates: &'a [Ranked<'a>],
    calibration: &'a Calibration,
}

impl Search<'_> {
    /// The candidate of `rank` below `parent`, if there is one that can ever be accepted.
    fn entry(&self, tree: &TokenTree, parent: u32, ranks_above: u128, rank: u8) -> Option<Entry> {
        let above = tree.nodes()[parent as usize];
        let depth = above.depth as usize + 1;
        if depth > MAX_DRAFT_DEPTH || rank == UNRANKED {
            return None;
        }
        let (_, logp) = self.candidates.get(depth - 1)?.get(rank as usize)?;
        let log_weight = above.log_weight + self.calibration.believe(Source::Draft, depth as u32, *logp);
        let ranks = ranks_above | (rank as u128) << shift(depth as u8);
        let entry = Entry { log_weight, ranks, parent, depth: depth as u8, rank };
        log_weight.is_finite().then_some(entry)
    }
}

/// Where the rank at `depth` (from 1) stands.
fn shift(depth: u8) -> u32 {
    8 * (MAX_DRAFT_DEPTH as u32 - depth as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::simulate::Random;

    fn grow(candidates: &[Vec<(u32, f32)>], max_children: usize, n: usize) -> TokenTree {
        let mut tree = TokenTree::new(1000);
        grow_onto(&mut tree, candidates, max_children, n);
        tree
    }

    fn grow_onto(tree: &mut TokenTree, candidates: &[Vec<(u32, f32)>], max_children: usize, n: usize) {
        let lists: Vec<Ranked<'_>> = candidates.iter().map(Vec::as_slice).collect();
        Grower::default().grow(&lists, &Calibration::default(), max_children, n, tree);
    }

    /// `depths` distributions over `vocab` tokens, most likely first; powers of a half make ties frequent.
    fn random_candidates(
        random: &mut Random,
        vocab: u32,
        depths: usize,
        with_ties: bool,
    ) -> Vec<Vec<(u32, f32)>> {
        let row = |_| {
            let weights: Vec<f64> = (0..vocab)
                .map(|_| if with_ties { 0.5f64.powi(random.below(4) as i32) } else { random.uniform() })
                .collect();
            let total: f64 = weights.iter().sum();
            let mut row: Vec<(u32, f32)> =
                (0..vocab).map(|t| (t, (weights[t as usize] / total).ln() as f32)).collect();
            row.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            row
        };
        (0..depths).map(row).collect()
    }

    /// Every path over the candidates as ranks, with its weight, in the order in which a tree should take them.
    fn all_paths(candidates: &[Vec<(u32, f32)>]) -> Vec<(Vec<usize>, f32)> {
        let mut all = Vec::new();
        let mut level: Vec<(Vec<usize>, f32)> = vec![(vec![], 0.0)];
        for row in candidates {
            let longer = |(path, w): &(Vec<usize>, f32)| -> Vec<(Vec<usize>, f32)> {
                let next = |(rank, c): (usize, &(u32, f32))| ([path.as_slice(), &[rank]].concat(), w + c.1);
                row.iter().enumerate().map(next).collect()
            };
            level = level.iter().flat_map(longer).collect();
            all.extend(level.iter().cloned());
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all
    }

    fn rank_path(tree: &TokenTree, candidates: &[Vec<(u32, f32)>], node: u32) -> Vec<usize> {
        let rank = |(depth, n): (usize, u32)| {
            candidates[depth].iter().position(|c| c.0 == tree.nodes()[n as usize].token).unwrap()
        };
        tree.path_to(node).enumerate().map(rank).collect()
    }

    #[test]
    fn a_round_of_the_backend_is_defined_to_grow_the_same_tree() {
        use overdraft_plan::{DraftPart, Found, MAX_STOP_IDS, Member, NO_TOKEN, Resident};
        let resident = Resident {
            slot: 0,
            committed: 5,
            injected: 5,
            stored_grid: 0,
            root: 3,
            limit: 1000,
            stop_ids: [NO_TOKEN; MAX_STOP_IDS],
            drawing: Default::default(),
            forced: None,
            is_active: true,
        };
        let mut random = Random(12);
        for _ in 0..40 {
            let candidates = random_candidates(&mut random, 12, 9, false);
            for (is_chain, nodes) in [(true, 7), (true, 20), (false, 1), (false, 15), (false, 63)] {
                let trust = Calibration::default().trust_in(Source::Draft);
                let member = Member {
                    slot: 0,
                    part: DraftPart::Drafts,
                    nodes,
                    depth: 16,
                    is_chain,
                    is_fixed: true,
                    trust,
                    found: Found::NOTHING,
                };
                let defined = overdraft_plan::grow(&resident, &member, &candidates.concat(), 12);
                let tree = grow(&candidates, if is_chain { 1 } else { usize::MAX }, nodes as usize);
                let grown = tree.nodes()[1..].iter().map(|n| (n.parent, n.token, n.logp, n.log_weight));
                let defined = defined[1..].iter().map(|n| (n.parent, n.token, n.logp, n.log_weight));
                assert!(grown.eq(defined), "{nodes} nodes, chain: {is_chain}");
            }
        }
    }

    #[test]
    fn every_budget_takes_the_heaviest_paths_ties_by_rank() {
        let mut random = Random(5);
        for round in 0..60 {
            let candidates = random_candidates(&mut random, 4, 3, round % 2 == 0);
            let best = all_paths(&candidates);
            for budget in 0..=MAX_DRAFTS {
                let tree = grow(&candidates, usize::MAX, budget);
                assert_eq!(tree.n_drafts(), budget);
                for (i, (path, weight)) in best[..budget].iter().enumerate() {
                    let node = i as u32 + 1;
                    assert_eq!(rank_path(&tree, &candidates, node), *path, "round {round}, node {node}");
                    assert_eq!(tree.nodes()[node as usize].log_weight, *weight);
                    assert!(tree.nodes()[node as usize].parent < node);
                }
            }
        }
    }

    #[test]
    fn with_one_child_per_node_it_is_the_chain_of_first_candidates() {
        let candidates = random_candidates(&mut Random(1), 8, 15, false);
        for n in [0, 1, 7, 15, 40] {
            let tree = grow(&candidates, 1, n);
            let tokens: Vec<u32> = tree.nodes()[1..].iter().map(|n| n.token).collect();
            let firsts: Vec<u32> = candidates.iter().take(n).map(|c| c[0].0).collect();
            assert_eq!(tokens, firsts, "{n} drafts");
            assert!(tree.nodes()[1..].iter().enumerate().all(|(i, n)| n.parent == i as u32));
        }
    }

    #[test]
    fn a_forced_path_is_kept_counted_and_built_upon() {
        let candidates = vec![vec![(1, -0.2), (2, -2.0)], vec![(3, -0.3), (4, -1.5)], vec![(5, -0.1)]];
        let mut tree = TokenTree::new(100);
        tree.chain([(1, -1.0), (9, -1.0)], Source::NGram);
        grow_onto(&mut tree, &candidates, usize::MAX, 5);
        let nodes: Vec<_> = tree.nodes()[1..].iter().map(|n| (n.token, n.parent, n.source)).collect();
        use Source::{Draft, NGram};
        assert_eq!(nodes, [(1, 0, NGram), (9, 1, NGram), (3, 1, Draft), (5, 3, Draft), (5, 2, Draft)]);
        // The draft is surer of 1 than the n-gram was, which lifts what follows it.
        assert_eq!(tree.nodes()[1].log_weight, -0.2);
        assert!((tree.nodes()[2].log_weight + 1.2).abs() < 1e-6);
        let mut chain = TokenTree::new(100);
        chain.chain([(9, -1.0)], NGram);
        grow_onto(&mut chain, &candidates, 1, 9);
        let tokens: Vec<u32> = chain.nodes()[1..].iter().map(|n| n.token).collect();
        assert_eq!(tokens, [9, 3, 5], "a chain goes on below the forced path");
    }

    #[test]
    fn nonsense_in_the_lists_is_left_out() {
        type Lists = Vec<Vec<(u32, f32)>>;
        let cases: [(&str, Lists, &[u32]); 6] = [
            ("no depths", vec![], &[]),
            ("an empty depth ends the paths", vec![vec![(1, -0.1)], vec![], vec![(2, -0.1)]], &[1]),
            ("ids outside the vocabulary", vec![vec![(u32::MAX, -0.1), (7, -0.5), (1000, -0.6)]], &[7]),
            ("no number", vec![vec![(1, f32::NAN), (2, -1.0)]], &[]),
            ("impossible tokens", vec![vec![(1, -0.1), (2, f32::NEG_INFINITY)]], &[1]),
            ("a token twice", vec![vec![(1, -0.1), (1, -0.2), (2, -0.3)]], &[1, 2]),
        ];
        for (case, candidates, want) in cases {
            let tree = grow(&candidates, usize::MAX, 10);
            let tokens: Vec<u32> = tree.nodes()[1..].iter().map(|n| n.token).collect();
            assert_eq!(tokens, want, "{case}");
        }
        let long = vec![vec![(1, -0.1); 300]; 40];
        assert_eq!(grow(&long, usize::MAX, usize::MAX).n_drafts(), 16, "more depths than a path may have");
        let wide = vec![(0..300).map(|t| (t, -6.0 - t as f32 / 100.0)).collect::<Vec<_>>(); 2];
        assert_eq!(grow(&wide, usize::MAX, usize::MAX).n_drafts(), MAX_DRAFTS);
    }
}
