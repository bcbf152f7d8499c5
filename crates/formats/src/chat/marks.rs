//! Marks inside everything that spells a control token.

use std::collections::HashSet;

use serde_json::Value;

use crate::tokenizer::Tokenizer;

/// What could become a control token together with text beside it.
pub(super) struct Marks {
    beginnings: HashSet<String>,
    ends: HashSet<String>,
    /// Bytes of the longest of them.
    longest: usize,
}

impl Marks {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let ids = (0..tokenizer.vocab_len() as u32).filter(|id| tokenizer.is_control(*id));
        Self::of_controls(ids.filter_map(|id| tokenizer.token_text(id)))
    }

    fn of_controls(controls: impl Iterator<Item = impl AsRef<str>>) -> Self {
        let mut marks = Self { beginnings: HashSet::new(), ends: HashSet::new(), longest: 0 };
        for control in controls {
            let control = control.as_ref();
            for (at, _) in control.char_indices().skip(1) {
                marks.beginnings.insert(control[..at].into());
                marks.ends.insert(control[at..].into());
            }
            marks.longest = marks.longest.max(control.len());
        }
        marks
    }

    /// Whether any text in `value` needs a mark.
    pub(super) fn is_needed(&self, value: &Value, tokenizer: &Tokenizer) -> bool {
        match value {
            Value::String(text) => self.is_needed_in(text, tokenizer),
            Value::Array(items) => items.iter().any(|item| self.is_needed(item, tokenizer)),
            Value::Object(map) => map
                .iter()
                .any(|(key, value)| self.is_needed_in(key, tokenizer) || self.is_needed(value, tokenizer)),
            _ => false,
        }
    }

    pub(super) fn is_needed_in(&self, text: &str, tokenizer: &Tokenizer) -> bool {
        self.ends_control(text) || self.begins_control(text) || tokenizer.first_control(text).is_some()
    }

    /// `value` with marks in all of its texts, names of fields among them.
    pub(super) fn marked(&self, value: &Value, mark: char, tokenizer: &Tokenizer) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => {
                Value::String(self.marked_text(text, mark, |text| tokenizer.first_control(text))?)
            }
            Value::Array(items) => Value::Array(
                items.iter().map(|item| self.marked(item, mark, tokenizer)).collect::<Result<_, _>>()?,
            ),
            Value::Object(map) => {
                let field = |(key, value): (&String, &Value)| {
                    let key = self.marked_text(key, mark, |text| tokenizer.first_control(text))?;
                    Ok((key, self.marked(value, mark, tokenizer)?))
                };
                Value::Object(map.iter().map(field).collect::<Result<_, String>>()?)
            }
            other => other.clone(),
        })
    }

    /// A mark inside everything that spells a control token, and at an edge that could become part of one together with
    /// the template's text. `first_control` says where the first one is.
    fn marked_text(
        &self,
        text: &str,
        mark: char,
        first_control: impl Fn(&str) -> Option<std::ops::Range<usize>>,
    ) -> Result<String, String> {
        let mut out = String::with_capacity(text.len() + 8);
        if self.ends_control(text) {
            out.push(mark);
        }
        let mut rest = text;
        while let Some(control) = first_control(rest) {
            let mut letters = rest[control.start..].char_indices();
            letters.next();
            let behind_first = letters.next().map_or(rest.len(), |(at, _)| control.start + at);
            if behind_first >= control.end {
                // Nothing can be put inside one character. No vocabulary in use has such a control token.
                let spelt = &rest[control];
                return Err(format!("the text holds `{spelt}`, which this model keeps for its own control"));
            }
            out.push_str(&rest[..behind_first]);
            out.push(mark);
            rest = &rest[behind_first..];
        }
        out.push_str(rest);
        if self.begins_control(text) {
            out.push(mark);
        }
        Ok(out)
    }

    fn begins_control(&self, text: &str) -> bool {
        let from = text.len().saturating_sub(self.longest);
        (from..text.len()).any(|at| text.is_char_boundary(at) && self.beginnings.contains(&text[at..]))
    }

    fn ends_control(&self, text: &str) -> bool {
        let to = text.len().min(self.longest);
        (1..=to).any(|at| text.is_char_boundary(at) && self.ends.contains(&text[..at]))
    }
}

/// One of 6400 private-use characters that neither the values nor the texts hold. Were all of them taken, the last
/// would still guard, and be lost from the text.
pub(super) fn unused_character<'a>(
    values: impl Iterator<Item = &'a Value>,
    texts: impl Iterator<Item = &'a str>,
) -> char {
    const FIRST: u32 = 0xe000;
    const COUNT: usize = 6400;
    let mut is_used = vec![false; COUNT];
    let mut note = |text: &str| {
        for c in text.chars() {
            if let Some(used) = (c as u32).checked_sub(FIRST).and_then(|at| is_used.get_mut(at as usize)) {
                *used = true;
            }
        }
    };
    texts.for_each(&mut note);
    values.for_each(|value| each_text(value, &mut note));
    let free = is_used.iter().position(|used| !used).unwrap_or(COUNT - 1);
    char::from_u32(FIRST + free as u32).unwrap_or('\u{f8ff}')
}

fn each_text(value: &Value, note: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => note(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, note)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            note(key);
            each_text(value, note);
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_inside_control_spellings_and_at_risky_edges() {
        let check = |controls: &[&str], content: &str| {
            let find = |text: &str| {
                let spelt = |c: &&str| text.find(*c).map(|at| at..at + c.len());
                controls.iter().filter_map(spelt).min_by_key(|range| range.start)
            };
            Marks::of_controls(controls.iter()).marked_text(content, '_', find)
        };
        let controls = ["<|im_end|>", "</s>"];
        for (content, expected) in [
            ("hello", "hello"),
            ("a <|im_end|> b", "a <_|im_end|> b"),
            ("a </s></s>.", "a <_/s><_/s>."),
            ("x < y", "x < y"),
            ("open <|im_", "open <|im__"),
            ("end|> tail", "_end|> tail"),
            ("<|im_en</s>d|>!", "<|im_en<_/s>d|>!"),
            ("", ""),
        ] {
            assert_eq!(check(&controls, content).unwrap(), expected, "{content}");
        }
        assert!(check(&["#"], "a # b").is_err());
    }

    #[test]
    fn the_mark_occurs_nowhere() {
        let used = serde_json::json!({"\u{e000}": ["\u{e001}", {"a": "\u{e003}"}]});
        assert_eq!(unused_character([&used].into_iter(), ["x\u{e002}"].into_iter()), '\u{e004}');
    }
}
