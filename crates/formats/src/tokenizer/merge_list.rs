//! From the merge list of a file to the table of merges.

use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::ops::Range;

use super::alphabet;
use super::merges::{Merge, Merges, NO_RANK};
use super::shown;
use super::vocab::{Index, Kind, Vocab};
use crate::{Error, Result};

/// The two writers of merge lists, which differ in what they let pass.
pub(super) enum Dialect {
    /// As llama.cpp reads it: a part may be unknown, the first of two equal pairs holds.
    Gguf,
    /// As Hugging Face reads it: both parts and the result must be in the vocabulary, the last of two equal pairs
    /// holds. The set has the spellings of vocabulary entries that are also added tokens.
    Json { added: HashSet<Vec<u8>> },
}

/// Merges are looked up and entered this many at a time. Each step goes to a random place in a table of megabytes;
/// reading all the places of a block first lets the processor wait for them together: a quarter off the load of Qwen3's
/// vocabulary, 75 ms on a 2.8 GHz Xeon (`--test tokenizer speed_of_loading`).
const BLOCK: usize = 64;

/// `pairs` in the byte alphabet, in order of rank. What is odd but harmless is told in `warnings`.
pub(super) fn read<'p>(
    file: &str,
    vocab: &Vocab,
    index: &Index,
    mut pairs: impl ExactSizeIterator<Item = Result<(&'p str, &'p str)>>,
    dialect: &Dialect,
    warnings: &mut Vec<String>,
) -> Result<Merges> {
    if pairs.len() >= NO_RANK as usize {
        return Err(Error::invalid(
            file,
            "merges",
            format!("{} merges, at most {NO_RANK} work", pairs.len()),
        ));
    }
    let mut symbols = Symbols { vocab, index, hidden: HashMap::new(), hidden_lens: Vec::new() };
    let mut byte_symbols = [0; 256];
    for (byte, symbol) in byte_symbols.iter_mut().enumerate() {
        *symbol = symbols.of(&[byte as u8]);
    }
    let mut merges = Merges::new(pairs.len(), byte_symbols, vocab.len() as u32);
    let mut ignored = Ignored::default();
    let mut block = Block::default();
    let mut resolved = Vec::with_capacity(BLOCK);
    let mut previous = 0;
    let mut rank = 0;
    while pairs.len() > 0 {
        block.clear();
        for pair in pairs.by_ref().take(BLOCK) {
            let (left, right) = pair?;
            if !block.spell(rank, left, right) {
                ignored.note("is not spelt in the byte alphabet", rank, left, right);
            }
            rank += 1;
        }
        black_box(block.parts().fold(0, |all, part| all ^ index.touch(part)));
        resolved.clear();
        for spelt in &block.pairs {
            let merge = Merge {
                left: symbols.of(&block.bytes[spelt.left()]),
                right: symbols.of(&block.bytes[spelt.right()]),
                rank: spelt.rank,
                // Vocabularies grew by their merges, so the result is mostly the next token or the same again;
                // looking there first saves a third of the look-ups.
                result: symbols.near(previous, &block.bytes[spelt.whole()]),
            };
            if let Dialect::Json { added } = dialect {
                check_known(file, vocab, added, &block, spelt, &merge)?;
            }
            previous = merge.result;
            resolved.push(merge);
        }
        black_box(resolved.iter().fold(0, |all, merge| all ^ merges.touch(merge.left, merge.right)));
        for (merge, spelt) in resolved.iter().zip(&block.pairs) {
            if !merges.insert(merge, matches!(dialect, Dialect::Json { .. })) {
                ignored.note("is listed twice", merge.rank, spelt.texts.0, spelt.texts.1);
            }
        }
    }
    merges.set_hidden_lens(symbols.hidden_lens);
    warnings.extend(ignored.into_warning());
    Ok(merges)
}

/// Some merges with their bytes.
#[derive(Default)]
struct Block<'p> {
    bytes: Vec<u8>,
    pairs: Vec<Spelt<'p>>,
}

/// A merge whose parts are `bytes[start..middle]` and `bytes[middle..end]` of its block.
struct Spelt<'p> {
    rank: u32,
    texts: (&'p str, &'p str),
    start: usize,
    middle: usize,
    end: usize,
}

impl Spelt<'_> {
    fn left(&self) -> Range<usize> {
        self.start..self.middle
    }

    fn right(&self) -> Range<usize> {
        self.middle..self.end
    }

    fn whole(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl<'p> Block<'p> {
    fn clear(&mut self) {
        self.bytes.clear();
        self.pairs.clear();
    }

    /// `false` when one of the parts is empty or not in the byte alphabet.
    fn spell(&mut self, rank: u32, left: &'p str, right: &'p str) -> bool {
        let start = self.bytes.len();
        let is_left = alphabet::decode_into(left, &mut self.bytes);
        let middle = self.bytes.len();
        let is_right = alphabet::decode_into(right, &mut self.bytes);
        let end = self.bytes.len();
        let is_pair = is_left && is_right && start < middle && middle < end;
        if is_pair {
            self.pairs.push(Spelt { rank, texts: (left, right), start, middle, end });
        }
        is_pair
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.pairs.iter().flat_map(|pair| [&self.bytes[pair.left()], &self.bytes[pair.right()]])
    }
}

fn check_known(
    file: &str,
    vocab: &Vocab,
    added: &HashSet<Vec<u8>>,
    block: &Block,
    spelt: &Spelt,
    merge: &Merge,
) -> Result<()> {
    let parts = [(merge.left, spelt.left()), (merge.right, spelt.right()), (merge.result, spelt.whole())];
    for (symbol, part) in parts {
        let part = &block.bytes[part];
        if symbol as usize >= vocab.len() && !added.contains(part) {
            let part = String::from_utf8_lossy(part);
            let (left, right, part) = (shown(spelt.texts.0), shown(spelt.texts.1), shown(&part));
            let problem = format!("`{left} {right}`: `{part}` is not in the vocabulary");
            return Err(Error::invalid(file, format!("model.merges[{}]", merge.rank), problem));
        }
    }
    Ok(())
}

struct Symbols<'v> {
    vocab: &'v Vocab,
    index: &'v Index,
    hidden: HashMap<Box<[u8]>, u32>,
    hidden_lens: Vec<u32>,
}

impl Symbols<'_> {
    fn of(&mut self, bytes: &[u8]) -> u32 {
        if let Some(id) = self.index.get(self.vocab, bytes) {
            return id;
        }
        if let Some(&symbol) = self.hidden.get(bytes) {
            return symbol;
        }
        // Fits: tokens are below 2^30, and a hidden symbol takes at least two bytes of a merge list in memory.
        let symbol = self.vocab.len() as u32 + self.hidden_lens.len() as u32;
        self.hidden.insert(bytes.into(), symbol);
        self.hidden_lens.push(bytes.len() as u32);
        symbol
    }

    /// As `of`, trying the token after `previous` and `previous` itself first.
    fn near(&mut self, previous: u32, bytes: &[u8]) -> u32 {
        if self.index.is_unique() {
            for guess in [previous.saturating_add(1), previous] {
                if self.vocab.bytes(guess) == Some(bytes) && self.vocab.kind(guess) == Some(Kind::Normal) {
                    return guess;
                }
            }
        }
        self.of(bytes)
    }
}

/// Merges that were passed over: how many and the first.
#[derive(Default)]
struct Ignored {
    count: usize,
    first: String,
}

impl Ignored {
    fn note(&mut self, problem: &str, rank: u32, left: &str, right: &str) {
        if self.count == 0 {
            self.first = format!("merge {rank} `{} {}` {problem}", shown(left), shown(right));
        }
        self.count += 1;
    }

    fn into_warning(self) -> Option<String> {
        (self.count > 0).then(|| format!("{} merges ignored; the first: {}", self.count, self.first))
    }
}
