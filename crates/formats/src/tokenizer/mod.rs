//! Byte-level BPE: text to tokens and back, for the vocabularies of GGUF files and of `tokenizer.json`.
//!
//! Text goes through four steps: special tokens are cut out (`special`), what is left is cut into words
//! (`pretokenize`), each word's bytes are merged by rank (`bpe`), and words seen lately are remembered
//! (`cache`). Constructors are in `from_vocab` and `from_json`.

mod alphabet;
mod assemble;
mod bpe;
mod cache;
mod classes;
mod detokenize;
mod encode;
mod from_json;
mod from_vocab;
mod hash;
mod json_pipeline;
mod json_schema;
mod merge_list;
mod merges;
mod pretokenize;
mod roles;
mod special;
mod vocab;

use std::borrow::Cow;
use std::sync::Mutex;

pub use detokenize::Detokenizer;
pub use from_vocab::VocabInput;
pub use pretokenize::Pretokenizer;
pub use roles::SpecialIds;
pub use special::Specials;

use assemble::Normalize;
use encode::Worker;
use merges::Merges;
use special::SpecialFinder;
use vocab::{Index, Kind, Vocab};

/// A vocabulary and the rules to use it. Shared between threads freely; encoding takes `&self`.
pub struct Tokenizer {
    vocab: Vocab,
    index: Index,
    merges: Merges,
    pre: Pretokenizer,
    ignore_merges: bool,
    normalize: Normalize,
    raw_specials: SpecialFinder,
    normalized_specials: SpecialFinder,
    covers_all_bytes: bool,
    ids: SpecialIds,
    ends: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    warnings: Vec<String>,
    /// Word caches and buffers that no call is using at the moment.
    idle_workers: Mutex<Vec<Worker>>,
}

impl Tokenizer {
    /// One more than the highest id.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// The bytes that a token stands for; a control token's are its text. They need not be UTF-8 by themselves.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.bytes(id)
    }

    /// [`Tokenizer::token_bytes`] as text, with U+FFFD for what is no UTF-8 by itself.
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.token_bytes(id).map(String::from_utf8_lossy)
    }

    /// The token with exactly this text (`" the"`, not `"Ġthe"`), special ones first.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let special = self.raw_specials.id_of(text.as_bytes());
        special
            .or_else(|| self.normalized_specials.id_of(text.as_bytes()))
            .or_else(|| self.index.get(&self.vocab, text.as_bytes()))
    }

    /// Not text for the reader: what `decode` leaves out when asked to skip specials.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocab.kind(id), Some(Kind::Control | Kind::Unknown))
    }

    /// Never produced by [`Specials::Plain`]. These are the special tokens and those of gpt-oss that structure a
    /// reply, which are shown because the reply's parser needs them.
    pub fn is_control(&self, id: u32) -> bool {
        self.is_special(id) || self.vocab.kind(id) == Some(Kind::Marker)
    }

    /// Where `text` first spells a control token.
    pub fn first_control(&self, text: &str) -> Option<std::ops::Range<usize>> {
        let (raw, normalized) =
            (self.raw_specials.first_control(text), self.normalized_specials.first_control(text));
        raw.into_iter().chain(normalized).min_by_key(|found| found.start)
    }

    /// Whether a generation ends with this token.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// All tokens that end a generation, in increasing order.
    pub fn end_ids(&self) -> &[u32] {
        &self.ends
    }

    /// The tokens with a part to play, given by the file or recognised by their text.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.ids
    }

    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// Whether a prompt starts with [`Tokenizer::bos`].
    pub fn add_bos(&self) -> bool {
        self.add_bos && self.ids.bos.is_some()
    }

    /// Whether a prompt ends with [`Tokenizer::eos`].
    pub fn add_eos(&self) -> bool {
        self.add_eos && self.ids.eos.is_some()
    }

    pub fn pretokenizer(&self) -> Pretokenizer {
        self.pre
    }

    /// Whether plain text survives encoding and decoding unchanged: every byte has a token and nothing is normalised.
    pub fn is_lossless(&self) -> bool {
        self.covers_all_bytes && self.normalize == Normalize::Never
    }

    /// What was odd about the file, in words for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({:?}, {} tokens)", self.pre, self.vocab.len())
    }
}

/// A token's text as errors quote it: whole, unless a file tries to fill the screen.
fn shown(text: &str) -> Cow<'_, str> {
    const MAX_SHOWN: usize = 64;
    if text.len() <= MAX_SHOWN {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(MAX_SHOWN)]))
}
