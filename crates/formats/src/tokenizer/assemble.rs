//! The last step both kinds of file share: indexes, merges and the finders of special tokens.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Mutex;

use super::Tokenizer;
use super::merge_list::{self, Dialect};
use super::pretokenize::Pretokenizer;
use super::roles::SpecialIds;
use super::special::SpecialFinder;
use super::vocab::{Index, Vocab};
use crate::Result;

/// What is done to text before it is cut into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Normalize {
    Never,
    Nfc,
}

/// A tokenizer before its tables are built.
pub(super) struct Parts<'a> {
    pub(super) file: &'a str,
    pub(super) vocab: Vocab,
    pub(super) pre: Pretokenizer,
    /// A word that is a token is taken whole, whatever its merges make of it.
    pub(super) ignore_merges: bool,
    pub(super) normalize: Normalize,
    /// Special tokens looked for in normalised text, as they are spelt there; all others are in the text as given.
    pub(super) normalized_specials: Vec<(u32, String)>,
    pub(super) ids: SpecialIds,
    pub(super) ends: Vec<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) warnings: Vec<String>,
}

impl Parts<'_> {
    pub(super) fn assemble<'p>(
        mut self,
        pairs: impl ExactSizeIterator<Item = Result<(&'p str, &'p str)>>,
        dialect: &Dialect,
    ) -> Result<Tokenizer> {
        let (index, shadowed) = Index::new(&self.vocab);
        if let Some(first) = shadowed.first() {
            let warning = format!("{} tokens repeat an earlier one; the first: {first}", shadowed.len());
            self.warnings.push(warning);
        }
        let merges = merge_list::read(self.file, &self.vocab, &index, pairs, dialect, &mut self.warnings)?;
        let n_missing = (0..=255).filter(|&byte| merges.byte_token(byte).is_none()).count();
        if n_missing > 0 {
            let warning =
                format!("{n_missing} of the 256 bytes have no token: not every text can be encoded");
            self.warnings.push(warning);
        }
        let normalized: HashSet<u32> = self.normalized_specials.iter().map(|&(id, _)| id).collect();
        let raw = self.vocab.iter().filter(|(id, _, kind)| kind.is_cut_out() && !normalized.contains(id));
        // A special that is not UTF-8 cannot be in a text, and its bytes must not match inside a character.
        let raw =
            raw.filter_map(|(id, bytes, _)| Some((id, Cow::Borrowed(std::str::from_utf8(bytes).ok()?))));
        let raw_specials = SpecialFinder::new(self.file, &self.vocab, raw)?;
        let normalized =
            self.normalized_specials.iter().map(|(id, text)| (*id, Cow::Borrowed(text.as_str())));
        let normalized_specials = SpecialFinder::new(self.file, &self.vocab, normalized)?;
        Ok(Tokenizer {
            vocab: self.vocab,
            index,
            merges,
            pre: self.pre,
            ignore_merges: self.ignore_merges,
            normalize: self.normalize,
            raw_specials,
            normalized_specials,
            covers_all_bytes: n_missing == 0,
            ids: self.ids,
            ends: self.ends,
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            warnings: self.warnings,
            idle_workers: Mutex::new(Vec::new()),
        })
    }
}
