//! The tokens of a round: what a drafter proposes and the target verifies. A chain is a tree with one child per
//! node, plain decoding a tree of its root alone.

use overdraft_plan::{MAX_DRAFT_DEPTH, NO_PARENT};

use super::gate::Gate;
use crate::options::Speculative;

/// Drafted nodes of a tree at most: with the root they fill the largest bucket of rows that has logits.
pub const MAX_DRAFTS: usize = 63;

/// Who proposed a node. What they say of themselves is corrected apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Draft,
    NGram,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    pub token: u32,
    /// Node index; [`NO_PARENT`] for the root.
    pub parent: u32,
    /// The root's is 0.
    pub depth: u32,
    /// What the drafter said: log-probability of this token once its parent is accepted.
    pub logp: f32,
    /// Log of the probability that the whole path is accepted, as far as known. Never above the parent's.
    pub log_weight: f32,
    pub source: Source,
}

/// Nodes with parents before children. Node 0 is the root: the last token of the text so far, not drafted.
///
/// The tree refuses whatever a step would refuse (an id outside the vocabulary, a path too deep, too many rows), so
/// no drafter needs to know these rules. Storage is kept from round to round.
pub struct TokenTree {
    nodes: Vec<Node>,
    vocab: u32,
    max_depth: u32,
    max_drafts: usize,
    /// Refuses what a constraint does not allow.
    gate: Option<Gate>,
}

impl TokenTree {
    pub fn new(vocab: u32) -> Self {
        let nodes = Vec::with_capacity(MAX_DRAFTS + 1);
        let mut tree =
            Self { nodes, vocab, max_depth: MAX_DRAFT_DEPTH as u32, max_drafts: MAX_DRAFTS, gate: None };
        tree.clear(0);
        tree
    }

    /// A tree that holds no more than a request allows.
    pub fn limited(self, speculative: Speculative) -> Self {
        let (depth, nodes) = match speculative {
            Speculative::Auto => (MAX_DRAFT_DEPTH, MAX_DRAFTS),
            Speculative::Off => (0, 0),
            Speculative::Limited { max_depth, max_nodes } => (max_depth, max_nodes),
        };
        Self { max_depth: depth.min(MAX_DRAFT_DEPTH) as u32, max_drafts: nodes.min(MAX_DRAFTS), ..self }
    }

    /// How deep it may be, and how many drafted nodes it may hold.
    pub(crate) fn most(&self) -> (u32, usize) {
        (self.max_depth, self.max_drafts)
    }

    /// A tree that holds only what a constraint allows.
    pub fn gated(self, gate: Option<Gate>) -> Self {
        Self { gate, ..self }
    }

    /// The constraint, for the text itself.
    pub(crate) fn gate(&mut self) -> &mut Option<Gate> {
        &mut self.gate
    }

    /// Only a root.
    pub fn clear(&mut self, root_token: u32) {
        self.nodes.clear();
        self.nodes.push(Node {
            token: root_token,
            parent: NO_PARENT,
            depth: 0,
            logp: 0.0,
            log_weight: 0.0,
            source: Source::Draft,
        });
    }

    /// Adds `token` below `parent`, or finds it there. `None`: the tree may not hold it.
    pub fn push(&mut self, parent: u32, token: u32, logp: f32, source: Source) -> Option<u32> {
        self.push_believed(parent, token, logp, logp, source)
    }

    /// As [`Self::push`], weighing the node by `believed` rather than by what its drafter said.
    pub fn push_believed(
        &mut self,
        parent: u32,
        token: u32,
        logp: f32,
        believed: f32,
        source: Source,
    ) -> Option<u32> {
        let above = *self.nodes.get(parent as usize)?;
        if let Some(same) = self.child(parent, token) {
            return Some(same);
        }
        let fits = token < self.vocab && above.depth < self.max_depth && self.n_drafts() < self.max_drafts;
        if !fits {
            return None;
        }
        if let Some(mut gate) = self.gate.take() {
            let path = self.path_to(parent).map(|node| self.nodes[node as usize].token);
            let is_allowed = gate.allows(path, token);
            self.gate = Some(gate);
            if !is_allowed {
                return None;
            }
        }
        self.nodes.push(Node {
            token,
            parent,
            depth: above.depth + 1,
            logp: at_most_certain(logp),
            log_weight: above.log_weight + at_most_certain(believed),
            source,
        });
        Some(self.nodes.len() as u32 - 1)
    }

    /// Adds a path below the root; stops where the tree may not go on. Returns its last node.
    pub fn chain(&mut self, tokens: impl IntoIterator<Item = (u32, f32)>, source: Source) -> u32 {
        let mut last = 0;
        for (token, logp) in tokens {
            match self.push(last, token, logp, source) {
                Some(node) => last = node,
                None => break,
            }
        }
        last
    }

    /// The child of `node` that holds `token`. A scan: 63 comparisons cost less than any index over them.
    pub fn child(&self, node: u32, token: u32) -> Option<u32> {
        let found = self.nodes.iter().position(|n| n.parent == node && n.token == token);
        found.map(|i| i as u32)
    }

    pub fn n_children(&self, node: u32) -> usize {
        self.nodes.iter().filter(|n| n.parent == node).count()
    }

    /// Nodes, the root included; never 0.
    #[allow(clippy::len_without_is_empty, reason = "there is always a root")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// One child per node.
    pub fn is_chain(&self) -> bool {
        self.nodes.iter().enumerate().all(|(i, node)| node.depth as usize == i)
    }

    /// Nodes without the root.
    pub fn n_drafts(&self) -> usize {
        self.nodes.len() - 1
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Nodes from below the root down to `node`.
    pub fn path_to(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> {
        let mut path = [0; MAX_DRAFT_DEPTH];
        let mut at = node;
        let depth = self.nodes[node as usize].depth as usize;
        for place in path[..depth].iter_mut().rev() {
            *place = at;
            at = self.nodes[at as usize].parent;
        }
        path.into_iter().take(depth)
    }

    /// Drops all nodes from index `len` on; what is left is closed under parents, because they come first.
    pub fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len.max(1));
    }

    /// Raises the weight of `node` to `log_weight`, and of all below by as much. Less than it has changes nothing.
    pub fn raise(&mut self, node: u32, log_weight: f32) {
        let at = node as usize;
        let gain = log_weight - self.nodes[at].log_weight;
        if at == 0 || gain.is_nan() || gain <= 0.0 {
            return;
        }
        let mut raised = 1u64 << at;
        self.nodes[at].log_weight = log_weight;
        for i in at + 1..self.nodes.len() {
            let parent = self.nodes[i].parent as usize;
            if raised >> parent & 1 == 1 {
                raised |= 1 << i;
                let below = self.nodes[parent].log_weight;
                self.nodes[i].log_weight = (self.nodes[i].log_weight + gain).min(below);
            }
        }
    }

    /// Orders nodes by weight, largest first, so that every prefix is the best tree of its size among these nodes.
    /// A child is never heavier than its parent and equals keep their order, so parents stay first.
    pub fn sort_by_weight(&mut self) {
        let n = self.nodes.len();
        let mut order: [u8; MAX_DRAFTS + 1] = std::array::from_fn(|i| i as u8);
        order[1..n].sort_unstable_by(|a, b| {
            let weight = |i: u8| self.nodes[i as usize].log_weight;
            weight(*b).total_cmp(&weight(*a)).then(a.cmp(b))
        });
        let mut place = [0u8; MAX_DRAFTS + 1];
        order[..n].iter().enumerate().for_each(|(to, from)| place[*from as usize] = to as u8);
        for node in &mut self.nodes[1..] {
            node.parent = place[node.parent as usize] as u32;
        }
        // Follow each cycle of the permutation, so that no second list of nodes is needed.
        for start in 1..n {
            while place[start] as usize != start {
                let to = place[start] as usize;
                self.nodes.swap(start, to);
                place.swap(start, to);
            }
        }
    }
}

/// A log-probability that cannot raise a weight; no number at all is taken as impossible.
fn at_most_certain(logp: f32) -> f32 {
    if logp.is_nan() { f32::NEG_INFINITY } else { logp.min(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens_of(tree: &TokenTree) -> Vec<(u32, u32)> {
        tree.nodes().iter().map(|n| (n.token, n.parent)).collect()
    }

    #[test]
    fn equal_children_are_one_node() {
        let mut tree = TokenTree::new(100);
        tree.clear(9);
        let a = tree.push(0, 5, -0.5, Source::Draft).unwrap();
        assert_eq!(tree.push(0, 5, -0.1, Source::NGram), Some(a));
        let b = tree.push(a, 5, -0.25, Source::Draft).unwrap();
        assert_eq!(tokens_of(&tree), [(9, NO_PARENT), (5, 0), (5, a)]);
        assert_eq!(tree.nodes()[b as usize].log_weight, -0.75);
        assert_eq!((tree.child(0, 5), tree.child(a, 5), tree.child(b, 5)), (Some(a), Some(b), None));
        assert_eq!(tree.path_to(b).collect::<Vec<_>>(), [a, b]);
        assert_eq!(tree.path_to(0).count(), 0);
        tree.clear(1);
        assert_eq!(tokens_of(&tree), [(1, NO_PARENT)]);
    }

    #[test]
    fn what_a_step_would_refuse_is_refused() {
        let mut tree = TokenTree::new(100);
        assert_eq!(tree.push(0, 100, -0.1, Source::Draft), None, "outside the vocabulary");
        assert_eq!(tree.push(7, 1, -0.1, Source::Draft), None, "no such parent");
        let last = tree.chain((0..40).map(|t| (t, -0.1)), Source::NGram);
        assert_eq!(tree.nodes()[last as usize].depth, 16, "16 drafts below the root");
        assert_eq!(tree.n_drafts(), 16);
        assert_eq!(tree.push(last, 1, -0.1, Source::Draft), None);
        for token in 1..100 {
            tree.push(0, token, -0.1, Source::Draft);
        }
        assert_eq!(tree.n_drafts(), MAX_DRAFTS);
        assert!(tree.push(0, 1, -0.1, Source::Draft).is_some(), "found, not added");
    }

    #[test]
    fn no_log_probability_raises_a_weight() {
        for (logp, weight) in [(0.5, 0.0), (f32::NAN, f32::NEG_INFINITY), (-1.0, -1.0), (f32::INFINITY, 0.0)]
        {
            let mut tree = TokenTree::new(9);
            let node = tree.push(0, 1, logp, Source::Draft).unwrap();
            assert_eq!(tree.nodes()[node as usize].log_weight, weight, "{logp}");
        }
    }

    #[test]
    fn raising_a_node_raises_what_is_below_and_nothing_else() {
        let mut tree = TokenTree::new(99);
        let a = tree.push(0, 1, -2.0, Source::NGram).unwrap();
        let b = tree.push(0, 2, -1.0, Source::Draft).unwrap();
        let aa = tree.push(a, 3, -1.0, Source::NGram).unwrap();
        tree.raise(a, -0.5);
        tree.raise(a, -3.0);
        tree.raise(b, f32::NAN);
        let weights = [a, b, aa].map(|n| tree.nodes()[n as usize].log_weight);
        assert_eq!(weights, [-0.5, -1.0, -1.5]);
    }

    #[test]
    fn sorted_by_weight_every_prefix_is_a_tree() {
        let mut state = 1u64;
        for round in 0..200 {
            let mut tree = TokenTree::new(1000);
            for token in 0..63 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let parent = (state >> 33) as u32 % tree.len() as u32;
                tree.push(parent, token, -((state >> 60) as f32) / 4.0, Source::Draft);
            }
            let paths = |t: &TokenTree| {
                let path = |n: u32| t.path_to(n).map(|i| t.nodes()[i as usize].token).collect::<Vec<_>>();
                let mut all: Vec<_> = (0..t.len() as u32).map(path).collect();
                all.sort();
                all
            };
            let before = paths(&tree);
            tree.sort_by_weight();
            assert_eq!(paths(&tree), before, "round {round}: the same paths");
            for (i, node) in tree.nodes().iter().enumerate().skip(1) {
                assert!((node.parent as usize) < i, "round {round}: parent after child");
                assert!(i == 1 || tree.nodes()[i - 1].log_weight >= node.log_weight, "round {round}: order");
            }
        }
    }
}
