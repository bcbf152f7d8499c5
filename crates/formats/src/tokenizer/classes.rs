//! Character classes as the pre-tokenizers' regular expressions use them, one byte of flags per character.

use std::sync::OnceLock;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// A set of the classes below.
pub(super) type Class = u8;

/// `\p{Lu}\p{Lt}`
pub(super) const UPPER: Class = 1;
/// `\p{Ll}`
pub(super) const LOWER: Class = 2;
/// `\p{Lm}\p{Lo}`: letters without case.
pub(super) const CASELESS: Class = 4;
/// `\p{M}`
pub(super) const MARK: Class = 8;
/// `\p{N}`
pub(super) const NUMBER: Class = 16;
/// `\s`
pub(super) const SPACE: Class = 32;
/// `[\r\n]`, which are in `\s` too.
pub(super) const NEWLINE: Class = 64;
/// `\p{L}`
pub(super) const LETTER: Class = UPPER | LOWER | CASELESS;

fn class_of(c: char) -> Class {
    let category = match get_general_category(c) {
        Category::UppercaseLetter | Category::TitlecaseLetter => UPPER,
        Category::LowercaseLetter => LOWER,
        Category::ModifierLetter | Category::OtherLetter => CASELESS,
        Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark => MARK,
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => NUMBER,
        _ => 0,
    };
    let space = if c.is_whitespace() { SPACE } else { 0 };
    let newline = if matches!(c, '\r' | '\n') { NEWLINE } else { 0 };
    category | space | newline
}

/// The classes of the first 65 536 code points in a table, made once from the category crate's search. Characters
/// above (emoji, rare scripts) ask the crate each time.
pub(super) struct Classes {
    table: Box<[Class]>,
}

impl Classes {
    pub(super) fn get() -> &'static Self {
        static CLASSES: OnceLock<Classes> = OnceLock::new();
        CLASSES.get_or_init(|| {
            let class = |code| char::from_u32(code).map_or(0, class_of);
            Classes { table: (0..0x1_0000).map(class).collect() }
        })
    }

    /// Class and length in bytes of the character at `at`; class 0 and length 0 at the end of the text.
    #[inline(always)]
    pub(super) fn at(&self, text: &str, at: usize) -> (Class, usize) {
        match text.as_bytes().get(at) {
            None => (0, 0),
            Some(&ascii) if ascii < 0x80 => (self.table[ascii as usize], 1),
            Some(_) => self.beyond_ascii(text, at),
        }
    }

    #[inline]
    fn beyond_ascii(&self, text: &str, at: usize) -> (Class, usize) {
        let bytes = text.as_bytes();
        let low = |offset: usize| u32::from(bytes[at + offset] & 0x3f);
        // A `str` holds whole characters, so the lead byte says how many follow.
        match bytes[at] {
            lead @ ..0xe0 => (self.table[(u32::from(lead & 0x1f) << 6 | low(1)) as usize], 2),
            lead @ ..0xf0 => (self.table[(u32::from(lead & 0x0f) << 12 | low(1) << 6 | low(2)) as usize], 3),
            lead => {
                let code = u32::from(lead & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3);
                (char::from_u32(code).map_or(0, class_of), 4)
            }
        }
    }

    /// Where the run of characters whose class meets `wanted` ends, starting at `at`.
    #[inline]
    pub(super) fn run(&self, text: &str, mut at: usize, wanted: impl Fn(Class) -> bool) -> usize {
        loop {
            let (class, len) = self.at(text, at);
            if len == 0 || !wanted(class) {
                return at;
            }
            at += len;
        }
    }
}
