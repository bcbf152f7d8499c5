//! Tokens one at a time against all at once.

use overdraft_formats::tokenizer::{Detokenizer, Specials, Tokenizer};
use proptest::prelude::*;

use crate::corpus;
use crate::data::{GgufArrays, pycoder};

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_specials: bool) -> String {
    let mut stream = Detokenizer::new(skip_specials);
    let mut text = String::new();
    for &id in ids {
        let piece = stream.push(tokenizer, id);
        text += piece;
    }
    text + stream.finish()
}

fn demo() -> &'static Tokenizer {
    static TOKENIZER: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    TOKENIZER.get_or_init(|| GgufArrays::from_json(&pycoder()).tokenizer("qwen35"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Ids up to 265 are specials and single bytes, so half of the streams are mostly broken UTF-8; some ids are
    /// outside the vocabulary.
    #[test]
    fn pieces_together_are_the_whole_text(
        ids in prop::collection::vec(prop_oneof![0u32..265, 0u32..8300], 0..60),
        skip_specials: bool,
    ) {
        let tokenizer = demo();
        prop_assert_eq!(streamed(tokenizer, &ids, skip_specials), tokenizer.decode(&ids, skip_specials));
    }
}

#[test]
fn real_text_streams_to_itself() {
    for document in corpus::documents() {
        let ids = demo().encode(document, Specials::Parse);
        assert_eq!(&streamed(demo(), &ids, false), document);
    }
}

#[test]
fn half_a_character_is_held_back() {
    let byte = |b: u8| {
        let is_it = |&id: &u32| demo().token_bytes(id) == Some(&[b]);
        (0..demo().vocab_len() as u32).find(is_it).unwrap()
    };
    let mut stream = Detokenizer::new(true);
    let pieces: Vec<String> = "é🙂".bytes().map(|b| stream.push(demo(), byte(b)).to_owned()).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "🙂"]);
    assert_eq!(stream.push(demo(), byte(0xf0)), "");
    assert_eq!(stream.push(demo(), byte(b'x')), "\u{fffd}x");
    assert_eq!(stream.push(demo(), byte(0xe2)), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
}
