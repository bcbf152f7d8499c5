//! Cutting text into the words that merging works inside. Each model family defines its words by a regular
//! expression with look-ahead; these are matchers written by hand that find the same words, each in one pass.
//!
//! Every expression below matches at every position, so the words tile the text. `tests/tokenizer` runs the true
//! expressions beside these matchers.

use super::classes::{CASELESS, Class, Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, SPACE, UPPER};

/// A way of cutting text into words, named as `tokenizer.ggml.pre` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pretokenizer {
    Qwen2,
    Qwen35,
    Gpt4o,
    LlamaBpe,
    Smollm,
    Gpt2,
}

/// Alternatives that the expressions share: a contraction, and the tail that deals with white space.
macro_rules! contraction {
    () => {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}
macro_rules! spaces {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

const QWEN2: &str =
    concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*", spaces!());
const QWEN35: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    spaces!()
);
const LLAMA_BPE: &str =
    concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*", spaces!());
const GPT_4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    contraction!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    contraction!(),
    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    spaces!()
);
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const EACH_DIGIT: &str = r"\p{N}";

impl Pretokenizer {
    pub const ALL: [Self; 6] =
        [Self::Qwen2, Self::Qwen35, Self::Gpt4o, Self::LlamaBpe, Self::Smollm, Self::Gpt2];

    /// The expressions that define the words, each applied to the pieces the one before left.
    pub fn regexes(self) -> &'static [&'static str] {
        match self {
            Self::Qwen2 => &[QWEN2],
            Self::Qwen35 => &[QWEN35],
            Self::Gpt4o => &[GPT_4O],
            Self::LlamaBpe => &[LLAMA_BPE],
            Self::Smollm => &[EACH_DIGIT, GPT_2],
            Self::Gpt2 => &[GPT_2],
        }
    }

    /// Values of `tokenizer.ggml.pre` that mean this one; the first is its own name.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Qwen2 => &["qwen2", "deepseek-r1-qwen", "kormo", "megrez"],
            Self::Qwen35 => &["qwen35"],
            Self::Gpt4o => &["gpt-4o", "llama4", "kanana2"],
            Self::LlamaBpe => &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
            Self::Smollm => &["smollm"],
            Self::Gpt2 => &["gpt-2"],
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pre| pre.names().contains(&name))
    }

    /// All names, for messages.
    pub(super) fn known_names() -> String {
        Self::ALL.map(|pre| pre.names().join(", ")).join(", ")
    }

    /// Calls `found` with each word of `text`, in order; together they are the text.
    #[inline]
    pub fn words<'t>(self, text: &'t str, mut found: impl FnMut(&'t str)) {
        let classes = Classes::get();
        match self {
            Self::Qwen2 => tile(text, |rest| modern(classes, rest, &QWEN2_RULES), found),
            Self::Qwen35 => tile(text, |rest| modern(classes, rest, &QWEN35_RULES), found),
            Self::LlamaBpe => tile(text, |rest| modern(classes, rest, &LLAMA_RULES), found),
            Self::Gpt4o => tile(text, |rest| gpt_4o(classes, rest), found),
            Self::Gpt2 => tile(text, |rest| gpt_2(classes, rest), found),
            // Digits cut first, so GPT-2's look-ahead ends at them: "a  1" is "a", "  ", "1".
            Self::Smollm => tile(
                text,
                |rest| match classes.at(rest, 0) {
                    (class, len) if class & NUMBER != 0 => len,
                    _ => classes.run(rest, 0, |class| class & NUMBER == 0),
                },
                |piece| tile(piece, |rest| gpt_2(classes, rest), &mut found),
            ),
        }
    }
}

/// Cuts `text` into pieces of the lengths that `first` finds at the front of what is left.
#[inline]
fn tile<'t>(mut text: &'t str, first: impl Fn(&str) -> usize, mut found: impl FnMut(&'t str)) {
    while !text.is_empty() {
        let (word, rest) = text.split_at(first(text));
        found(word);
        text = rest;
    }
}

/// Where qwen2, qwen35 and llama-bpe differ.
struct Rules {
    /// Classes that make up a word of letters.
    word: Class,
    /// Digits in one word at most.
    n_digits: usize,
}

const QWEN2_RULES: Rules = Rules { word: LETTER, n_digits: 1 };
const QWEN35_RULES: Rules = Rules { word: LETTER | MARK, n_digits: 1 };
const LLAMA_RULES: Rules = Rules { word: LETTER, n_digits: 3 };

/// `C|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,n}| ?[^\sW\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+` with W the word class.
#[inline]
fn modern(classes: &Classes, text: &str, rules: &Rules) -> usize {
    let (class, len) = classes.at(text, 0);
    let in_word = |class: Class| class & rules.word != 0;
    if let Some(end) = contraction(text, 0) {
        return end;
    }
    if class & (NEWLINE | LETTER | NUMBER) == 0 && in_word(classes.at(text, len).0) {
        return classes.run(text, len, in_word);
    }
    if in_word(class) {
        return classes.run(text, len, in_word);
    }
    if class & NUMBER != 0 {
        return digits(classes, text, rules.n_digits);
    }
    let symbols = symbols(classes, text, SPACE | NUMBER | rules.word);
    if symbols > 0 {
        return classes.run(text, symbols, |class| class & NEWLINE != 0);
    }
    white_space(classes, text, true)
}

/// Upper case then lower case make a word, with a contraction glued on:
/// `P?U*W+C?|P?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
#[inline]
fn gpt_4o(classes: &Classes, text: &str) -> usize {
    let (class, len) = classes.at(text, 0);
    // P is optional and taken when it can be: try behind it first.
    let after_prefix = if class & (NEWLINE | LETTER | NUMBER) == 0 { Some(len) } else { None };
    let starts = || after_prefix.into_iter().chain([0]);
    let word = starts()
        .find_map(|at| upper_then_lower(classes, text, at))
        .or_else(|| starts().find_map(|at| upper_only(classes, text, at)));
    if let Some(end) = word {
        return contraction(text, end).unwrap_or(end);
    }
    if class & NUMBER != 0 {
        return digits(classes, text, 3);
    }
    let symbols = symbols(classes, text, SPACE | NUMBER | LETTER);
    if symbols > 0 {
        let tail = text.as_bytes()[symbols..].iter().take_while(|b| matches!(b, b'\r' | b'\n' | b'/'));
        return symbols + tail.count();
    }
    white_space(classes, text, true)
}

const GPT_4O_UPPER: Class = UPPER | CASELESS | MARK;
const GPT_4O_LOWER: Class = LOWER | CASELESS | MARK;

/// `U*W+` at `at`. The sets overlap, so U* may have to give characters back: with no lower case letter behind the
/// run, W+ gets the run's last character that is in both sets, and the match ends there.
fn upper_then_lower(classes: &Classes, text: &str, mut at: usize) -> Option<usize> {
    let mut after_last_shared = None;
    loop {
        let (class, len) = classes.at(text, at);
        if class & GPT_4O_UPPER != 0 {
            at += len;
            if class & GPT_4O_LOWER != 0 {
                after_last_shared = Some(at);
            }
        } else if class & GPT_4O_LOWER != 0 {
            return Some(classes.run(text, at, |class| class & GPT_4O_LOWER != 0));
        } else {
            return after_last_shared;
        }
    }
}

/// `U+W*` at `at`, where `U*W+` did not match: no W is left to take.
fn upper_only(classes: &Classes, text: &str, at: usize) -> Option<usize> {
    let end = classes.run(text, at, |class| class & GPT_4O_UPPER != 0);
    (end > at).then_some(end)
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
#[inline]
fn gpt_2(classes: &Classes, text: &str) -> usize {
    let bytes = text.as_bytes();
    match bytes {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => return 2,
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => return 3,
        _ => {}
    }
    let start = usize::from(bytes.first() == Some(&b' '));
    let (class, len) = classes.at(text, start);
    if len > 0 && class & SPACE == 0 {
        const KINDS: Class = LETTER | NUMBER;
        let same = if class & LETTER != 0 { LETTER } else { class & NUMBER };
        return classes.run(text, start + len, |class| match same {
            0 => class & (KINDS | SPACE) == 0,
            _ => class & same != 0,
        });
    }
    white_space(classes, text, false)
}

/// End of `(?i:'s|'t|'re|'ve|'m|'ll|'d)` at `at`. Ignoring case, the long s is an s; no other letter here has such
/// a relative.
#[inline]
fn contraction(text: &str, at: usize) -> Option<usize> {
    let rest = text.as_bytes().get(at..)?;
    if rest.first() != Some(&b'\'') {
        return None;
    }
    let lower = |i: usize| rest.get(i).map(u8::to_ascii_lowercase);
    match (lower(1)?, lower(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) | (0xc5, Some(0xbf)) => Some(at + 3),
        _ => None,
    }
}

/// `\p{N}{1,max}`, where the first character is a number.
#[inline]
fn digits(classes: &Classes, text: &str, max: usize) -> usize {
    let mut end = 0;
    for _ in 0..max {
        let (class, len) = classes.at(text, end);
        if class & NUMBER == 0 {
            break;
        }
        end += len;
    }
    end
}

/// End of ` ?[^excluded]+`, or 0.
#[inline]
fn symbols(classes: &Classes, text: &str, excluded: Class) -> usize {
    let start = usize::from(text.as_bytes().first() == Some(&b' '));
    let end = classes.run(text, start, |class| class & excluded == 0);
    if end > start { end } else { 0 }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`, the first only where `lines`: up to the last line end of the run; else all but the
/// last space when something follows; else everything.
#[inline]
fn white_space(classes: &Classes, text: &str, lines: bool) -> usize {
    let (mut end, mut last, mut after_newline) = (0, 0, 0);
    loop {
        let (class, len) = classes.at(text, end);
        if class & SPACE == 0 {
            break;
        }
        last = end;
        end += len;
        if class & NEWLINE != 0 {
            after_newline = end;
        }
    }
    if lines && after_newline > 0 {
        after_newline
    } else if end == text.len() || last == 0 {
        // Only white space reaches here, so `end` is at least one character.
        end
    } else {
        last
    }
}
