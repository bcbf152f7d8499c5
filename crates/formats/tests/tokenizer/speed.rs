//! Loading and encoding speed beside the `tokenizers` library:
//! `cargo test -p overdraft-formats --test tokenizer speed -- --ignored --nocapture`

use std::time::Duration;

use overdraft_formats::tokenizer::{Specials, Tokenizer};

use crate::clock::processor_time;
use crate::corpus;
use crate::data::{GgufArrays, REAL, fetched, oracle};

/// The mean of `n` runs: the clock above ticks every 4 ms.
fn mean<T>(n: u32, mut work: impl FnMut() -> T) -> Duration {
    let start = processor_time();
    for _ in 0..n {
        std::hint::black_box(work());
    }
    (processor_time() - start) / n
}

const PRE: [&str; REAL.len()] = ["qwen2", "qwen2", "gpt-4o", "llama-bpe", "llama-bpe"];

#[test]
#[ignore = "measures"]
fn speed_of_loading() {
    for (package, pre) in REAL.into_iter().zip(PRE) {
        let json = fetched(package, "tokenizer.json");
        let arrays = GgufArrays::from_json(&json);
        let input = arrays.input(pre);
        let gguf = mean(20, || Tokenizer::from_vocab(input.clone()).unwrap());
        let from_json = mean(5, || Tokenizer::from_tokenizer_json("", &json, None, None).unwrap());
        let library = mean(2, || oracle(&json));
        let (n_tokens, n_merges) = (arrays.tokens.len(), arrays.merges.len());
        eprintln!(
            "{package}: {n_tokens} tokens, {n_merges} merges; gguf {gguf:.1?}, json {from_json:.1?}, library {library:.1?}"
        );
    }
}

#[test]
#[ignore = "measures"]
fn speed_of_encoding() {
    let documents = corpus::documents();
    let third = documents.len() / 3;
    for (package, pre) in REAL.into_iter().zip(PRE) {
        let json = fetched(package, "tokenizer.json");
        let arrays = GgufArrays::from_json(&json);
        let theirs = oracle(&json);
        for (name, documents) in
            [("code", &documents[..third]), ("prose", &documents[third..2 * third]), ("all", documents)]
        {
            let n_bytes: usize = documents.iter().map(String::len).sum();
            let rate = |took: Duration| n_bytes as f64 / 1e6 / took.as_secs_f64();
            let ours = arrays.tokenizer(pre);
            // Tokenizers that have seen nothing yet, made outside the measurement.
            let mut fresh: Vec<Tokenizer> = (0..8).map(|_| arrays.tokenizer(pre)).collect();
            let cold = mean(8, || {
                let ours = fresh.pop().unwrap();
                documents.iter().for_each(|d| drop(ours.encode(d, Specials::Parse)));
                ours
            });
            let cold = rate(cold);
            let warm =
                rate(mean(30, || documents.iter().for_each(|d| drop(ours.encode(d, Specials::Parse)))));
            let theirs =
                || documents.iter().for_each(|d| drop(theirs.encode_fast(d.as_str(), false).unwrap()));
            let library = rate(mean(3, theirs));
            eprintln!("{package} {name:5} cold {cold:6.1}  warm {warm:6.1}  library {library:6.1} MB/s");
        }
    }
}
