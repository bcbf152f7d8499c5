//! Hand-written matchers against the true regular expressions, run by Oniguruma.

use overdraft_formats::tokenizer::Pretokenizer;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
};

use crate::corpus;

/// The expressions of one pre-tokenizer, compiled.
struct Regexes(Vec<Split>);

impl Regexes {
    fn of(pre: Pretokenizer) -> Self {
        let compile = |regex: &&str| {
            Split::new(SplitPattern::Regex(regex.to_string()), SplitDelimiterBehavior::Isolated, false)
                .unwrap()
        };
        Self(pre.regexes().iter().map(compile).collect())
    }

    fn words(&self, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        for split in &self.0 {
            split.pre_tokenize(&mut pieces).unwrap();
        }
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }
}

fn words(pre: Pretokenizer, text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    pre.words(text, |word| words.push(word));
    words
}

#[track_caller]
fn check_same(pre: Pretokenizer, regexes: &Regexes, text: &str) {
    let (ours, theirs) = (words(pre, text), regexes.words(text));
    if let Some(at) =
        (0..ours.len().max(theirs.len())).find(|&i| ours.get(i).copied() != theirs.get(i).map(String::as_str))
    {
        let from = at.saturating_sub(2);
        panic!(
            "{pre:?}, word {at}:\n ours  {:?}\n regex {:?}",
            &ours[from.min(ours.len())..(at + 3).min(ours.len())],
            &theirs[from.min(theirs.len())..(at + 3).min(theirs.len())]
        );
    }
}

#[test]
fn words_are_those_of_the_regex_on_a_megabyte() {
    for pre in Pretokenizer::ALL {
        let regexes = Regexes::of(pre);
        for document in corpus::documents() {
            check_same(pre, &regexes, document);
        }
    }
}

/// Each code point of the planes that have any, between letters, spaces, quotes, digits and line ends.
#[test]
fn words_are_those_of_the_regex_around_every_character() {
    let codes = (0..0x3_4000).chain(0xe_0000..0xe_0200).chain((0x4_0000..0x11_0000).step_by(0x3fff));
    let all: Vec<char> = codes.filter_map(char::from_u32).collect();
    for pre in Pretokenizer::ALL {
        let regexes = Regexes::of(pre);
        for chunk in all.chunks(512) {
            let text: String =
                chunk.iter().map(|c| format!("a{c}B {c} '{c}l{c}e1{c}{c}\n{c}!{c}'s")).collect();
            check_same(pre, &regexes, &text);
        }
    }
}

/// All short strings over one character of each class: every path through the alternatives and their backtracking.
#[test]
fn words_are_those_of_the_regex_on_every_short_string() {
    const CLASSES: [char; 13] = ['A', 'b', '中', '\u{301}', '7', ' ', '\n', '\r', '\t', '\'', '!', '/', 's'];
    for pre in Pretokenizer::ALL {
        let regexes = Regexes::of(pre);
        for n in 1..=4u32 {
            for code in 0..CLASSES.len().pow(n) {
                let text: String =
                    (0..n).map(|i| CLASSES[code / CLASSES.len().pow(i) % CLASSES.len()]).collect();
                check_same(pre, &regexes, &text);
            }
        }
    }
}

#[test]
#[rustfmt::skip]
fn words_read_as_the_model_cards_say() {
    use Pretokenizer::*;
    check(Qwen2,    "I'll pay 1234 €!\n\n  ok",  &["I", "'ll", " pay", " ", "1", "2", "3", "4", " €!\n\n", " ", " ok"]);
    check(LlamaBpe, "I'LL pay 1234 €",           &["I", "'LL", " pay", " ", "123", "4", " €"]);
    check(Qwen35,   "e\u{301}a \u{301}",         &["e\u{301}a", " \u{301}"]);
    check(Qwen2,    "e\u{301}a \u{301}",         &["e", "\u{301}a", " \u{301}"]);
    check(Gpt4o,    "HTMLParser's can't //\n/x", &["HTMLParser's", " can't", " //\n/", "x"]);
    check(Gpt4o,    "中A中aB",                   &["中A中a", "B"]);
    check(Smollm,   "a  12 it's IT'S",           &["a", "  ", "1", "2", " it", "'s", " IT", "'", "S"]);
    check(Gpt2,     "a  12 it's",                &["a", " ", " 12", " it", "'s"]);
}

#[track_caller]
fn check(pre: Pretokenizer, text: &str, expected: &[&str]) {
    assert_eq!(words(pre, text), expected, "{pre:?}");
}

#[test]
fn every_alias_names_one_pretokenizer() {
    for pre in Pretokenizer::ALL {
        for name in pre.names() {
            assert_eq!(Pretokenizer::from_name(name), Some(pre), "{name}");
        }
    }
    assert_eq!(Pretokenizer::from_name("default"), None);
}
