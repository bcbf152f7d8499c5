//! Both constructors on arbitrary bytes; whatever loads must encode within its vocabulary, keep control tokens out of
//! plain text, and lose nothing where it says so. The first byte chooses the constructor.
#![no_main]

use overdraft_formats::tokenizer::{Detokenizer, SpecialIds, Specials, Tokenizer, VocabInput};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let tokenizer = if first & 1 == 0 { from_json(rest) } else { from_vocab(first >> 1, rest) };
    let Ok(tokenizer) = tokenizer else { return };
    // The file is as good a text as any: its own tokens are in it.
    let text = String::from_utf8_lossy(rest);
    exercise(&tokenizer, &text[..text.floor_char_boundary(4096)]);
});

/// Three files, separated by a byte that UTF-8 never has.
fn from_json(data: &[u8]) -> overdraft_formats::Result<Tokenizer> {
    let mut files = data.splitn(3, |&byte| byte == 0xff);
    let json = files.next().unwrap_or_default();
    Tokenizer::from_tokenizer_json("fuzz", json, files.next(), files.next())
}

/// Lines: tokens with their type as first byte, then an empty line, then merges. `choice` picks the pre-tokenizer, and
/// whether the 256 single bytes come first.
fn from_vocab(choice: u8, data: &[u8]) -> overdraft_formats::Result<Tokenizer> {
    const PRE: [&str; 6] = ["qwen2", "qwen35", "gpt-4o", "llama-bpe", "smollm", "gpt-2"];
    let bytes: Vec<String> = if choice & 64 == 0 { (0..=255).map(byte_char).collect() } else { Vec::new() };
    let mut tokens: Vec<&[u8]> = bytes.iter().map(String::as_bytes).collect();
    let mut types = vec![1; tokens.len()];
    let mut lines = data.split(|&byte| byte == b'\n');
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        types.push(i32::from(line[0] % 8));
        tokens.push(&line[1..]);
    }
    let n_tokens = tokens.len() as u32;
    Tokenizer::from_vocab(VocabInput {
        file: "fuzz",
        model: "gpt2",
        pre: PRE[usize::from(choice) % PRE.len()],
        tokens,
        token_types: Some(types),
        merges: lines.collect(),
        ids: SpecialIds { bos: n_tokens.checked_sub(1), eos: Some(256), ..SpecialIds::default() },
        add_bos: Some(choice & 8 != 0),
        add_eos: Some(choice & 16 != 0),
    })
}

fn byte_char(byte: u8) -> String {
    let moved = |b: &u8| !matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = if moved(&byte) { 256 + (0..byte).filter(moved).count() as u32 } else { u32::from(byte) };
    char::from_u32(code).into_iter().collect()
}

fn exercise(tokenizer: &Tokenizer, text: &str) {
    let parsed = tokenizer.encode_prompt(text, Specials::Parse);
    assert!(parsed.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
    let plain = tokenizer.encode(text, Specials::Plain);
    assert!(plain.iter().all(|&id| !tokenizer.is_control(id)));
    if tokenizer.is_lossless() {
        assert_eq!(tokenizer.decode(&plain, true), text);
    }
    for (ids, skip) in [(&parsed, true), (&plain, false)] {
        let mut stream = Detokenizer::new(skip);
        let mut streamed = String::new();
        for &id in ids {
            streamed += stream.push(tokenizer, id);
        }
        streamed += stream.finish();
        assert_eq!(streamed, tokenizer.decode(ids, skip));
    }
}
