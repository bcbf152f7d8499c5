//! A tokenizer from the `tokenizer.ggml.*` values of a GGUF file.
//!
//! What a damaged or strange file leads to:
//!
//! | the file has | then |
//! |---|---|
//! | another `tokenizer.ggml.model` or an unknown `pre` | unsupported, with the known names |
//! | token types for another number of tokens, or a number that is no type | error |
//! | a merge without a space behind its first character, or not UTF-8 | error |
//! | a merge of unknown parts | kept: the parts are steps; one left at the end is emitted byte by byte |
//! | a merge not spelt in the byte alphabet, or listed twice (the first holds) | warning |
//! | equal normal tokens | the lowest id is encoded to, all decode; warning |
//! | a token that is not UTF-8 | decodes to its bytes, is never encoded to; warning |
//! | a token outside the byte alphabet | decodes to its own text, is never merged into |
//! | a byte without a token | encodes to nothing; warning |
//! | a special id outside the vocabulary | ignored; warning |

use super::assemble::{Normalize, Parts};
use super::merge_list::Dialect;
use super::pretokenize::Pretokenizer;
use super::roles::{self, SpecialIds};
use super::vocab::{Kind, Vocab, spell};
use super::{Tokenizer, shown};
use crate::{Error, Result};

/// The values of a GGUF file that make a tokenizer, borrowed from it.
#[derive(Clone, Debug, Default)]
pub struct VocabInput<'a> {
    /// Named in errors.
    pub file: &'a str,
    /// `tokenizer.ggml.model`
    pub model: &'a str,
    /// `tokenizer.ggml.pre`
    pub pre: &'a str,
    pub tokens: Vec<&'a [u8]>,
    /// `None`: all are normal.
    pub token_types: Option<Vec<i32>>,
    pub merges: Vec<&'a [u8]>,
    pub ids: SpecialIds,
    /// `None`: as the pre-tokenizer has it.
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file. No Unicode normalisation is done, as in llama.cpp, also where the
    /// model's `tokenizer.json` asks for NFC.
    pub fn from_vocab(input: VocabInput<'_>) -> Result<Self> {
        let VocabInput { file, model, pre, tokens, token_types, merges, mut ids, add_bos, add_eos } = input;
        if model != "gpt2" {
            let problem = format!("`{}` is not supported, only `gpt2` (byte-level BPE)", shown(model));
            return Err(Error::unsupported(file, "key `tokenizer.ggml.model`", problem));
        }
        let Some(pre) = Pretokenizer::from_name(pre) else {
            let problem =
                format!("`{}` is not one of the known: {}", shown(pre), Pretokenizer::known_names());
            return Err(Error::unsupported(file, "key `tokenizer.ggml.pre`", problem));
        };
        let mut warnings = Vec::new();
        let mut vocab = vocabulary(file, &tokens, token_types.as_deref(), &mut warnings)?;
        ids.drop_out_of_range("tokenizer.ggml.", vocab.len(), &mut warnings);
        let ends = roles::assign(&mut vocab, &mut ids, |text| is_merged(&merges, text));
        let pairs = merges.iter().enumerate().map(|(rank, merge)| split_merge(file, rank, merge));
        Parts {
            file,
            vocab,
            pre,
            // Vocabularies that come from tiktoken look whole words up before merging: Llama 3 and gpt-4o.
            ignore_merges: matches!(pre, Pretokenizer::LlamaBpe | Pretokenizer::Gpt4o),
            normalize: Normalize::Never,
            normalized_specials: Vec::new(),
            ids,
            ends,
            add_bos: add_bos.unwrap_or(pre == Pretokenizer::LlamaBpe),
            add_eos: add_eos.unwrap_or(false),
            warnings,
        }
        .assemble(pairs, &Dialect::Gguf)
    }
}

fn vocabulary(
    file: &str,
    tokens: &[&[u8]],
    types: Option<&[i32]>,
    warnings: &mut Vec<String>,
) -> Result<Vocab> {
    const KEY: &str = "key `tokenizer.ggml.token_type`";
    if tokens.is_empty() {
        return Err(Error::invalid(file, "key `tokenizer.ggml.tokens`", "no tokens"));
    }
    if let Some(types) = types
        && types.len() != tokens.len()
    {
        let problem = format!("{} types for {} tokens", types.len(), tokens.len());
        return Err(Error::invalid(file, KEY, problem));
    }
    let mut vocab = Vocab::with_capacity(tokens.len(), tokens.iter().map(|token| token.len()).sum());
    let mut not_utf8 = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        let number = types.map_or(1, |types| types[id]);
        let Some(kind) = Kind::from_gguf(number) else {
            return Err(Error::invalid(
                file,
                KEY,
                format!("token {id} has type {number}, not one of 1 to 6"),
            ));
        };
        vocab.push(file, |bytes| match std::str::from_utf8(token) {
            Ok(text) if kind == Kind::Normal => spell(text, bytes),
            Ok(text) => {
                bytes.extend_from_slice(text.as_bytes());
                kind
            }
            Err(_) => {
                not_utf8.push(id);
                bytes.extend_from_slice(token);
                if kind == Kind::Normal { Kind::Literal } else { kind }
            }
        })?;
    }
    if let Some(first) = not_utf8.first() {
        warnings.push(format!(
            "{} tokens are not UTF-8 and never encoded to; the first: {first}",
            not_utf8.len()
        ));
    }
    Ok(vocab)
}

/// "left right": the space is the first one behind the first character, which may be a space itself.
fn split_merge<'m>(file: &str, rank: usize, merge: &'m [u8]) -> Result<(&'m str, &'m str)> {
    let problem = match std::str::from_utf8(merge) {
        Err(_) => "not UTF-8",
        Ok(text) => {
            let first = text.chars().next().map_or(0, char::len_utf8);
            match text[first..].split_once(' ') {
                Some((rest, right)) => return Ok((&text[..first + rest.len()], right)),
                None => "no space between two parts",
            }
        }
    };
    let merge = String::from_utf8_lossy(merge);
    let at = format!("key `tokenizer.ggml.merges`, merge {rank}");
    Err(Error::invalid(file, at, format!("`{}`: {problem}", shown(&merge))))
}

/// Whether some merge makes `text`, which is printable ASCII.
fn is_merged(merges: &[&[u8]], text: &[u8]) -> bool {
    let makes = |merge: &[u8]| {
        let space = merge.iter().position(|&byte| byte == b' ');
        space.is_some_and(|at| text.starts_with(&merge[..at]) && text.ends_with(&merge[at + 1..]))
    };
    merges.iter().any(|merge| merge.len() == text.len() + 1 && makes(merge))
}
