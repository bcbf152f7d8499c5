//! From text to tokens.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::Tokenizer;
use super::assemble::Normalize;
use super::bpe::{self, Scratch};
use super::cache::WordCache;
use super::special::{SpecialFinder, Specials};

/// What encoding keeps from call to call.
pub(super) struct Worker {
    cache: WordCache,
    scratch: Scratch,
}

/// Idle workers kept, 1 MiB each: as many as threads that encode at once in practice.
const MAX_IDLE_WORKERS: usize = 8;

impl Tokenizer {
    /// The tokens of `text`, without begin or end tokens.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_into(text, specials, &mut out);
        out
    }

    /// As [`Tokenizer::encode`], appending to `out`.
    pub fn encode_into(&self, text: &str, specials: Specials, out: &mut Vec<u32>) {
        // A lock poisoned by a panic elsewhere loses us a cache, nothing else.
        let idle = self.idle_workers.lock().ok().and_then(|mut idle| idle.pop());
        let mut worker =
            idle.unwrap_or_else(|| Worker { cache: WordCache::new(), scratch: Scratch::default() });
        self.cut_specials(&self.raw_specials, text, specials, out, |fragment, out| {
            let fragment = self.normalized(fragment);
            self.cut_specials(&self.normalized_specials, &fragment, specials, out, |fragment, out| {
                self.pre.words(fragment, |word| self.encode_word(word.as_bytes(), &mut worker, out));
            });
        });
        worker.scratch.shrink();
        if let Ok(mut idle) = self.idle_workers.lock()
            && idle.len() < MAX_IDLE_WORKERS
        {
            idle.push(worker);
        }
    }

    /// The tokens of a whole prompt: begin and end tokens are added where the model wants them and the text does
    /// not already have them.
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut out = Vec::new();
        let bos = self.bos().filter(|_| self.add_bos());
        let eos = self.eos().filter(|_| self.add_eos());
        out.extend(bos);
        self.encode_into(text, specials, &mut out);
        if bos.is_some() && out.get(1).copied() == bos {
            out.remove(0);
        }
        if eos.is_some() && out.last().copied() != eos {
            out.extend(eos);
        }
        out
    }

    fn cut_specials<'t>(
        &self,
        finder: &SpecialFinder,
        mut text: &'t str,
        specials: Specials,
        out: &mut Vec<u32>,
        mut plain: impl FnMut(&'t str, &mut Vec<u32>),
    ) {
        while let Some((start, end, id)) = finder.find(text, specials) {
            if start > 0 {
                plain(&text[..start], out);
            }
            out.push(id);
            text = &text[end..];
        }
        if !text.is_empty() {
            plain(text, out);
        }
    }

    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let as_is = self.normalize == Normalize::Never
            || text.is_ascii()
            || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        if as_is { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect()) }
    }

    #[inline]
    fn encode_word(&self, word: &[u8], worker: &mut Worker, out: &mut Vec<u32>) {
        let miss = match worker.cache.get(word) {
            Ok(tokens) => return out.extend_from_slice(tokens),
            Err(miss) => miss,
        };
        if self.ignore_merges
            && word.len() <= self.vocab.longest()
            && let Some(id) = self.index.get(&self.vocab, word)
        {
            out.push(id);
            return worker.cache.put(miss, word, &[id]);
        }
        let start = out.len();
        bpe::merge_word(&self.merges, &self.vocab, word, &mut worker.scratch, out);
        worker.cache.put(miss, word, &out[start..]);
    }
}
