//! Texts that make careless tokenizers quadratic.

use std::time::Duration;

use overdraft_formats::tokenizer::{Pretokenizer, Specials, Tokenizer};

use unicode_normalization::UnicodeNormalization;

use crate::clock::processor_time;
use crate::data::{pycoder, trained};

const MEGABYTE: usize = 1 << 20;
/// The slowest takes 0.4 s in the test profile on a busy 2.8 GHz Xeon; a quadratic step takes hours.
const LIMIT: Duration = Duration::from_secs(2);

const PIECES: [&str; 22] = [
    "a",
    "A",
    "ab",
    "Aa",
    "中A",
    " ",
    "\n",
    "\r\n",
    " \n",
    "\t ",
    "0",
    "٣",
    "\u{301}",
    "a\u{301}",
    "🙂",
    "👩\u{200d}",
    "!",
    "/",
    "'",
    "'s",
    "<",
    "<|",
];

#[test]
fn a_megabyte_of_one_thing_takes_a_second_at_most() {
    let mut tokenizers: Vec<Tokenizer> =
        vec![Tokenizer::from_tokenizer_json("", &pycoder(), None, None).unwrap()];
    for pre in Pretokenizer::ALL {
        tokenizers.push(Tokenizer::from_tokenizer_json("", &trained(pre), None, None).unwrap());
    }
    let mut slowest = (Duration::ZERO, String::new());
    for tokenizer in &tokenizers {
        for piece in PIECES {
            let start = processor_time();
            let text = piece.repeat(MEGABYTE / piece.len());
            let ids = tokenizer.encode(&text, Specials::Parse);
            let took = processor_time() - start;
            let decoded = tokenizer.decode(&ids, false);
            let normalized: String = if tokenizer.is_lossless() { text } else { text.nfc().collect() };
            assert!(decoded == normalized, "{tokenizer:?}, {piece:?}: does not decode to itself");
            slowest = slowest.max((took, format!("{tokenizer:?}, {piece:?}")));
            assert!(took < LIMIT, "{tokenizer:?}, {piece:?}: {took:?}");
        }
    }
    eprintln!("slowest: {slowest:?}");
}

/// Special tokens that nest and nearly match at every place of the text.
#[test]
fn nested_specials_cost_their_length_at_most() {
    let bytes: Vec<String> = (1..=250).map(|n| "a".repeat(n) + "b").collect();
    let tokens: Vec<&[u8]> = bytes.iter().map(|text| text.as_bytes()).collect();
    let input = overdraft_formats::tokenizer::VocabInput {
        model: "gpt2",
        pre: "qwen2",
        token_types: Some(vec![3; tokens.len()]),
        tokens,
        ..Default::default()
    };
    let tokenizer = Tokenizer::from_vocab(input).unwrap();
    let start = processor_time();
    tokenizer.encode(&"a".repeat(MEGABYTE / 4), Specials::Parse);
    assert!(processor_time() - start < LIMIT);
}
