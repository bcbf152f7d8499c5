//! What is not implemented is refused by its name, what is wrong is an error that says where.

use overdraft_formats::Error;
use overdraft_formats::tokenizer::{Pretokenizer, Specials, Tokenizer, VocabInput};
use serde_json::{Value, json};

use crate::data::{fetched, trained};

fn base() -> Value {
    serde_json::from_slice(&trained(Pretokenizer::Gpt2)).unwrap()
}

fn load(json: &Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_tokenizer_json("x/tokenizer.json", json.to_string().as_bytes(), None, None)
}

#[test]
#[rustfmt::skip]
fn stages_that_would_change_ids_are_refused_by_name() {
    refuse("/normalizer",    json!({"type": "Lowercase"}),                          "normalizer `Lowercase`");
    refuse("/normalizer",    json!({"type": "NFC", "x": 1}),                        "field `x`");
    refuse("/normalizer",    json!({"type": "Sequence"}),                           "`normalizers`");
    refuse("/pre_tokenizer", json!(null),                                           "no ByteLevel stage");
    refuse("/pre_tokenizer", json!({"type": "Metaspace"}),                          "pre_tokenizer `Metaspace`");
    refuse("/pre_tokenizer", json!({"type": "ByteLevel", "add_prefix_space": true}), "`add_prefix_space`");
    refuse("/pre_tokenizer", json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}), "no matcher for ``");
    refuse("/pre_tokenizer", json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\d+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}),    "no matcher for `\\d+`");
    refuse("/pre_tokenizer", json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated"}), "Regex");
    refuse("/pre_tokenizer", json!({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}),   "\"Removed\"");
    refuse("/pre_tokenizer", json!({"type": "Digits", "individual_digits": false}), "`individual_digits`");
    refuse("/post_processor", json!({"type": "BertProcessing"}),                    "`BertProcessing`");
    refuse("/post_processor", json!({"type": "TemplateProcessing", "single": []}),  "`single`");
    refuse("/decoder",       json!({"type": "WordPiece"}),                          "decoder `WordPiece`");
    refuse("/model/type",    json!("Unigram"),                                      "model type `Unigram`");
    refuse("/model/dropout", json!(0.1),                                            "model.dropout");
    refuse("/model/byte_fallback", json!(true),                                     "model.byte_fallback");
    refuse("/model/end_of_word_suffix", json!("</w>"),                              "model.end_of_word_suffix");
    refuse("/model/continuing_subword_prefix", json!("##"),                         "model.continuing_subword_prefix");
    refuse("/model/merges",  json!(["ab"]),                                         "`ab`");
    refuse("/model/merges",  json!(["a b c"]),                                      "`a b c`");
    refuse("/model/merges",  json!([["a", "b", "c"]]),                              "merge");
    refuse("/model/merges",  json!([["a", "qqqqqqqq"]]),                            "`qqqqqqqq` is not in the vocabulary");
    refuse("/model/vocab",   json!({"a": 4_000_000_000u32}),                        "id 4000000000");
    refuse("/model/vocab",   json!({"a": 5, "b": 5}),                               "id 5 is both");
    refuse("/model/vocab",   json!({"a": -1}),                                      "tokenizer.json");
    refuse("/model/vocab",   json!({"<|endoftext|>": 1, "a": 0}),                   "`<|endoftext|>`");
    refuse("/added_tokens/0/lstrip",      json!(true),                              "`lstrip`");
    refuse("/added_tokens/0/rstrip",      json!(true),                              "`rstrip`");
    refuse("/added_tokens/0/single_word", json!(true),                              "`single_word`");
    refuse("/added_tokens",  json!([{"id": 1500, "content": "x".repeat(300)}]),     "has 300 bytes");
    refuse("/extra",         json!(1),                                              "unknown field `extra`");
    refuse("/model/extra",   json!(1),                                              "unknown field `extra`");
}

#[track_caller]
fn refuse(path: &str, value: Value, needle: &str) {
    let mut json = base();
    match json.pointer_mut(path) {
        Some(place) => *place = value,
        None => {
            let (parent, key) = path.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[key] = value;
        }
    }
    let message = match load(&json) {
        Ok(_) => panic!("{path}: accepted"),
        Err(error) => error.to_string(),
    };
    assert!(message.contains(needle) && message.starts_with("x/tokenizer.json: "), "{path}: {message}");
}

#[test]
fn real_vocabularies_of_other_kinds_are_refused_with_what_they_use() {
    for (package, needle) in [
        ("tokenizer-gemma3", "model.byte_fallback"),
        ("tokenizer-mistral_nemo", "no matcher for `"),
        ("tokenizer-deepseek_v3", "no matcher for `"),
    ] {
        let json = fetched(package, "tokenizer.json");
        let message = Tokenizer::from_tokenizer_json(package, &json, None, None).unwrap_err().to_string();
        assert!(message.contains(needle), "{package}: {message}");
    }
}

/// Added tokens with `normalized` are found in the normalised text, the others in the text as it is.
#[test]
fn normalized_added_tokens_are_matched_after_nfc() {
    let mut json = base();
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]});
    let n = json["model"]["vocab"].as_object().unwrap().len() as u32;
    for (i, normalized) in [(0, true), (1, false)] {
        let content = format!("[e\u{301}{i}]");
        json["added_tokens"].as_array_mut().unwrap().push(json!({"id": n + i, "content": content,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": normalized, "special": false}));
    }
    let ours = load(&json).unwrap();
    let oracle = crate::data::oracle(json.to_string().as_bytes());
    for text in ["[e\u{301}0]x[é0]", "[e\u{301}1]x[é1]", "[e\u{301}0][e\u{301}1]"] {
        let want = oracle.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(ours.encode(text, Specials::Parse), want, "{text}");
    }
}

#[test]
fn tokens_listed_only_in_the_configuration_are_added() {
    let n = base()["model"]["vocab"].as_object().unwrap().len() as u32;
    let config = json!({
        "bos_token": {"content": "<new>"}, "eos_token": "<absent>", "add_bos_token": true,
        "added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": true}, (n.to_string()): {"content": "<new>", "special": true}},
    });
    let json = trained(Pretokenizer::Gpt2);
    let ours = Tokenizer::from_tokenizer_json("t", &json, Some(config.to_string().as_bytes()), None).unwrap();
    assert_eq!(ours.bos(), Some(n));
    assert_eq!(ours.encode_prompt("<new>", Specials::Parse), [n]);
    assert_eq!(ours.encode_prompt("", Specials::Parse), [n]);
    assert_eq!(ours.warnings(), ["`eos_token` = `<absent>` ignored: not in the vocabulary"]);
}

#[test]
#[rustfmt::skip]
fn gguf_values_that_do_not_fit_are_refused_with_their_key() {
    let good = || VocabInput { file: "m.gguf", model: "gpt2", pre: "qwen2", tokens: vec![b"a", b"b"], ..Default::default() };
    let check = |input: VocabInput, needle: &str| {
        let message = Tokenizer::from_vocab(input).unwrap_err().to_string();
        assert!(message.starts_with("m.gguf: ") && message.contains(needle), "{message}");
    };
    check(VocabInput { model: "llama", ..good() },                          "`tokenizer.ggml.model`: `llama`");
    check(VocabInput { pre: "mpt", ..good() },                              "`tokenizer.ggml.pre`: `mpt` is not one of the known: qwen2");
    check(VocabInput { tokens: vec![], ..good() },                          "`tokenizer.ggml.tokens`: no tokens");
    check(VocabInput { token_types: Some(vec![1]), ..good() },              "`tokenizer.ggml.token_type`: 1 types for 2 tokens");
    check(VocabInput { token_types: Some(vec![1, 7]), ..good() },           "token 1 has type 7");
    check(VocabInput { merges: vec![b"a b", b"ab"], ..good() },             "`tokenizer.ggml.merges`, merge 1: `ab`: no space");
    check(VocabInput { merges: vec![b" "], ..good() },                      "no space");
    check(VocabInput { merges: vec![b"\xff b"], ..good() },                 "not UTF-8");
}

#[test]
fn gguf_values_that_are_odd_are_told() {
    let input = VocabInput {
        model: "gpt2",
        pre: "qwen2",
        tokens: vec![b"a", b"a", b"\xff\xfe", "中".as_bytes(), b""],
        merges: vec![b"a a", b"a a", "中 a".as_bytes(), b"a  "],
        ..Default::default()
    };
    let ours = Tokenizer::from_vocab(input).unwrap();
    let all = ours.warnings().join("\n");
    for needle in ["1 tokens are not UTF-8", "1 tokens repeat", "3 merges ignored", "255 of the 256 bytes"] {
        assert!(all.contains(needle), "{needle}: {all}");
    }
    assert_eq!(
        ours.encode("a中aa", Specials::Parse),
        [0, 0, 0],
        "what has no token is left out, `aa` is no token"
    );
    assert_eq!(ours.decode(&[3, 2, 1, 4, 99], false), "中\u{fffd}\u{fffd}a");
}
