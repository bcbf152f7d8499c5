//! Byte-pair encoding of one word: merge the pair of lowest rank, the leftmost of equals, until none is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::merges::{Merges, NO_RANK};
use super::vocab::Vocab;

/// Up to this many bytes the next pair is found by looking at all of them: no bookkeeping, and nearly all words are
/// far shorter. Longer ones would feel the square.
const SHORT_WORD: usize = 48;

/// Buffers that live from word to word.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<u32>,
    /// `pairs[i]`: rank of symbols `i` and `i + 1` and what they become.
    pairs: Vec<(u32, u32)>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<u64>>,
}

impl Scratch {
    /// Gives memory back after an unusually long word.
    pub(super) fn shrink(&mut self) {
        if self.symbols.capacity() > 1 << 16 {
            *self = Self::default();
        }
    }
}

/// A symbol of a long word in a doubly linked list over `symbols`.
#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

/// Appends the tokens of `word`. A byte that has no token gives nothing; loading has warned of it.
pub(super) fn merge_word(
    merges: &Merges,
    vocab: &Vocab,
    word: &[u8],
    scratch: &mut Scratch,
    out: &mut Vec<u32>,
) {
    scratch.symbols.clear();
    scratch.symbols.extend(word.iter().map(|&byte| merges.byte_symbol(byte)));
    if word.len() <= SHORT_WORD {
        merge_short(merges, scratch);
    } else {
        merge_long(merges, scratch);
    }
    let mut at = 0;
    for &symbol in &scratch.symbols {
        let end = match merges.hidden_len(symbol) {
            None => {
                out.push(symbol);
                at + vocab.bytes(symbol).map_or(0, <[u8]>::len)
            }
            Some(len) => {
                let bytes = &word[at..at + len];
                out.extend(bytes.iter().filter_map(|&byte| merges.byte_token(byte)));
                at + len
            }
        };
        at = end;
    }
}

fn merge_short(merges: &Merges, scratch: &mut Scratch) {
    let Scratch { symbols, pairs, .. } = scratch;
    pairs.clear();
    pairs.extend(symbols.windows(2).map(|pair| merges.get(pair[0], pair[1])));
    loop {
        let mut best = (NO_RANK, 0);
        for (i, &(rank, _)) in pairs.iter().enumerate() {
            if rank < best.0 {
                best = (rank, i);
            }
        }
        let (rank, i) = best;
        if rank == NO_RANK {
            return;
        }
        symbols[i] = pairs[i].1;
        symbols.remove(i + 1);
        pairs.remove(i);
        if let Some(&after) = symbols.get(i + 1) {
            pairs[i] = merges.get(symbols[i], after);
        }
        if i > 0 {
            pairs[i - 1] = merges.get(symbols[i - 1], symbols[i]);
        }
    }
}

/// Lowest rank first, then leftmost. One number compares faster than a pair of them.
fn candidate(rank: u32, at: u32) -> Reverse<u64> {
    Reverse(u64::from(rank) << 32 | u64::from(at))
}

/// No neighbour on this side.
const NONE: u32 = u32::MAX;

/// As `merge_short` with the pairs in a heap: n log n, so a megabyte without a space does not take hours.
fn merge_long(merges: &Merges, scratch: &mut Scratch) {
    let Scratch { symbols, pairs, links, heap } = scratch;
    let n = symbols.len();
    if n >= NONE as usize {
        // 4 GiB in one word: positions would not fit. Leave it as bytes; still decodes to the same text.
        return;
    }
    pairs.clear();
    pairs.extend(symbols.windows(2).map(|pair| merges.get(pair[0], pair[1])));
    pairs.push((NO_RANK, 0));
    links.clear();
    links.extend((0..n as u32).map(|i| Link {
        before: if i == 0 { NONE } else { i - 1 },
        after: if i as usize + 1 == n { NONE } else { i + 1 },
    }));
    let mut candidates = std::mem::take(heap).into_vec();
    candidates.clear();
    let found = pairs.iter().enumerate().filter(|(_, pair)| pair.0 != NO_RANK);
    candidates.extend(found.map(|(i, pair)| candidate(pair.0, i as u32)));
    *heap = BinaryHeap::from(candidates);

    while let Some(Reverse(next)) = heap.pop() {
        let (rank, at) = ((next >> 32) as u32, next as u32);
        let i = at as usize;
        // A candidate is stale when its pair has changed since; an equal rank means an equal pair.
        if pairs[i].0 != rank {
            continue;
        }
        symbols[i] = pairs[i].1;
        let eaten = links[i].after as usize;
        let after = links[eaten].after;
        pairs[eaten].0 = NO_RANK;
        links[i].after = after;
        pairs[i] = (NO_RANK, 0);
        if after != NONE {
            links[after as usize].before = at;
            pairs[i] = merges.get(symbols[i], symbols[after as usize]);
            if pairs[i].0 != NO_RANK {
                heap.push(candidate(pairs[i].0, at));
            }
        }
        let before = links[i].before;
        if before != NONE {
            let pair = merges.get(symbols[before as usize], symbols[i]);
            pairs[before as usize] = pair;
            if pair.0 != NO_RANK {
                heap.push(candidate(pair.0, before));
            }
        }
    }
    // Collect what is left, in place: a symbol never moves to the right.
    let (mut at, mut kept) = (0, 0);
    while at != NONE {
        symbols[kept] = symbols[at as usize];
        kept += 1;
        at = links[at as usize].after;
    }
    symbols.truncate(kept);
}
