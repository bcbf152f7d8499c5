//! Prompts that were read, by blocks of a page: what a later prompt that begins the same need not read again.
//!
//! A tree of blocks, each found by its parent and its 64 tokens. The tokens themselves are the key, so no two prompts
//! are ever taken for each other, and the first level is apart for every salt.

use std::collections::HashMap;

use overdraft_plan::{NO_PAGE, PAGE};

pub(crate) type NodeId = u64;
type Block = [u32; PAGE];

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Parent {
    Salt(u64),
    Node(NodeId),
}

pub(crate) struct Node {
    parent: Parent,
    block: Block,
    children: Vec<NodeId>,
    /// Of each retention class; [`NO_PAGE`] where a window has slid past it.
    pub(crate) pages: Vec<u32>,
    /// The slot that holds the recurrent state after this block.
    pub(crate) snapshot: Option<u32>,
    last_use: u64,
}

#[derive(Default)]
pub(crate) struct PrefixTree {
    nodes: HashMap<NodeId, Node>,
    by_block: HashMap<(Parent, Block), NodeId>,
    next_id: NodeId,
    clock: u64,
}

impl PrefixTree {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of the longest prefix of `tokens` that is here, whole blocks only.
    pub(crate) fn find(&self, salt: u64, tokens: &[u32]) -> Vec<NodeId> {
        let mut parent = Parent::Salt(salt);
        let mut path = Vec::new();
        for block in tokens.as_chunks::<PAGE>().0 {
            let Some(id) = self.by_block.get(&(parent, *block)) else { break };
            path.push(*id);
            parent = Parent::Node(*id);
        }
        path
    }

    /// Makes all blocks of `tokens` be here. `pages(block, node)` is asked for each in turn, and may set its pages.
    pub(crate) fn insert(
        &mut self,
        salt: u64,
        tokens: &[u32],
        mut pages: impl FnMut(usize, &mut Node),
    ) -> Option<NodeId> {
        self.clock += 1;
        let mut parent = Parent::Salt(salt);
        let mut last = None;
        for (index, block) in tokens.as_chunks::<PAGE>().0.iter().enumerate() {
            let id = match self.by_block.get(&(parent, *block)) {
                Some(id) => *id,
                None => self.add(parent, *block),
            };
            let node = self.nodes.get_mut(&id)?;
            node.last_use = self.clock;
            pages(index, node);
            parent = Parent::Node(id);
            last = Some(id);
        }
        last
    }

    fn add(&mut self, parent: Parent, block: Block) -> NodeId {
        let id = self.next_id;
        self.next_id += 1;
        let node = Node {
            parent,
            block,
            children: Vec::new(),
            pages: Vec::new(),
            snapshot: None,
            last_use: self.clock,
        };
        self.nodes.insert(id, node);
        self.by_block.insert((parent, block), id);
        if let Parent::Node(above) = parent
            && let Some(above) = self.nodes.get_mut(&above)
        {
            above.children.push(id);
        }
        id
    }

    /// A prefix was of use.
    pub(crate) fn touch(&mut self, path: &[NodeId]) {
        self.clock += 1;
        for id in path {
            if let Some(node) = self.nodes.get_mut(id) {
                node.last_use = self.clock;
            }
        }
    }

    /// The node that was of no use for longest, among those that `may` go; leaves before others, deeper ones before
    /// those above them.
    pub(crate) fn oldest(&self, may: impl Fn(&Node) -> bool) -> Option<NodeId> {
        let candidates = self.nodes.iter().filter(|(_, node)| may(node));
        candidates
            .min_by_key(|(id, node)| (!node.children.is_empty(), node.last_use, u64::MAX - **id))
            .map(|c| *c.0)
    }

    /// The node whose recurrent state was of no use for longest, but for `keep`.
    pub(crate) fn oldest_with_snapshot(&self, keep: NodeId) -> Option<NodeId> {
        let candidates = self.nodes.iter().filter(|(id, node)| **id != keep && node.snapshot.is_some());
        candidates.min_by_key(|(id, node)| (node.last_use, **id)).map(|c| *c.0)
    }

    /// Removes a node and all below it; hands each to `drop`.
    pub(crate) fn remove(&mut self, id: NodeId, mut drop: impl FnMut(Node)) {
        let mut going = vec![id];
        while let Some(id) = going.pop() {
            let Some(node) = self.nodes.remove(&id) else { continue };
            self.by_block.remove(&(node.parent, node.block));
            if let Parent::Node(above) = node.parent
                && let Some(above) = self.nodes.get_mut(&above)
            {
                above.children.retain(|child| *child != id);
            }
            going.extend(&node.children);
            drop(node);
        }
    }
}

impl Node {
    pub(crate) fn page(&self, class: usize) -> u32 {
        self.pages.get(class).copied().unwrap_or(NO_PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(blocks: &[u32]) -> Vec<u32> {
        blocks.iter().flat_map(|b| (0..PAGE as u32).map(move |i| b * 1000 + i)).collect()
    }

    fn insert(tree: &mut PrefixTree, salt: u64, blocks: &[u32]) -> NodeId {
        tree.insert(salt, &tokens(blocks), |i, node| node.pages = vec![blocks[i]]).unwrap()
    }

    #[test]
    fn the_longest_common_prefix_of_whole_blocks_is_found() {
        let mut tree = PrefixTree::default();
        insert(&mut tree, 1, &[1, 2, 3]);
        insert(&mut tree, 1, &[1, 2, 4, 5]);
        assert_eq!(tree.len(), 5);
        let cases: [(u64, &[u32], usize, usize, &str); 6] = [
            (1, &[1, 2, 3], 0, 3, "all of it"),
            (1, &[1, 2, 4, 5, 6], 0, 4, "beyond its end"),
            (1, &[1, 2, 9], 0, 2, "up to where they part"),
            (1, &[1, 2, 3], 1, 2, "whole blocks only"),
            (1, &[2, 3], 0, 0, "not from the middle"),
            (2, &[1, 2, 3], 0, 0, "not of another salt"),
        ];
        for (salt, blocks, short, want, case) in cases {
            let mut tokens = tokens(blocks);
            tokens.truncate(tokens.len() - short);
            let found = tree.find(salt, &tokens);
            assert_eq!(found.len(), want, "{case}");
            let pages: Vec<u32> = found.iter().map(|id| tree.node(*id).page(0)).collect();
            assert_eq!(pages, blocks[..want], "{case}");
        }
        let mut changed = tokens(&[1, 2, 3]);
        changed[70] += 1;
        assert_eq!(tree.find(1, &changed).len(), 1, "one token differs");
    }

    #[test]
    fn the_longest_unused_leaf_goes_first_and_takes_nothing_with_it() {
        let mut tree = PrefixTree::default();
        insert(&mut tree, 0, &[1, 2]);
        insert(&mut tree, 0, &[1, 3]);
        insert(&mut tree, 0, &[4]);
        let touched = tree.find(0, &tokens(&[1, 2]));
        tree.touch(&touched);
        let mut gone = Vec::new();
        while let Some(id) = tree.oldest(|_| true) {
            tree.remove(id, |node| gone.push(node.page(0)));
        }
        assert_eq!(gone, [3, 4, 2, 1]);
        assert!(tree.by_block.is_empty());
    }

    #[test]
    fn a_node_takes_all_below_it_along() {
        let mut tree = PrefixTree::default();
        insert(&mut tree, 0, &[1, 2, 3]);
        insert(&mut tree, 0, &[1, 2, 4]);
        insert(&mut tree, 0, &[5]);
        let two = tree.find(0, &tokens(&[1, 2]))[1];
        let mut gone = Vec::new();
        tree.remove(two, |node| gone.push(node.page(0)));
        gone.sort_unstable();
        assert_eq!((gone.as_slice(), tree.len()), ([2, 3, 4].as_slice(), 2));
        assert_eq!(tree.find(0, &tokens(&[1, 2, 3])).len(), 1);
        insert(&mut tree, 0, &[1, 2]);
        assert_eq!(tree.find(0, &tokens(&[1, 2, 3])).len(), 2, "it can come back");
    }
}
