//! Sets of prompts: two inside the binary by name, or any file of lines.

use std::path::Path;

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::input;

/// (name, a JSON object with `prompt` on each line). Sources and licence: `bench/prompts/README.md`.
const SETS: [(&str, &str); 2] = [
    ("humaneval", include_str!("../../../bench/prompts/humaneval.jsonl")),
    ("gsm8k", include_str!("../../../bench/prompts/gsm8k.jsonl")),
];
/// What files call a prompt, in the order they are looked for.
const FIELDS: [&str; 3] = ["prompt", "question", "text"];

/// The prompts of a named set or of a file: each line a JSON object with one of [`FIELDS`], or the text itself.
pub(crate) fn load(set: &str) -> Result<Vec<String>> {
    if let Some((name, lines)) = SETS.iter().find(|s| s.0.eq_ignore_ascii_case(set)) {
        return parse(name, lines);
    }
    let path = Path::new(set);
    if !path.exists() {
        let names: Vec<&str> = SETS.iter().map(|s| s.0).collect();
        return Err(Failure::input(format!("{set}: No such file"))
            .hint(format!("the sets inside the binary are {}", names.join(" and "))));
    }
    parse(set, &input::read_file(path)?)
}

/// The length of prompts that `random:N` asks for.
pub(crate) fn random(set: &str) -> Result<Option<usize>> {
    let Some(length) = set.strip_prefix("random:") else { return Ok(None) };
    let found = length.parse::<usize>().ok().filter(|n| (1..=1 << 20).contains(n));
    found.map(Some).ok_or_else(|| {
        Failure::input(format!("--prompts {set}: `{length}` is no number of tokens from 1 to 1048576"))
            .hint("such as random:128")
    })
}

fn parse(name: &str, text: &str) -> Result<Vec<String>> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let found: Vec<String> = lines
        .map(|(i, line)| prompt(line).ok_or((i + 1, line)))
        .collect::<std::result::Result<_, _>>()
        .map_err(|(line, _)| {
            let fields = FIELDS.map(|f| format!("`{f}`")).join(", ");
            Failure::input(format!("{name}: line {line}: an object without a text in {fields}"))
        })?;
    if found.is_empty() {
        return Err(Failure::input(format!("{name}: holds no prompts"))
            .hint("one a line: plain text, or a JSON object with `prompt`"));
    }
    Ok(found)
}

fn prompt(line: &str) -> Option<String> {
    match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(object)) => {
            FIELDS.iter().find_map(|f| object.get(*f).and_then(Value::as_str)).map(String::from)
        }
        _ => Some(line.to_string()),
    }
    .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_inside_are_whole() {
        assert_eq!(load("humaneval").unwrap().len(), 164);
        let gsm8k = load("GSM8K").unwrap();
        assert_eq!(gsm8k.len(), 256);
        assert!(gsm8k[0].starts_with("Janet’s ducks"), "{}", gsm8k[0]);
    }

    #[test]
    fn lines_are_texts_or_objects_with_one() {
        let lines =
            "plain\n\n{\"question\": \"q\", \"answer\": \"a\"}\n{\"text\": \"t\", \"prompt\": \"p\"}\n[1]\n";
        assert_eq!(parse("f", lines).unwrap(), ["plain", "q", "p", "[1]"]);
        for (lines, message) in [
            ("", "f: holds no prompts"),
            ("\n \n", "f: holds no prompts"),
            ("a\n{\"x\": 1}\n", "f: line 2: an object without a text in `prompt`, `question`, `text`"),
            ("{\"prompt\": \"\"}", "line 1"),
            ("{\"prompt\": 3}", "line 1"),
        ] {
            let failure = parse("f", lines).unwrap_err();
            assert!(failure.message.contains(message), "{}", failure.message);
        }
    }
}
