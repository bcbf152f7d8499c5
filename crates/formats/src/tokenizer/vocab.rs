//! The tokens themselves: one arena of decoded bytes, what kind each token is, and the way back from bytes to id.

use std::hint::black_box;

use super::alphabet;
use super::hash::Seed;
use crate::{Error, Result};

/// What a token is for. The numbers of `tokenizer.ggml.token_type` are in [`Kind::from_gguf`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Text, reached by merging.
    Normal,
    /// Text no byte sequence merges into, cut out of the input before anything else (`<think>`).
    UserDefined,
    /// Structure of the conversation; never made from untrusted text and not shown (`<|im_end|>`).
    Control,
    /// Control for the encoder, text for the reader: the parser of gpt-oss replies needs to see `<|channel|>`.
    Marker,
    Unknown,
    /// Text in no byte alphabet, so nothing merges into it.
    Literal,
}

impl Kind {
    /// Looked for in text before it is cut into words.
    pub(super) fn is_cut_out(self) -> bool {
        matches!(self, Self::UserDefined | Self::Control | Self::Marker | Self::Unknown)
    }

    pub(super) fn from_gguf(number: i32) -> Option<Self> {
        Some(match number {
            // 5 is unused (padding up to the matrix's rows) and 6 a byte of SentencePiece: as in llama.cpp both are
            // text like any other; nothing merges into them unless the file says so.
            1 | 5 | 6 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            _ => return None,
        })
    }
}

/// Appends what a token of text stands for: the bytes it spells, or its own where it is not in the byte alphabet.
pub(super) fn spell(text: &str, bytes: &mut Vec<u8>) -> Kind {
    if alphabet::decode_into(text, bytes) {
        return Kind::Normal;
    }
    bytes.extend_from_slice(text.as_bytes());
    Kind::Literal
}

/// Ids stay below this, so that symbols which are not tokens can be numbered above them.
const MAX_TOKENS: usize = 1 << 30;

pub(super) struct Vocab {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[starts[id]..starts[id + 1]]`.
    starts: Vec<u32>,
    kinds: Vec<Kind>,
    longest: usize,
}

impl Vocab {
    pub(super) fn with_capacity(n_tokens: usize, n_bytes: usize) -> Self {
        let mut starts = Vec::with_capacity(n_tokens + 1);
        starts.push(0);
        Self { bytes: Vec::with_capacity(n_bytes), starts, kinds: Vec::with_capacity(n_tokens), longest: 0 }
    }

    /// Adds the next token; `write` appends its bytes and says its kind.
    pub(super) fn push(&mut self, file: &str, write: impl FnOnce(&mut Vec<u8>) -> Kind) -> Result<()> {
        let start = self.bytes.len();
        let kind = write(&mut self.bytes);
        let end = u32::try_from(self.bytes.len()).ok().filter(|_| self.kinds.len() < MAX_TOKENS);
        let Some(end) = end else {
            let problem = format!(
                "more than {MAX_TOKENS} tokens or 4 GiB of token text (at token {}, byte {})",
                self.kinds.len(),
                self.bytes.len()
            );
            return Err(Error::invalid(file, "vocabulary", problem));
        };
        self.starts.push(end);
        self.kinds.push(kind);
        self.longest = self.longest.max(self.bytes.len() - start);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Length in bytes of the longest token: no longer word can be one token.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let start = *self.starts.get(id as usize)? as usize;
        let end = *self.starts.get(id as usize + 1)? as usize;
        Some(&self.bytes[start..end])
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: Kind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Kind)> {
        self.starts
            .windows(2)
            .zip(&self.kinds)
            .enumerate()
            .map(|(id, (span, &kind))| (id as u32, &self.bytes[span[0] as usize..span[1] as usize], kind))
    }
}

/// From bytes to the id of a normal token: open addressing, a third of the slots empty. Three of four tokens have at
/// most 8 bytes and are in their slot entirely, so finding one touches one place in memory and not three.
pub(super) struct Index {
    slots: Vec<Slot>,
    seed: Seed,
    is_unique: bool,
}

/// The bytes or their hash, then their length (`LONG` from 9 up) and the id plus one. Zero is an empty slot, and plain
/// numbers so that a new table is untouched zero pages.
type Slot = [u64; 2];

const LONG: u64 = 9;
const BLOCK: u32 = 64;

impl Index {
    /// Indexes the normal tokens of `vocab`. Of tokens with equal bytes the lowest id is found; the others are
    /// returned.
    pub(super) fn new(vocab: &Vocab) -> (Self, Vec<u32>) {
        let n_slots = (vocab.len() + 1).saturating_mul(3).div_ceil(2).next_power_of_two();
        let mut index = Self { slots: vec![[0; 2]; n_slots], seed: Seed::random(), is_unique: true };
        let mut shadowed = Vec::new();
        // As in `merge_list`: the places of a block are read together, then filled one by one.
        for block in (0..vocab.len() as u32).step_by(BLOCK as usize) {
            let ids = block..(block + BLOCK).min(vocab.len() as u32);
            // An empty token (a hole in the ids, a damaged entry) decodes to nothing and nothing encodes to it.
            let normal = ids.filter_map(|id| {
                let bytes = vocab.bytes(id).filter(|bytes| !bytes.is_empty())?;
                (vocab.kind(id) == Some(Kind::Normal)).then_some((id, bytes))
            });
            black_box(normal.clone().fold(0, |all, (_, bytes)| all ^ index.touch(bytes)));
            for (id, bytes) in normal {
                match index.probe(vocab, bytes) {
                    Ok(_) => shadowed.push(id),
                    Err((at, [key, len])) => index.slots[at] = [key, len | u64::from(id + 1)],
                }
            }
        }
        index.is_unique = shadowed.is_empty();
        (index, shadowed)
    }

    /// No two normal tokens have the same bytes.
    pub(super) fn is_unique(&self) -> bool {
        self.is_unique
    }

    #[inline]
    pub(super) fn get(&self, vocab: &Vocab, bytes: &[u8]) -> Option<u32> {
        self.probe(vocab, bytes).ok()
    }

    /// Reads the slot where `bytes` belong: many in a row overlap their waits for memory.
    #[inline]
    pub(super) fn touch(&self, bytes: &[u8]) -> u64 {
        let (_, _, hash) = self.key(bytes);
        self.slots[hash as usize & (self.slots.len() - 1)][1]
    }

    /// What stands in a slot for `bytes`, and their hash.
    #[inline]
    fn key(&self, bytes: &[u8]) -> (u64, u64, u64) {
        if bytes.len() < LONG as usize {
            let mut packed = [0; 8];
            packed[..bytes.len()].copy_from_slice(bytes);
            let (key, len) = (u64::from_le_bytes(packed), bytes.len() as u64);
            (key, len << 32, self.seed.hash_word(key, len))
        } else {
            let hash = self.seed.hash_bytes(bytes);
            (hash, LONG << 32, hash)
        }
    }

    /// The id, or the empty slot where it would go and what to put there, less the id.
    #[inline]
    fn probe(&self, vocab: &Vocab, bytes: &[u8]) -> Result<u32, (usize, Slot)> {
        let (key, len, hash) = self.key(bytes);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot[1] == 0 {
                return Err((at, [key, len]));
            }
            let id = slot[1] as u32 - 1;
            let same = slot[0] == key && slot[1] >> 32 == len >> 32;
            if same && (len != LONG << 32 || vocab.bytes(id) == Some(bytes)) {
                return Ok(id);
            }
            at = (at + 1) & mask;
        }
    }
}
