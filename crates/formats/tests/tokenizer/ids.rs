//! Token ids against the `tokenizers` library.

use overdraft_formats::tokenizer::{Pretokenizer, Specials, Tokenizer};
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, Tokenizer as Oracle};
use unicode_normalization::UnicodeNormalization;

use crate::data::{GgufArrays, REAL, fetched, oracle, own, pycoder, trained};
use crate::{corpus, data};

const FILL_IN: [&str; 3] = ["<|fim_", "<|repo_name|>", "<|file_sep|>"];

/// Both ways of reading specials, over the whole corpus, and back to text.
fn check_ids(name: &str, ours: &Tokenizer, oracle: &mut Oracle) {
    let mut n_checked = 0;
    for (specials, as_text) in [(Specials::Parse, false), (Specials::Plain, true)] {
        oracle.set_encode_special_tokens(as_text);
        for document in corpus::documents() {
            // Fill-in-the-middle tokens are control tokens here and in llama.cpp, ordinary added ones in Qwen's files.
            let made_control = as_text && FILL_IN.iter().any(|text| document.contains(text));
            if made_control || !normalizes_alike(oracle, document) {
                continue;
            }
            n_checked += 1;
            let (got, want) = (ours.encode(document, specials), oracle_ids(oracle, document));
            if let Some(at) = (0..got.len().max(want.len())).find(|&i| got.get(i) != want.get(i)) {
                let text = |ids: &[u32]| {
                    let near = &ids[at.saturating_sub(3).min(ids.len())..(at + 4).min(ids.len())];
                    near.iter().map(|&id| (id, ours.token_text(id))).collect::<Vec<_>>().clone()
                };
                panic!(
                    "{name}, {specials:?}, token {at}:\n ours   {:?}\n oracle {:?}",
                    text(&got),
                    text(&want)
                );
            }
            assert_eq!(ours.decode(&got, false), oracle.decode(&got, false).unwrap(), "{name}");
        }
    }
    // The library's NFC has the tables of Unicode 9; random text beyond it is checked in `nfc_is_applied`.
    assert!(n_checked > corpus::documents().len(), "{name}: only {n_checked} documents compared");
}

fn oracle_ids(oracle: &Oracle, text: &str) -> Vec<u32> {
    oracle.encode_fast(text, false).unwrap().get_ids().to_vec()
}

fn normalizes_alike(oracle: &Oracle, text: &str) -> bool {
    let Some(normalizer) = oracle.get_normalizer() else { return true };
    let mut theirs = NormalizedString::from(text);
    normalizer.normalize(&mut theirs).unwrap();
    theirs.get() == text.nfc().collect::<String>()
}

fn without_normalizer(mut oracle: Oracle) -> Oracle {
    oracle.with_normalizer(None::<NormalizerWrapper>).unwrap();
    oracle
}

#[test]
fn ids_of_the_demo_model_are_the_librarys() {
    let json = pycoder();
    let ours = Tokenizer::from_tokenizer_json("tokenizer.json", &json, None, None).unwrap();
    check_ids("pycoder", &ours, &mut oracle(&json));
    let gguf = GgufArrays::from_json(&json).tokenizer("qwen35");
    check_ids("pycoder as GGUF", &gguf, &mut without_normalizer(oracle(&json)));
}

#[test]
fn ids_of_real_vocabularies_are_the_librarys() {
    for package in REAL {
        let json = fetched(package, "tokenizer.json");
        let ours = Tokenizer::from_tokenizer_json("tokenizer.json", &json, None, None).unwrap();
        check_ids(package, &ours, &mut oracle(&json));
    }
}

#[test]
fn ids_of_real_vocabularies_through_gguf_are_the_librarys_without_nfc() {
    for (package, pre) in REAL.into_iter().zip(["qwen2", "qwen2", "gpt-4o", "llama-bpe", "llama-v3"]) {
        let json = fetched(package, "tokenizer.json");
        let ours = GgufArrays::from_json(&json).tokenizer(pre);
        assert_eq!(ours.warnings(), [""; 0], "{package}");
        check_ids(package, &ours, &mut without_normalizer(oracle(&json)));
    }
}

#[test]
fn ids_of_trained_vocabularies_are_the_librarys_for_every_pretokenizer() {
    for pre in Pretokenizer::ALL {
        let json = trained(pre);
        let ours = Tokenizer::from_tokenizer_json("tokenizer.json", &json, None, None).unwrap();
        assert_eq!(ours.pretokenizer(), pre);
        check_ids(&format!("{pre:?}"), &ours, &mut oracle(&json));
    }
}

/// `tokenizer.json` normalises, a GGUF never does: there decomposed text keeps its bytes.
#[test]
fn nfc_is_applied_where_the_file_asks_for_it() {
    let json = pycoder();
    let ours = Tokenizer::from_tokenizer_json("tokenizer.json", &json, None, None).unwrap();
    let gguf = GgufArrays::from_json(&json).tokenizer("qwen35");
    let plain_oracle = without_normalizer(oracle(&json));
    for document in corpus::documents() {
        let nfc: String = document.nfc().collect();
        // Special tokens are cut out before normalising, and their characters do not compose.
        assert_eq!(ours.encode(document, Specials::Parse), oracle_ids(&plain_oracle, &nfc));
    }
    assert_eq!(ours.decode(&ours.encode("e\u{301}", Specials::Parse), false), "\u{e9}");
    assert_eq!(gguf.decode(&gguf.encode("e\u{301}", Specials::Parse), false), "e\u{301}");
    assert!(gguf.is_lossless() && !ours.is_lossless());
}

#[test]
fn begin_tokens_are_the_librarys() {
    for (package, text) in
        [("tokenizer-llama3_2", "Hello"), ("tokenizer-qwen3", "Hello"), ("tokenizer-llama3_2", "")]
    {
        let json = fetched(package, "tokenizer.json");
        let config = fetched(package, "tokenizer_config.json");
        let ours = Tokenizer::from_tokenizer_json("tokenizer.json", &json, Some(&config), None).unwrap();
        let want = oracle(&json).encode_fast(text, true).unwrap().get_ids().to_vec();
        assert_eq!(ours.encode_prompt(text, Specials::Parse), want, "{package}");
        if let Some(bos) = ours.bos() {
            let doubled = format!("{}{text}", ours.token_text(bos).unwrap());
            assert_eq!(
                ours.encode_prompt(&doubled, Specials::Parse),
                want,
                "{package}: the text has its own"
            );
        }
    }
}

#[test]
fn ends_of_real_vocabularies_are_found() {
    check_ends(
        "tokenizer-qwen3",
        "qwen2",
        &["<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"],
    );
    check_ends("tokenizer-llama3_2", "llama3", &["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]);
    check_ends("tokenizer-gptoss", "gpt-4o", &["<|endoftext|>", "<|return|>", "<|call|>"]);
}

fn check_ends(package: &str, pre: &str, texts: &[&str]) {
    let json = fetched(package, "tokenizer.json");
    let config = fetched(package, "tokenizer_config.json");
    let from_json = Tokenizer::from_tokenizer_json("tokenizer.json", &json, Some(&config), None).unwrap();
    let from_gguf = data::GgufArrays::from_json(&json).tokenizer(pre);
    for ours in [from_json, from_gguf] {
        let mut ends: Vec<u32> = texts.iter().map(|text| ours.id_of(text).unwrap()).collect();
        ends.sort_unstable();
        assert_eq!(ours.end_ids(), ends, "{package}");
        assert!(ends.iter().all(|&id| ours.is_end(id) && ours.is_special(id)));
    }
}

/// gpt-oss: `<|end|>` closes a message, not the turn, and the reply's parser sees its markers.
#[test]
fn harmony_markers_are_shown_but_never_made_from_plain_text() {
    let json = fetched("tokenizer-gptoss", "tokenizer.json");
    let ours = GgufArrays::from_json(&json).tokenizer("gpt-4o");
    for text in ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"] {
        let id = ours.id_of(text).unwrap();
        assert!(!ours.is_end(id) && !ours.is_special(id) && ours.is_control(id), "{text}");
        assert_eq!(ours.decode(&[id], true), text);
        assert_eq!(ours.encode(text, Specials::Parse), [id]);
        assert!(!ours.encode(text, Specials::Plain).contains(&id), "{text}");
    }
    assert_eq!(ours.decode(&[ours.id_of("<|return|>").unwrap()], true), "");
}

#[test]
fn the_demo_models_configuration_names_its_end() {
    let config = own("pycoder-tokenizer_config.json");
    let generation = br#"{"eos_token_id": [2, 0], "bos_token_id": null}"#;
    let ours = Tokenizer::from_tokenizer_json("tokenizer.json", &pycoder(), Some(&config), Some(generation))
        .unwrap();
    assert_eq!((ours.eos(), ours.bos(), ours.special_ids().padding), (Some(2), None, Some(0)));
    assert_eq!(ours.end_ids(), [0, 2]);
    assert!(!ours.add_bos() && !ours.add_eos());
    assert_eq!(ours.special_ids().fim_prefix, Some(6));
}
