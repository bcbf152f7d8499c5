//! A tokenizer from Hugging Face's `tokenizer.json`, with what `tokenizer_config.json` and `generation_config.json`
//! (or `config.json`) add to it. Ids equal those of the `tokenizers` library, with two exceptions: merging never
//! makes a control token ([`Specials::Plain`](super::Specials) relies on it), and a byte without a token is dropped
//! after merging, not before.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use super::alphabet;
use super::assemble::{Normalize, Parts};
use super::json_pipeline as pipeline;
use super::json_schema::{AddedToken, Entries, Model, TokenizerJson};
use super::merge_list::Dialect;
use super::roles::{self, SpecialIds};
use super::vocab::{Kind, Vocab, spell};
use super::{Tokenizer, shown};
use crate::{Error, Result};

impl Tokenizer {
    /// `file` names the `tokenizer.json` in errors. `config` is `tokenizer_config.json`, `generation` is
    /// `generation_config.json` or `config.json`, whichever has `eos_token_id`.
    pub fn from_tokenizer_json(
        file: &str,
        json: &[u8],
        config: Option<&[u8]>,
        generation: Option<&[u8]>,
    ) -> Result<Self> {
        let parsed: TokenizerJson = serde_json::from_slice(json)
            .map_err(|e| Error::invalid(file, "tokenizer.json", e.to_string()))?;
        let config = parse_side_file(file, "tokenizer_config.json", config)?;
        let generation = parse_side_file(file, "generation_config.json", generation)?;
        refuse_variants(file, &parsed.model)?;
        let normalize = pipeline::normalize(file, parsed.normalizer.as_ref())?;
        let pre = pipeline::pretokenizer(file, parsed.pre_tokenizer.as_ref())?;
        let frame = pipeline::frame(file, parsed.post_processor.as_ref())?;
        pipeline::check_decoder(file, parsed.decoder.as_ref())?;

        let mut warnings = Vec::new();
        for (name, value) in [("truncation", &parsed.truncation), ("padding", &parsed.padding)] {
            if value.as_ref().is_some_and(|value| !value.is_null()) {
                warnings.push(format!("`{name}` in tokenizer.json ignored"));
            }
        }
        let mut added = parsed.added_tokens;
        add_from_config(file, &config, &mut added)?;
        let (mut vocab, spelt_added) = vocabulary(file, &parsed.model.vocab, &added)?;
        let normalized = added.iter().filter(|token| token.normalized);
        let normalized_specials = normalized.map(|token| match normalize {
            Normalize::Never => (token.id, token.content.to_string()),
            Normalize::Nfc => (token.id, token.content.nfc().collect()),
        });
        let normalized_specials = normalized_specials.collect();

        let by_text: HashMap<&str, u32> = added.iter().map(|token| (&*token.content, token.id)).collect();
        let mut ids = config_ids(&config, &by_text, &parsed.model.vocab, &mut warnings);
        let extra_ends = generation_ids(&generation, &mut ids);
        ids.drop_out_of_range("", vocab.len(), &mut warnings);
        let wanted = |key: &str| config.get(key).and_then(Value::as_bool);
        let add_bos = wanted("add_bos_token").unwrap_or(frame.before.is_some());
        let add_eos = wanted("add_eos_token").unwrap_or(frame.after.is_some());
        agree(file, "bos_token", frame.before, &mut ids.bos, vocab.len())?;
        agree(file, "eos_token", frame.after, &mut ids.eos, vocab.len())?;

        // Types are right in this format: a normal token spelt like an end is ordinary text.
        let mut ends = roles::assign(&mut vocab, &mut ids, |_| true);
        for id in extra_ends {
            if (id as usize) < vocab.len() {
                ends.push(id);
            } else {
                let n_tokens = vocab.len();
                warnings.push(format!("`eos_token_id` = {id} ignored: the vocabulary has {n_tokens} tokens"));
            }
        }
        ends.sort_unstable();
        ends.dedup();

        let pairs = parsed.model.merges.0.iter().map(|(left, right)| Ok((&**left, &**right)));
        Parts {
            file,
            vocab,
            pre,
            ignore_merges: parsed.model.ignore_merges.unwrap_or(false),
            normalize,
            normalized_specials,
            ids,
            ends,
            add_bos,
            add_eos,
            warnings,
        }
        .assemble(pairs, &Dialect::Json { added: spelt_added })
    }
}

fn parse_side_file(file: &str, name: &str, json: Option<&[u8]>) -> Result<Value> {
    let Some(json) = json else { return Ok(Value::Null) };
    serde_json::from_slice(json).map_err(|e| Error::invalid(file, name, e.to_string()))
}

fn refuse_variants(file: &str, model: &Model) -> Result<()> {
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let refused = [
        ("dropout", model.dropout.is_some_and(|p| p != 0.0)),
        ("continuing_subword_prefix", is_set(&model.continuing_subword_prefix)),
        ("end_of_word_suffix", is_set(&model.end_of_word_suffix)),
        ("byte_fallback", model.byte_fallback == Some(true)),
    ];
    match refused.into_iter().find(|(_, is_used)| *is_used) {
        Some((name, _)) => Err(Error::unsupported(file, format!("model.{name}"), "not implemented")),
        None => Ok(()),
    }
}

/// Tokens that only `tokenizer_config.json` lists are added as well, as `transformers` does.
fn add_from_config<'a>(file: &str, config: &'a Value, added: &mut Vec<AddedToken<'a>>) -> Result<()> {
    let Some(decoder) = config.get("added_tokens_decoder").and_then(Value::as_object) else { return Ok(()) };
    let known: HashSet<String> = added.iter().map(|token| token.content.to_string()).collect();
    for (key, value) in decoder {
        let at = || format!("tokenizer_config.json, `added_tokens_decoder.{key}`");
        let mut token: AddedToken = serde::Deserialize::deserialize(value)
            .map_err(|e: serde_json::Error| Error::invalid(file, at(), e.to_string()))?;
        token.id = key.parse().map_err(|_| Error::invalid(file, at(), "the key is not an id"))?;
        if !known.contains(&*token.content) {
            added.push(token);
        }
    }
    Ok(())
}

/// The vocabulary by id, and the spellings of its entries that are also added tokens.
fn vocabulary(file: &str, entries: &Entries, added: &[AddedToken]) -> Result<(Vocab, HashSet<Vec<u8>>)> {
    #[derive(Clone, Copy)]
    enum Source<'e> {
        Hole,
        Text(&'e str),
        Added(&'e AddedToken<'e>),
    }
    let n_given = entries.0.len() + added.len();
    let given = entries.0.iter().map(|&(_, id)| id).chain(added.iter().map(|token| token.id));
    let Some(highest) = given.max() else {
        return Err(Error::invalid(file, "model.vocab", "no tokens"));
    };
    // Ids may have holes (gpt-4o has 17), but the table is as long as the highest id.
    if highest as usize > 2 * n_given + (1 << 16) {
        let problem = format!("id {highest} in a vocabulary of {n_given} tokens");
        return Err(Error::invalid(file, "model.vocab", problem));
    }
    let clash = |id: u32, one: &str, other: &str| {
        Error::invalid(file, "vocabulary", format!("id {id} is both `{}` and `{}`", shown(one), shown(other)))
    };
    let mut by_id = vec![Source::Hole; highest as usize + 1];
    let mut by_text = HashMap::new();
    for token in added {
        for (name, is_set) in
            [("single_word", token.single_word), ("lstrip", token.lstrip), ("rstrip", token.rstrip)]
        {
            if is_set {
                let at = format!("added token `{}`", shown(&token.content));
                return Err(Error::unsupported(file, at, format!("`{name}` is not implemented")));
            }
        }
        if let Some(id) = by_text.insert(&*token.content, token.id)
            && id != token.id
        {
            let problem = format!("has the ids {id} and {}", token.id);
            return Err(Error::invalid(file, format!("added token `{}`", shown(&token.content)), problem));
        }
        match by_id[token.id as usize] {
            Source::Added(other) if other.content != token.content => {
                return Err(clash(token.id, &other.content, &token.content));
            }
            _ => by_id[token.id as usize] = Source::Added(token),
        }
    }
    let mut spelt_added = HashSet::new();
    for (text, id) in &entries.0 {
        if let Some(&added_id) = by_text.get(&**text) {
            if added_id != *id {
                let problem = format!("id {id} in the vocabulary, {added_id} as an added token");
                return Err(Error::invalid(file, format!("token `{}`", shown(text)), problem));
            }
            let mut spelt = Vec::new();
            if alphabet::decode_into(text, &mut spelt) {
                spelt_added.insert(spelt);
            }
            continue;
        }
        match by_id[*id as usize] {
            Source::Hole => by_id[*id as usize] = Source::Text(text),
            Source::Text(other) => return Err(clash(*id, other, text)),
            Source::Added(other) => return Err(clash(*id, &other.content, text)),
        }
    }
    let n_bytes = entries.0.iter().map(|(text, _)| text.len()).sum();
    let mut vocab = Vocab::with_capacity(by_id.len(), n_bytes);
    for source in by_id {
        vocab.push(file, |bytes| match source {
            Source::Hole => Kind::Literal,
            Source::Text(text) => spell(text, bytes),
            Source::Added(token) => {
                bytes.extend_from_slice(token.content.as_bytes());
                if token.special { Kind::Control } else { Kind::UserDefined }
            }
        })?;
    }
    Ok((vocab, spelt_added))
}

/// Ids of the texts that `tokenizer_config.json` names.
fn config_ids(
    config: &Value,
    added: &HashMap<&str, u32>,
    entries: &Entries,
    warnings: &mut Vec<String>,
) -> SpecialIds {
    let mut id = |key: &str| {
        let value = config.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        let in_vocab = || entries.0.iter().find(|(token, _)| token == text).map(|&(_, id)| id);
        let id = added.get(text).copied().or_else(in_vocab);
        if id.is_none() {
            warnings.push(format!("`{key}` = `{}` ignored: not in the vocabulary", shown(text)));
        }
        id
    };
    SpecialIds {
        bos: id("bos_token"),
        eos: id("eos_token"),
        unknown: id("unk_token"),
        separator: id("sep_token"),
        padding: id("pad_token"),
        mask: id("mask_token"),
        ..SpecialIds::default()
    }
}

/// Fills begin and end from a generation or model configuration; returns all its end tokens.
fn generation_ids(generation: &Value, ids: &mut SpecialIds) -> Vec<u32> {
    let get = |key: &str| generation.get(key).or_else(|| generation.get("text_config")?.get(key));
    let id = |value: &Value| value.as_u64().map(|id| u32::try_from(id).unwrap_or(u32::MAX));
    let ends: Vec<u32> = match get("eos_token_id") {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    };
    ids.eos = ids.eos.or(ends.first().copied());
    ids.bos = ids.bos.or_else(|| get("bos_token_id").and_then(id));
    ends
}

/// The token a template puts before or after the text is the begin or end token; two different ones are refused.
fn agree(
    file: &str,
    name: &str,
    framed: Option<u32>,
    named: &mut Option<u32>,
    n_tokens: usize,
) -> Result<()> {
    let Some(framed) = framed else { return Ok(()) };
    if framed as usize >= n_tokens {
        let problem = format!("adds token {framed}, the vocabulary has {n_tokens}");
        return Err(Error::invalid(file, "post_processor", problem));
    }
    match *named {
        Some(other) if other != framed => {
            let problem = format!("adds token {framed}, but `{name}` is {other}");
            Err(Error::unsupported(file, "post_processor", problem))
        }
        _ => {
            *named = Some(framed);
            Ok(())
        }
    }
}
