//! Thousands of damaged files: a value or an error, never a panic, never a hang.

use std::time::Duration;

use overdraft_formats::tokenizer::{Pretokenizer, SpecialIds, Specials, Tokenizer, VocabInput};

use crate::clock::processor_time;
use crate::data::{GgufArrays, pycoder, trained};
use crate::random::Random;

const N_MUTANTS: usize = 4000;
const LIMIT: Duration = Duration::from_secs(2);

/// If it loads, it also works, and loses nothing where it says so.
fn exercise(tokenizer: &Tokenizer, text: &str) {
    let parsed = tokenizer.encode_prompt(text, Specials::Parse);
    assert!(parsed.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
    let ids = tokenizer.encode(text, Specials::Plain);
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
    if tokenizer.is_lossless() {
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
    for id in [0, 1, u32::MAX, tokenizer.vocab_len() as u32] {
        tokenizer.token_text(id);
    }
}

const TEXT: &str = "def f(x):\n    return '<|im_end|>' + <think>é中🙂\u{301}\0 </s>\t\t12345";

#[test]
fn damaged_tokenizer_json_is_a_value_or_an_error() {
    // A tenth of the demo vocabulary keeps the file small and its shape whole.
    let small = trained(Pretokenizer::Qwen35);
    let mut random = Random::new(2);
    let mut n_loaded = 0;
    for _ in 0..N_MUTANTS {
        let mut json = small.clone();
        for _ in 0..1 + random.below(3) {
            damage(&mut json, &mut random);
        }
        let start = processor_time();
        let config = random.below(2) == 0;
        let config = config
            .then_some(&br#"{"bos_token": "a", "eos_token": {"content": "b"}, "add_bos_token": true}"#[..]);
        if let Ok(tokenizer) =
            Tokenizer::from_tokenizer_json("m", &json, config, Some(br#"{"eos_token_id": [1, 99999999]}"#))
        {
            exercise(&tokenizer, TEXT);
            n_loaded += 1;
        }
        assert!(processor_time() - start < LIMIT);
    }
    assert!(
        n_loaded > N_MUTANTS / 100,
        "only {n_loaded} mutants load: the damage is too coarse to reach deep"
    );
}

fn damage(json: &mut Vec<u8>, random: &mut Random) {
    const BITS: [&str; 20] = [
        "null",
        "true",
        "0",
        "-1",
        "4294967295",
        "4294967296",
        "1e999",
        "\"\"",
        "[]",
        "{}",
        "\"a b\"",
        "\"\\ud800\"",
        "\"\\u0000\"",
        "[\"a\",\"b\"]",
        "\"special\":true",
        "\"normalized\":true",
        "\"NFC\"",
        "\"ignore_merges\":true",
        "\\",
        ",",
    ];
    // Mostly outside the long lists, which are nearly all of the bytes.
    let head = json.windows(9).position(|w| w == b"\"vocab\":{").unwrap_or(json.len());
    let limit = if random.below(2) == 0 { head } else { json.len() }.max(1);
    let at = random.below(limit);
    match random.below(6) {
        0 => json[at] ^= 1 << random.below(8),
        1 => json[at] = b'0' + random.below(10) as u8,
        2 => drop(json.drain(at..(at + random.below(40)).min(json.len()))),
        3 => {
            let bit = random.pick(&BITS).bytes();
            drop(json.splice(at..at, bit));
        }
        4 => {
            // A value in place of another one.
            let end = json[at..]
                .iter()
                .position(|b| matches!(b, b',' | b'}' | b']'))
                .map_or(json.len(), |n| at + n);
            let start = json[..at].iter().rposition(|b| matches!(b, b':' | b',' | b'[')).map_or(0, |n| n + 1);
            let bit = random.pick(&BITS).bytes();
            drop(json.splice(start..end, bit));
        }
        _ => {
            let part = json[at..(at + random.below(200)).min(json.len())].to_vec();
            drop(json.splice(at..at, part));
        }
    }
}

#[test]
fn damaged_gguf_values_are_a_value_or_an_error() {
    let arrays = GgufArrays::from_json(&pycoder());
    let n = arrays.tokens.len();
    let mut random = Random::new(3);
    let mut n_loaded = 0;
    for round in 0..N_MUTANTS {
        // Few tokens, so that damage meets merges; the bytes are among the first 300.
        let n_tokens = [0, 1, 300, 600][random.below(4)];
        let mut tokens: Vec<Vec<u8>> =
            arrays.tokens[..n_tokens].iter().map(|t| t.clone().into_bytes()).collect();
        let mut merges: Vec<Vec<u8>> =
            arrays.merges[..n_tokens].iter().map(|t| t.clone().into_bytes()).collect();
        let mut types = arrays.types[..n_tokens].to_vec();
        for _ in 0..random.below(6) {
            match random.below(8) {
                0 => mangle(&mut tokens, &mut random),
                1 => mangle(&mut merges, &mut random),
                2 if !types.is_empty() => {
                    let at = random.below(types.len());
                    types[at] = [0, 1, 2, 3, 4, 5, 6, 7, -1, i32::MAX][random.below(10)];
                }
                3 if round % 7 == 0 => drop(types.pop()),
                4 => types.iter_mut().for_each(|kind| *kind = [1, 1, 1, 2, 3, 4][random.below(6)]),
                5 if tokens.len() > 1 => {
                    let (from, to) = (random.below(tokens.len()), random.below(tokens.len()));
                    tokens[to] = tokens[from].clone();
                }
                6 if merges.len() > 1 => {
                    let (from, to) = (random.below(merges.len()), random.below(merges.len()));
                    merges.swap(from, to);
                }
                _ => {}
            }
        }
        let mut id = || (random.below(2) == 0).then(|| [0, 5, 299, n as u32, u32::MAX][random.below(5)]);
        let ids = SpecialIds {
            bos: id(),
            eos: id(),
            eot: id(),
            eom: id(),
            unknown: id(),
            fim_pad: id(),
            ..Default::default()
        };
        let input = VocabInput {
            file: "m",
            model: "gpt2",
            pre: random.pick::<&str>(&["qwen2", "qwen35", "gpt-4o", "llama-bpe", "smollm", "gpt-2", "?"]),
            tokens: tokens.iter().map(Vec::as_slice).collect(),
            token_types: (random.below(4) > 0).then_some(types),
            merges: merges.iter().map(Vec::as_slice).collect(),
            ids,
            add_bos: Some(random.below(2) == 0),
            add_eos: None,
        };
        let start = processor_time();
        if let Ok(tokenizer) = Tokenizer::from_vocab(input) {
            exercise(&tokenizer, TEXT);
            n_loaded += 1;
        }
        assert!(processor_time() - start < LIMIT);
    }
    assert!(n_loaded > N_MUTANTS / 5, "only {n_loaded} mutants load: the damage is too coarse to reach deep");
}

fn mangle(list: &mut Vec<Vec<u8>>, random: &mut Random) {
    if list.is_empty() {
        return;
    }
    let at = random.below(list.len());
    match random.below(7) {
        0 => list[at].push(random.next() as u8),
        1 => list[at].clear(),
        2 => list[at] = b"a ".repeat(random.below(2000)),
        3 => {
            list[at] =
                [&b"<|im_end|>"[..], b"</s>", b"<|end|>", b"<|return|>", b"<|call|>", b"\xf0\x9f", b" "]
                    [random.below(7)]
                .to_vec()
        }
        4 => list.truncate(at),
        5 => drop(list.remove(at)),
        _ => {
            let byte = random.below(list[at].len().max(1));
            if let Some(byte) = list[at].get_mut(byte) {
                *byte = random.next() as u8;
            }
        }
    }
}
