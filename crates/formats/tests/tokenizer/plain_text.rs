//! Text that others wrote cannot make control tokens.

use overdraft_formats::tokenizer::{SpecialIds, Specials, Tokenizer, VocabInput};

use crate::corpus;
use crate::data::{GgufArrays, pycoder};

#[test]
fn plain_text_never_makes_control_tokens() {
    let tokenizer = GgufArrays::from_json(&pycoder()).tokenizer("qwen35");
    for document in corpus::documents() {
        let ids = tokenizer.encode(document, Specials::Plain);
        assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
        assert_eq!(&tokenizer.decode(&ids, true), document, "and loses nothing");
    }
}

/// A vocabulary of the 256 bytes and what a test adds.
fn with(extra: &[(&str, i32)], merges: &[&str], pre: &str) -> Tokenizer {
    let bytes: Vec<String> = (0..=255u8).map(byte_char).collect();
    let tokens = bytes.iter().map(String::as_bytes).chain(extra.iter().map(|(text, _)| text.as_bytes()));
    let types = [1; 256].into_iter().chain(extra.iter().map(|&(_, kind)| kind));
    Tokenizer::from_vocab(VocabInput {
        file: "test.gguf",
        model: "gpt2",
        pre,
        tokens: tokens.collect(),
        token_types: Some(types.collect()),
        merges: merges.iter().map(|merge| merge.as_bytes()).collect(),
        ids: SpecialIds::default(),
        ..VocabInput::default()
    })
    .unwrap()
}

fn byte_char(byte: u8) -> String {
    let moved = |b: &u8| !matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = if moved(&byte) { 256 + (0..byte).filter(moved).count() as u32 } else { u32::from(byte) };
    char::from_u32(code).unwrap().to_string()
}

/// Ids 0 to 255 are the bytes here.
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn a_control_token_is_not_reached_by_merging_or_by_whole_words() {
    let kinds = [("ab", 1), ("abc", 3)];
    for pre in ["qwen2", "llama-bpe"] {
        let tokenizer = with(&kinds, &["a b", "ab c"], pre);
        assert_eq!(tokenizer.encode("abc", Specials::Parse), [257]);
        assert_eq!(tokenizer.encode("abc", Specials::Plain), bytes("abc"), "{pre}: byte by byte");
        assert_eq!(tokenizer.encode("abd", Specials::Plain), [256, u32::from(b'd')]);
    }
}

#[test]
#[rustfmt::skip]
fn merges_go_by_rank_and_leftmost() {
    check(&["a a"],                       "aaaaa",  &["aa", "aa", "a"],  "leftmost of equals");
    check(&["b c", "a b"],                "abc",    &["a", "bc"],        "lower rank first");
    check(&["a b", "b c"],                "abc",    &["ab", "c"],        "lower rank first");
    check(&["a b", "ab c"],               "abcab",  &["abc", "ab"],      "results merge on");
    check(&["b c", "a bc", "a b"],        "abcab",  &["abc", "ab"],      "by either way");
    check(&["x y", "xy z"],               "xyz",    &["xyz"],            "through a step that is no token");
    check(&["x y", "xy z"],               "xyw",    &["x", "y", "w"],    "a step that is no token falls back to bytes");
    check(&["a b", "a b", "b c"],         "abc",    &["ab", "c"],        "the first of two equal merges holds");
}

#[track_caller]
fn check(merges: &[&str], text: &str, expected: &[&str], case: &str) {
    let extra = [("aa", 1), ("ab", 1), ("bc", 1), ("abc", 1), ("xyz", 1)];
    let tokenizer = with(&extra, merges, "qwen2");
    // The same word short (scanned) and long (heap): a hundred times over with a wall between.
    for n in [1, 100] {
        let walled = format!("{text}q").repeat(n);
        let ids = tokenizer.encode(&walled, Specials::Plain);
        let got: Vec<_> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect();
        let want = [expected, &["q"]].concat().repeat(n);
        assert_eq!(got, want, "{case}");
    }
}

#[test]
#[rustfmt::skip]
fn specials_are_cut_out_leftmost_and_longest() {
    let tokenizer = with(&[("<a>", 3), ("<a>b", 4), ("<u>", 4), ("b<c>", 3)], &[], "qwen2");
    let parse = |text| tokenizer.encode(text, Specials::Parse);
    let plain = |text| tokenizer.encode(text, Specials::Plain);
    assert_eq!(parse("<a><a>b<u>"), [256, 257, 258]);
    assert_eq!(parse("<a>b<c>"),    [vec![257], bytes("<c>")].concat());
    assert_eq!(plain("<a>b<c>"),    [vec![257], bytes("<c>")].concat());
    assert_eq!(plain("<a>c<u>"),    [bytes("<a>c"), vec![258]].concat());
    assert_eq!(plain("<a"),         bytes("<a"));
}

/// What llama.cpp does too, except that a piece of text which merges build stays text.
#[test]
fn an_end_with_the_wrong_type_becomes_control_unless_text_merges_into_it() {
    let broken = with(&[("<|im_end|>", 1)], &[], "qwen2");
    assert!(broken.is_end(256) && broken.is_special(256));
    assert_eq!(broken.special_ids().eot, Some(256));
    let html = with(&[("</", 1), ("s>", 1), ("</s>", 1)], &["< /", "s >", "</ s>"], "qwen2");
    assert!(!html.is_end(258) && !html.is_special(258));
}

#[test]
fn prompts_get_begin_and_end_once() {
    let build = |add_bos, add_eos| {
        let base = with(&[("<b>", 3), ("<e>", 3)], &[], "llama-bpe");
        assert!(!base.add_bos(), "no begin token is known");
        let bytes: Vec<String> = (0..=255u8).map(byte_char).collect();
        let tokens = bytes.iter().map(String::as_bytes).chain([&b"<b>"[..], b"<e>"]).collect();
        let mut types = vec![1; 256];
        types.extend([3, 3]);
        Tokenizer::from_vocab(VocabInput {
            model: "gpt2",
            pre: "llama-bpe",
            tokens,
            token_types: Some(types),
            ids: SpecialIds { bos: Some(256), eos: Some(257), padding: Some(9999), ..SpecialIds::default() },
            add_bos,
            add_eos,
            ..VocabInput::default()
        })
        .unwrap()
    };
    let default = build(None, None);
    assert_eq!(default.warnings().len(), 1, "{:?}", default.warnings());
    assert_eq!(default.encode_prompt("x", Specials::Parse), [256, 120]);
    assert_eq!(default.encode_prompt("<b>x", Specials::Parse), [256, 120]);
    assert_eq!(default.encode_prompt("", Specials::Parse), [256]);
    let both = build(Some(true), Some(true));
    assert_eq!(both.encode_prompt("<b>x<e>", Specials::Parse), [256, 120, 257]);
    assert_eq!(both.encode_prompt("x", Specials::Plain), [256, 120, 257]);
    assert_eq!(build(Some(false), None).encode_prompt("x", Specials::Parse), [120]);
}
