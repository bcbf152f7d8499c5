//! Answers in every dialect, whole, broken and cut anywhere.

use std::sync::Arc;

use serde_json::json;

use super::dialect::Dialect;
use super::parser::{OutputParser, ParserStart};
use super::piece::Piece;
use super::tagged::CallStyle;
use crate::reasoning::Thinking;
use crate::tools::{ToolChoice, ToolSet};

const HERMES: Dialect = Dialect::Tagged(CallStyle::Hermes);
const XML: Dialect = Dialect::Tagged(CallStyle::Xml);
const LLAMA: Dialect = Dialect::Tagged(CallStyle::LeadingJson);
const HARMONY: Dialect = Dialect::Harmony;

fn start(dialect: Dialect, thinking: Thinking, has_tools: bool) -> ParserStart {
    let parameters =
        json!({"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}});
    let tools = ["f", "g"]
        .map(|name| json!({"type": "function", "function": {"name": name, "parameters": parameters}}));
    let choice = if has_tools { ToolChoice::Auto } else { ToolChoice::None };
    let (tools, _) = ToolSet::choose(&tools, &choice).unwrap();
    ParserStart { dialect, thinking, tools: Arc::new(tools) }
}

/// The answer in one line: `~thoughts~`, content, `[name args]`.
fn shown(pieces: &[Piece]) -> String {
    let mut out = String::new();
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => out += &format!("~{text}~"),
            Piece::Content(text) => out += text,
            Piece::CallStart { name, .. } => out += &format!("[{name} "),
            Piece::CallArgs { text, .. } => out += text,
            Piece::CallEnd { .. } => out += "]",
        }
    }
    out.replace("~~", "")
}

fn parse<'t>(start: &ParserStart, parts: impl IntoIterator<Item = &'t str>) -> Vec<Piece> {
    let mut parser = OutputParser::new(start, 7);
    let mut out = Vec::new();
    parts.into_iter().for_each(|part| parser.push(part, &mut out));
    parser.finish(&mut out);
    // Pieces of one kind, joined.
    let mut joined: Vec<Piece> = Vec::new();
    for piece in out {
        match (joined.last_mut(), &piece) {
            (Some(Piece::Reasoning(last)), Piece::Reasoning(text))
            | (Some(Piece::Content(last)), Piece::Content(text)) => {
                last.push_str(text);
            }
            (Some(Piece::CallArgs { text: last, .. }), Piece::CallArgs { text, .. }) => last.push_str(text),
            _ => joined.push(piece),
        }
    }
    joined
}

/// Every answer below, with what it means.
#[rustfmt::skip]
fn answers() -> Vec<(ParserStart, &'static str, &'static str, &'static str)> {
    use Thinking::{Closed, Never, Open, Possible};
    let hermes = || start(HERMES, Never, true);
    let thinks = |thinking| start(HERMES, thinking, true);
    let xml = || start(XML, Open, true);
    let llama = || start(LLAMA, Never, true);
    let harmony = || start(HARMONY, Never, true);
    vec![
        (hermes(), "Hello, <b>you</b>!\n\n", "Hello, <b>you</b>!\n\n", "plain text is what it is"),
        (hermes(), "  indented", "  indented", "leading space too"),
        (hermes(), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>", "[f {\"n\": 1}]", "one call"),
        (hermes(), "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n",
                   "Let me see.[f {}][g {}]", "text, then two at once"),
        (hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"a</tool_call>\\\"}\"}}</tool_call>done",
                   "[f {\"text\": \"a</tool_call>\\\"}\"}]done", "a tag inside a string"),
        (hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {}}{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
                   "[f {}][g {}]", "two in one block"),
        (hermes(), "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]</tool_call>", "[f {}][g {}]", "a list"),
        (hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "[f {}]", "the closing tag is missing"),
        (hermes(), "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", "[f {\"n\":3}]", "written as tags"),
        (hermes(), "a <tool_call> {\"name\": \"f\", \"arguments\": {\"n\":}} b</tool_call>", "a[f {\"n\":}]b</tool_call>", "a call from where its arguments begin, though they are no JSON"),
        (hermes(), "a <tool_call> {\"name\": \"h\", \"arguments\": {\"n\":}} b</tool_call>", "a <tool_call> {\"name\": \"h\", \"arguments\": {\"n\":}} b</tool_call>", "no JSON, and nobody's name"),
        (hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}</tool_call>.", "[f {\"n\": 1}].", "the last brace is missing"),
        (hermes(), "<tool_call>{\"arguments\": {\"n\": 1}, \"name\": \"f\"}</tool_call>", "[f {\"n\": 1}]", "the name behind"),
        (hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"a\n\tb\"}, \"id\": 3}</tool_call>", "[f {\"text\": \"a\\n\\tb\"}]", "a raw line break, and more behind"),
        (hermes(), "x <tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"a", "x[f {\"text\": \"a", "cut off in the arguments"),
        (hermes(), "the tag <tool_call> is", "the tag <tool_call> is", "only named"),
        (hermes(), "x <tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "x <tool_call>[f {}]", "opened twice"),
        (hermes(), "x\n<tool_call>\n{\"name\": \"f\", \"arg", "x\n<tool_call>\n{\"name\": \"f\", \"arg", "cut off"),
        (hermes(), "x <tool_c", "x <tool_c", "cut off in the tag"),
        (hermes(), "<tool_call>{\"n\": 1}</tool_call>", "<tool_call>{\"n\": 1}</tool_call>", "JSON, and no call"),
        (hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1]}</tool_call>", "[f {\"n\": 1]]}</tool_call>", "crossed brackets"),
        (start(HERMES, Never, false), "<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", "nothing to call"),

        (thinks(Possible), "<think>\nhm\n\n</think>\n\nYes.", "~hm~Yes.", "thoughts opened by the model"),
        (thinks(Possible), "Yes. <think>no</think>", "Yes. <think>no</think>", "thoughts come first or not at all"),
        (thinks(Open), "\nhm <tool_call> hm\n</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>", "~hm <tool_call> hm~[f {}]", "opened by the prompt"),
        (thinks(Open), "hm, never done", "~hm, never done~", "thoughts without end"),
        (thinks(Closed), "Yes.", "Yes.", "closed by the prompt"),
        (thinks(Closed), "<think>still</think>Yes.", "~still~Yes.", "the model thinks all the same"),
        (thinks(Never), "<think>", "<think>", "a model without thoughts"),

        (xml(), "hm</think>\n\n<tool_call>\n<function=f>\n<parameter=n>\n-2\n</parameter>\n<parameter=text>\nline 1\n\n</function> </tool_call>\n</parameter>\n</function>\n</tool_call>",
                "~hm~[f {\"n\":-2,\"text\":\"line 1\\n\\n</function> </tool_call>\"}]", "tags, typed by the schema"),
        (xml(), "</think><function=f>\n</function>\n<function=h>\n<parameter=n>1</parameter></function></tool_call>", "[f {}][h {\"n\":\"1\"}]</tool_call>", "without the outer tag; unknown functions have no types"),
        (xml(), "</think><tool_call>{\"name\": \"f\"}</tool_call>", "[f {}]", "JSON where tags are usual"),
        (xml(), "</think>a <function=f> b", "a <function=f> b", "text behind the name"),
        (xml(), "</think><tool_call>\n<function=f>\n<parameter=n>\n3", "<tool_call>\n<function=f>\n<parameter=n>\n3", "cut off"),

        (xml(), "</think><function=f>\n<parameter=n>\n1\n</parameter>\n</tool_call> b", "[f {\"n\":1}]</tool_call> b", "the end of the function is missing"),
        (xml(), "</think><tool_call>\n<function=f>\n<parameter=text>\n\"</parameter\n<parameter=n>\n3", "[f {\"text\":\"\\\"</parameter\\n<parameter=n>\\n3", "cut off in a text"),

        (llama(), "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "[f {\"n\": 1}]", "the answer is a call"),
        (llama(), " <|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "[f {}][g {}]", "two, set apart"),
        (llama(), "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]", "[f {}][g {}]", "Mistral's list"),
        (llama(), "[{\"name\": \"f\", \"arguments\": {\"n\": 1}},\n{\"name\": \"h\"}, {\"name\": \"g\", \"arguments\": {}} ] end", "[f {\"n\": 1}][h {}][g {}]end", "a list that goes on"),
        (llama(), "[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, 3]", "[f {\"n\": 1}]3]", "a list that goes on with something else"),
        (llama(), "[1, 2]", "[1, 2]", "a list of something else"),
        (llama(), "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "[f {}]", "with its type"),
        (llama(), "{\"answer\": {\"name\": 1}}", "{\"answer\": {\"name\": 1}}", "JSON that is no call"),
        (llama(), "See {\"name\": \"f\"}", "See {\"name\": \"f\"}", "behind text it is text"),
        (llama(), "{\"name\": \"Ann\", \"parameters\": 3}", "{\"name\": \"Ann\", \"parameters\": 3}", "arguments that are none"),

        (harmony(), "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "~hm~Yes.", "thoughts and answer"),
        (harmony(), "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
                    "~hm~[f {\"n\": 1}]", "a call"),
        (harmony(), "<|channel|>commentary to=functions.f<|message|>{}", "[f {}]", "the end token is no text"),
        (harmony(), " to=functions.f<|channel|>commentary json<|message|>{}<|call|><|start|>assistant to=functions.g<|channel|>commentary<|message|><|call|>",
                    "[f {}][g {}]", "addressed in the role"),
        (harmony(), "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>There.<|return|>", "I look.\nThere.", "a preamble"),
        (harmony(), "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": ", "[f {\"n\": ", "cut off"),
        (harmony(), "<|channel|>commentary to=functions.h<|message|>{\"n\": ", "<|channel|>commentary to=functions.h<|message|>{\"n\": ", "cut off, and nobody's name"),
        (harmony(), "<|channel|>commentary to=functions.f<|message|>{\"n\": 1} so<|end|><|start|>assistant<|channel|>final<|message|>x", "[f {\"n\": 1}]so\nx", "text behind the arguments"),
        (harmony(), "<|channel|>commentary to=functions.f<|message|>{\"n\": <|call|><|start|>assistant<|channel|>final<|message|>x", "[f {\"n\": ]x", "ended in the arguments"),
        (harmony(), "<|channel|>analysis to=python<|message|>1+1<|call|>", "~1+1~", "to somebody we are not"),
        (harmony(), "as plain text", "as plain text", "no header at all"),
        (harmony(), "a < b <|nonsense|> c", "a < b <|nonsense|> c", "a tag that is none"),
        (harmony(), "<|channel|>final<|message|>x<|channel|>final<|message|>y", "x\ny", "an end is missing"),
        (harmony(), "<|channel|>ana", "", "cut off in a header"),
        (start(HARMONY, Never, false), "<|channel|>commentary to=functions.f<|message|>{}<|call|>", "{}", "nothing to call"),
    ]
}

#[test]
fn answers_mean_what_the_dialect_says() {
    for (start, text, expected, case) in answers() {
        assert_eq!(shown(&parse(&start, [text])), expected, "{case}");
    }
}

#[test]
fn how_the_text_is_cut_changes_nothing() {
    for (start, text, _, case) in answers() {
        let whole = parse(&start, [text]);
        let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
        for &cut in &cuts {
            assert_eq!(parse(&start, [&text[..cut], &text[cut..]]), whole, "{case}, cut at {cut}");
        }
        // All pairs of cuts where they are few enough, and every character alone.
        for (i, &a) in cuts.iter().enumerate().take(60) {
            for &b in cuts[i + 1..].iter().take(60) {
                assert_eq!(
                    parse(&start, [&text[..a], &text[a..b], &text[b..]]),
                    whole,
                    "{case}, cut at {a} and {b}"
                );
            }
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(parse(&start, single.iter().map(String::as_str)), whole, "{case}, character by character");
    }
}

#[test]
fn text_is_given_out_as_soon_as_it_is_certain() {
    let mut parser = OutputParser::new(&start(HERMES, Thinking::Possible, true), 1);
    for (text, expected) in [
        ("<think>", ""),
        ("a", "~a~"),
        (" b", "~ b~"),
        ("</thi", ""),
        ("s", "~</this~"),
        ("</think>\n", ""),
        ("x", "x"),
        ("<", ""),
        ("y", "<y"),
        ("<tool_call>", ""),
        ("{\"name\": \"h\"", ""),
        ("}", "[h {}]"),
        ("</tool_call>", ""),
        ("<tool_call>{\"name\": \"f\", ", ""),
        ("\"arguments\": ", ""),
        ("{", "[f {"),
        ("\"text\": \"a", "\"text\": \"a"),
        ("b\n", "b\\n"),
        ("\"}", "\"}]"),
        ("}</tool_call>", ""),
    ] {
        let mut out = Vec::new();
        parser.push(text, &mut out);
        assert_eq!(shown(&out), expected, "after {text}");
    }
}

#[test]
fn calls_have_numbers_and_ids_of_their_own() {
    let text = "<tool_call>{\"name\": \"f\"}</tool_call>".repeat(3);
    let ids = |seed| {
        let mut parser = OutputParser::new(&start(HERMES, Thinking::Never, true), seed);
        let mut out = Vec::new();
        parser.push(&text, &mut out);
        let ids: Vec<(usize, String)> = out
            .into_iter()
            .filter_map(|p| if let Piece::CallStart { index, id, .. } = p { Some((index, id)) } else { None })
            .collect();
        ids
    };
    let (first, second) = (ids(1), ids(2));
    assert_eq!(first.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2]);
    let mut all: Vec<&String> = first.iter().chain(&second).map(|(_, id)| id).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 6);
}

#[test]
fn memory_is_bounded_and_nothing_is_lost_by_it() {
    for (dialect, opening) in [
        (HERMES, "<tool_call>{\"name\": \""),
        (HERMES, "<tool_call>"),
        (XML, "<function=f><parameter=n>"),
        (LLAMA, "{\"name\": \""),
        (HARMONY, "<|channel|>commentary to=functions.f<|message|>"),
        (HARMONY, "<|channel|>"),
    ] {
        let filler = " ".repeat(1 << 10);
        let mut parser = OutputParser::new(&start(dialect, Thinking::Never, true), 1);
        let mut out = Vec::new();
        parser.push(opening, &mut out);
        for _ in 0..1030 {
            parser.push(&filler, &mut out);
        }
        assert!(!out.is_empty(), "{opening}: still held after 1 MiB");
        parser.finish(&mut out);
        let text: usize = out.iter().map(|p| if let Piece::Content(text) = p { text.len() } else { 0 }).sum();
        assert_eq!(text, opening.len() + 1030 * filler.len(), "{opening}");
    }
    // So is what may stand behind the arguments.
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}";
    let pieces = parse(&start(HERMES, Thinking::Never, true), [call, ", ".repeat(1000).as_str()]);
    assert_eq!(shown(&pieces), format!("[f {{}}]{}", ", ".repeat(1000)));
    // More calls than anybody makes are text.
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let pieces = parse(&start(HERMES, Thinking::Never, true), [call.repeat(130).as_str()]);
    assert_eq!(pieces.iter().filter(|p| matches!(p, Piece::CallEnd { .. })).count(), 128);
    assert_eq!(pieces.last(), Some(&Piece::Content(call.repeat(2))));
}

/// What the tests below put together: parts that matter to some dialect, and some that do not.
const FRAGMENTS: [&str; 30] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "</function>",
    "<parameter=n>",
    "</parameter>",
    "<function=",
    "<|python_tag|>",
    "<|channel|>",
    "analysis",
    "final",
    "commentary to=functions.f ",
    "<|message|>",
    "<|start|>",
    "assistant",
    "<|end|>",
    "<|call|>",
    "<|constrain|>json",
    "{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
    "{\"name\"",
    "}",
    "{",
    "\"",
    "[",
    "; ",
    "\n",
    " text é ",
    "<",
];

/// Answers made of fragments, and known answers with a piece cut out, doubled or put elsewhere.
fn mutations(seed: u64) -> (ParserStart, String) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x51;
    let mut draw = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    if draw(2) == 0 {
        let known = answers();
        let (start, text, ..) = &known[draw(known.len())];
        let mut chars: Vec<char> = text.chars().collect();
        for _ in 0..1 + draw(3) {
            let from = draw(chars.len() + 1);
            let to = (from + draw(12)).min(chars.len());
            let part: Vec<char> = chars[from..to].to_vec();
            match draw(3) {
                0 => drop(chars.drain(from..to)),
                1 => drop(chars.splice(from..from, part)),
                _ => {
                    let fragment = FRAGMENTS[draw(FRAGMENTS.len())];
                    drop(chars.splice(from..from, fragment.chars()));
                }
            }
        }
        return (start.clone(), chars.into_iter().collect());
    }
    let dialect = [HERMES, XML, LLAMA, HARMONY][draw(4)];
    let thinking = [Thinking::Never, Thinking::Possible, Thinking::Open, Thinking::Closed][draw(4)];
    let has_tools = draw(4) > 0;
    let text = (0..draw(20)).map(|_| FRAGMENTS[draw(FRAGMENTS.len())]).collect();
    (start(dialect, thinking, has_tools), text)
}

#[test]
fn no_text_makes_the_parser_fail_lose_or_depend_on_the_cut() {
    for seed in 0..20_000 {
        let (start, text) = mutations(seed);
        let whole = parse(&start, [text.as_str()]);
        let single: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(parse(&start, single.iter().map(String::as_str)), whole, "{start:?} {text:?}");
        let cut = text.floor_char_boundary(seed as usize % (text.len() + 1));
        assert_eq!(parse(&start, [&text[..cut], &text[cut..]]), whole, "{start:?} {text:?} cut at {cut}");
        let mut open = None;
        for piece in &whole {
            match piece {
                Piece::CallStart { index, name, .. } => {
                    assert!(open.is_none() && !name.is_empty());
                    open = Some(*index);
                }
                Piece::CallArgs { index, text } => {
                    assert_eq!(open, Some(*index));
                    assert!(text.starts_with('{'), "{text}");
                }
                Piece::CallEnd { index } => assert_eq!(open.take(), Some(*index)),
                Piece::Reasoning(text) | Piece::Content(text) => assert!(open.is_none() && !text.is_empty()),
            }
        }
        // Without a call all of the text is there, but for tags and the space beside them.
        let is_harmony = start.dialect == HARMONY;
        if !is_harmony && !whole.iter().any(|p| matches!(p, Piece::CallStart { .. })) {
            let bare = |text: &str| {
                let text = text.replace("<think>", "").replace("</think>", "").replace('~', "");
                text.chars().filter(|c| !c.is_whitespace()).collect::<String>()
            };
            assert_eq!(bare(&shown(&whole)), bare(&text), "{start:?}");
        }
        // Where nothing may be called and nobody thinks, text is text.
        if !is_harmony && start.tools.is_empty() && start.thinking == Thinking::Never && !text.is_empty() {
            assert_eq!(whole, [Piece::Content(text)]);
        }
    }
}

type Called = (&'static str, Args);
type Args = serde_json::Map<String, serde_json::Value>;

/// A JSON object of the two parameters that the functions have, in a spelling of chance.
fn some_args(draw: &mut impl FnMut(usize) -> usize) -> Args {
    const TEXTS: [&str; 8] = [
        "",
        "plain",
        "line\nline\n",
        "</parameter",
        "\"quoted\\\"",
        "{\"a\": [",
        "é\u{1F600}\t<",
        "\n</tool_call>x",
    ];
    let mut args = serde_json::Map::new();
    if draw(4) > 0 {
        let text: String = (0..draw(4)).map(|_| TEXTS[draw(TEXTS.len())]).collect();
        args.insert("text".into(), text.into());
    }
    if draw(3) > 0 {
        args.insert("n".into(), (draw(1000) as i64 - 500).into());
    }
    args
}

#[test]
fn calls_are_the_same_whole_and_in_tokens_of_any_length() {
    for seed in 0..4_000u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x77;
        let mut draw = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let form = draw(5);
        let calls: Vec<Called> =
            (0..1 + draw(3)).map(|_| (["f", "g"][draw(2)], some_args(&mut draw))).collect();
        let json = |key: &str, (name, args): &Called| {
            format!("{{\"name\": \"{name}\", \"{key}\": {}}}", serde_json::Value::from(args.clone()))
        };
        let tag = |(key, value): (&String, &serde_json::Value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), String::from);
            format!("<parameter={key}>\n{value}\n</parameter>\n")
        };
        let joined = |between: &str, one: &dyn Fn(&Called) -> String| {
            calls.iter().map(one).collect::<Vec<_>>().join(between)
        };
        let (dialect, text) = match form {
            0 => (HERMES, joined("\n", &|c| format!("<tool_call>\n{}\n</tool_call>", json("arguments", c)))),
            1 => (
                XML,
                joined("\n", &|(name, args)| {
                    let args: String = args.iter().map(tag).collect();
                    format!("<tool_call>\n<function={name}>\n{args}</function>\n</tool_call>")
                }),
            ),
            2 => (LLAMA, joined("; ", &|c| json("parameters", c))),
            3 => (LLAMA, format!("[{}]", joined(", ", &|c| json("arguments", c)))),
            _ => (
                HARMONY,
                joined("<|start|>assistant", &|(name, args)| {
                    let args = serde_json::Value::from(args.clone());
                    format!(
                        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{args}<|call|>"
                    )
                }),
            ),
        };
        let start = start(dialect, Thinking::Never, true);
        let whole = parse(&start, [text.as_str()]);
        let expected: String = calls
            .iter()
            .map(|(name, args)| format!("[{name} {}]", serde_json::Value::from(args.clone())))
            .collect();
        assert_eq!(shown(&whole), expected, "{text}");
        let longest = 1 + draw(12);
        let (mut parts, mut rest) = (Vec::new(), text.as_str());
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.ceil_char_boundary((1 + draw(longest)).min(rest.len())));
            parts.push(part);
            rest = behind;
        }
        assert_eq!(parse(&start, parts.iter().copied()), whole, "{text}");
        // Nothing but the beginning of a call, a number and the end of a value is held back.
        let mut parser = OutputParser::new(&start, 7);
        let mut longest_hold = 0;
        let mut held = 0;
        for part in parts {
            let mut out = Vec::new();
            parser.push(part, &mut out);
            held = if out.is_empty() { held + part.len() } else { 0 };
            longest_hold = longest_hold.max(held);
        }
        assert!(longest_hold < 120, "{longest_hold} bytes were held of {text}");
    }
}
