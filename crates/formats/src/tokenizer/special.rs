//! Cutting special tokens out of text: leftmost first, the longest of those that start at one place.
//!
//! That is the rule of the models' own tokenizers. llama.cpp cuts out the longest special of all first, wherever it
//! stands; the two differ only where two specials overlap in the text, which those of real models cannot.

use std::borrow::Cow;
use std::ops::Range;

use super::shown;
use super::vocab::{Kind, Vocab};
use crate::{Error, Result};

/// Bounds the work at each place of a text whatever the vocabulary holds; the longest in use are about 40 bytes.
const MAX_LEN: usize = 256;
/// Bounds the trie (12 bytes a node): a file with every token special stays below, a hostile one does not.
const MAX_TOTAL: usize = 4 << 20;

/// Whether special tokens in a text are taken as such.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Specials {
    /// `<|im_end|>` in the text becomes the control token. For text we wrote ourselves: rendered templates.
    Parse,
    /// Control tokens are never produced, whatever the text says; user-defined tokens (`<think>`) still are. For
    /// text that others wrote.
    Plain,
}

/// A trie of the special tokens.
pub(super) struct SpecialFinder {
    /// Sorted by text.
    entries: Vec<Entry>,
    /// The root first; the children of a node are together and sorted.
    nodes: Vec<Node>,
    /// The root's child for each first byte, or 0.
    by_first: [u32; 256],
}

struct Entry {
    text: Box<[u8]>,
    id: u32,
    is_control: bool,
}

struct Node {
    first_child: u32,
    /// The token that ends here, or `NONE`.
    entry: u32,
    n_children: u16,
    byte: u8,
}

const NONE: u32 = u32::MAX;

impl SpecialFinder {
    pub(super) fn new<'t>(
        file: &str,
        vocab: &Vocab,
        specials: impl Iterator<Item = (u32, Cow<'t, str>)>,
    ) -> Result<Self> {
        let mut entries = Vec::new();
        let mut total = 0;
        for (id, text) in specials {
            total += text.len();
            if text.len() > MAX_LEN || total > MAX_TOTAL {
                let problem = format!(
                    "special token `{}` has {} bytes, all up to it {total}; at most {MAX_LEN} and {MAX_TOTAL} work",
                    shown(&text),
                    text.len()
                );
                return Err(Error::unsupported(file, format!("token {id}"), problem));
            }
            if !text.is_empty() {
                let is_control = vocab.kind(id) != Some(Kind::UserDefined);
                entries.push(Entry { text: text.as_bytes().into(), id, is_control });
            }
        }
        // Of two with the same text the lower id is found, as among normal tokens.
        entries.sort_by(|a, b| (&a.text, a.id).cmp(&(&b.text, b.id)));
        entries.dedup_by(|later, first| later.text == first.text);
        let nodes = trie(&entries);
        let mut by_first = [0; 256];
        for child in children(&nodes, &nodes[0]) {
            by_first[usize::from(nodes[child].byte)] = child as u32;
        }
        Ok(Self { entries, nodes, by_first })
    }

    pub(super) fn id_of(&self, text: &[u8]) -> Option<u32> {
        let at = self.entries.binary_search_by(|entry| (*entry.text).cmp(text)).ok()?;
        Some(self.entries[at].id)
    }

    /// The first special token in `text`: where it starts, where it ends, which it is.
    pub(super) fn find(&self, text: &str, specials: Specials) -> Option<(usize, usize, u32)> {
        if self.entries.is_empty() {
            return None;
        }
        let bytes = text.as_bytes();
        bytes.iter().enumerate().find_map(|(at, &first)| match self.by_first[usize::from(first)] {
            0 => None,
            node => {
                let entry = self.longest_at(node as usize, &bytes[at + 1..], specials)?;
                Some((at, at + entry.text.len(), entry.id))
            }
        })
    }

    /// Where the first control token stands in `text`; of several at one place the shortest.
    pub(super) fn first_control(&self, text: &str) -> Option<Range<usize>> {
        let bytes = text.as_bytes();
        bytes.iter().enumerate().find_map(|(at, &first)| match self.by_first[usize::from(first)] {
            0 => None,
            node => Some(at..self.control_end(node as usize, bytes, at + 1)?),
        })
    }

    fn control_end(&self, mut node: usize, bytes: &[u8], mut end: usize) -> Option<usize> {
        loop {
            if self.entries.get(self.nodes[node].entry as usize).is_some_and(|entry| entry.is_control) {
                return Some(end);
            }
            let children = children(&self.nodes, &self.nodes[node]);
            let byte = bytes.get(end)?;
            node =
                children.start + self.nodes[children].binary_search_by_key(byte, |child| child.byte).ok()?;
            end += 1;
        }
    }

    /// Follows `rest` down from `node`, where the first byte led.
    fn longest_at(&self, mut node: usize, rest: &[u8], specials: Specials) -> Option<&Entry> {
        let mut longest = None;
        let mut rest = rest.iter();
        loop {
            if let Some(entry) = self.entries.get(self.nodes[node].entry as usize)
                && (specials == Specials::Parse || !entry.is_control)
            {
                longest = Some(entry);
            }
            let Some(&byte) = rest.next() else { return longest };
            let children = children(&self.nodes, &self.nodes[node]);
            match self.nodes[children.clone()].binary_search_by_key(&byte, |child| child.byte) {
                Ok(child) => node = children.start + child,
                Err(_) => return longest,
            }
        }
    }
}

fn children(nodes: &[Node], node: &Node) -> Range<usize> {
    let start = node.first_child as usize;
    debug_assert!(start + usize::from(node.n_children) <= nodes.len());
    start..start + usize::from(node.n_children)
}

/// Builds the nodes breadth first: a node is a range of sorted entries that agree in their first `depth` bytes.
fn trie(entries: &[Entry]) -> Vec<Node> {
    let new = |byte| Node { first_child: 0, entry: NONE, n_children: 0, byte };
    let mut nodes = vec![new(0)];
    let mut agree = vec![(0..entries.len(), 0)];
    let mut at = 0;
    while at < nodes.len() {
        let (mut range, depth) = agree[at].clone();
        // The one that ends here sorts first.
        if !range.is_empty() && entries[range.start].text.len() == depth {
            nodes[at].entry = range.start as u32;
            range.start += 1;
        }
        nodes[at].first_child = nodes.len() as u32;
        while !range.is_empty() {
            let byte = entries[range.start].text[depth];
            let same = entries[range.clone()].partition_point(|entry| entry.text[depth] == byte);
            agree.push((range.start..range.start + same, depth + 1));
            nodes.push(new(byte));
            nodes[at].n_children += 1;
            range.start += same;
        }
        at += 1;
    }
    nodes
}
