//! Random walks under the mask: whatever is drawn, the text fits the schema, by a judge of its own.

use std::sync::{Arc, OnceLock};

use overdraft_engine::Constraint;
use overdraft_formats::tokenizer::{Specials, Tokenizer};
use serde_json::{Value, json};

use super::{Grammars, ResponseFormat, plain_constraint};
use crate::output::{ChatFormat, Conversation, Piece, ToolChoice};
use crate::test_data::{demo_tokenizer, fetched_tokenizer};

pub(super) fn grammars() -> Arc<Grammars> {
    Arc::new(Grammars::new(demo_tokenizer()))
}

pub(super) struct Draws(u64);

impl Draws {
    /// Below `n`.
    fn next(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn mask(constraint: &mut dyn Constraint, vocab: usize) -> Vec<u32> {
    let mut words = vec![0; vocab.div_ceil(32)];
    constraint.mask(&mut words);
    words
}

fn allowed(words: &[u32]) -> Vec<u32> {
    let bits = |(at, word): (usize, &u32)| {
        let word = *word;
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 32 + bit)
    };
    words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(bits).collect()
}

/// Draws tokens among those allowed until the text ends. At first it tries to open a call, every other time; after a
/// while to end what is open, or most walks would stay in one string for ever.
fn walk(constraint: &mut dyn Constraint, tokenizer: &Tokenizer, seed: u64) -> String {
    let mut draws = Draws(seed);
    let mut ids = Vec::new();
    let ends = ["\"", "}", "]", "\n</parameter>\n", "</think>", "<|end|>", "<tool_call>", "0"]
        .map(|text| tokenizer.encode(text, Specials::Parse));
    let openings = ["{\"name\": \"", "<|channel|>commentary to=functions.", "<tool_call>"]
        .map(|text| tokenizer.encode(text, Specials::Parse));
    for step in 0..1500 {
        if let Some(opening) = openings.get(step)
            && seed.is_multiple_of(2)
            && try_all(constraint, opening)
        {
            ids.extend(opening);
        }
        let tokens = allowed(&mask(constraint, tokenizer.vocab_len()));
        assert!(!tokens.is_empty(), "nowhere to go behind {:?}", tokenizer.decode(&ids, false));
        let forbidden = draws.next(tokenizer.vocab_len()) as u32;
        if !tokens.contains(&forbidden) {
            assert!(!constraint.accept(forbidden), "{forbidden} was not in the mask");
        }
        let is_end = |token: &u32| tokenizer.is_end(*token);
        if let Some(end) = tokens.iter().find(|token| is_end(token))
            && (step > 60 || draws.next(3) == 0 || tokens.iter().all(is_end))
        {
            assert!(constraint.accept(*end));
            assert!(mask(constraint, tokenizer.vocab_len()).iter().all(|w| *w == 0), "over is over");
            return tokenizer.decode(&ids, false);
        }
        let end = &ends[draws.next(ends.len())];
        if step > 40 && try_all(constraint, end) {
            ids.extend(end);
            continue;
        }
        let inside: Vec<u32> = tokens.into_iter().filter(|token| !is_end(token)).collect();
        let token = inside[draws.next(inside.len())];
        let text = || tokenizer.decode(&ids, false);
        assert!(constraint.accept(token), "{token} was in the mask behind {:?}", text());
        ids.push(token);
    }
    panic!("no end behind {:?}", tokenizer.decode(&ids, false));
}

/// All of them, or none.
fn try_all(constraint: &mut dyn Constraint, tokens: &[u32]) -> bool {
    let n_accepted = tokens.iter().take_while(|token| constraint.accept(**token)).count();
    if n_accepted < tokens.len() {
        constraint.rollback(n_accepted);
    }
    n_accepted == tokens.len()
}

/// Nothing, or where `value` does not fit. Knows the keywords used below and no others.
fn misfit(value: &Value, schema: &Value, root: &Value) -> Option<String> {
    let wrong = |what: &str| Some(format!("{what}: {value} against {schema}"));
    let map = schema.as_object().expect("schemas here are objects");
    for (keyword, rule) in map {
        let number = || rule.as_f64().unwrap();
        let fits = match keyword.as_str() {
            "type" => {
                let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                names.iter().any(|name| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                })
            }
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => value == rule,
            "minimum" => value.as_f64().is_none_or(|n| n >= number()),
            "maximum" => value.as_f64().is_none_or(|n| n <= number()),
            "minLength" => value.as_str().is_none_or(|s| s.chars().count() as f64 >= number()),
            "maxLength" => value.as_str().is_none_or(|s| s.chars().count() as f64 <= number()),
            "minItems" => value.as_array().is_none_or(|a| a.len() as f64 >= number()),
            "maxItems" => value.as_array().is_none_or(|a| a.len() as f64 <= number()),
            "pattern" => value.as_str().is_none_or(|s| {
                assert_eq!(rule, "^[a-z]{2}-[0-9]+$", "the one pattern this judge knows");
                let b = s.as_bytes();
                b.len() > 3
                    && b[..2].iter().all(u8::is_ascii_lowercase)
                    && b[2] == b'-'
                    && b[3..].iter().all(u8::is_ascii_digit)
            }),
            "required" => value
                .as_object()
                .is_none_or(|o| rule.as_array().unwrap().iter().all(|k| o.contains_key(k.as_str().unwrap()))),
            "additionalProperties" => {
                assert_eq!(*rule, json!(false));
                value.as_object().is_none_or(|o| o.keys().all(|k| schema["properties"].get(k).is_some()))
            }
            "properties" => {
                let fields = rule.as_object().unwrap().iter().filter_map(|(k, s)| Some((value.get(k)?, s)));
                return_first(fields.map(|(v, s)| misfit(v, s, root)))?
            }
            "items" => return_first(value.as_array().into_iter().flatten().map(|v| misfit(v, rule, root)))?,
            "anyOf" => rule.as_array().unwrap().iter().any(|s| misfit(value, s, root).is_none()),
            "$ref" => {
                let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                misfit(value, &root["$defs"][name], root).is_none()
            }
            "$defs" | "description" => true,
            other => panic!("the judge does not know `{other}`"),
        };
        if !fits {
            return wrong(keyword);
        }
    }
    None
}

/// `Some(true)` where all fit; a misfit below is one above.
fn return_first(mut found: impl Iterator<Item = Option<String>>) -> Option<bool> {
    Some(!found.any(|misfit| misfit.is_some()))
}

#[rustfmt::skip]
fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 5}),
        json!({"enum": ["red", "green", 3, null, {"a": [1]}]}),
        json!({"type": "object", "properties": {"kind": {"const": "x\"y"}, "tags": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 4}, "maxItems": 3}, "on": {"type": ["boolean", "null"]}}, "required": ["kind", "on"], "additionalProperties": false}),
        json!({"type": "string", "pattern": "^[a-z]{2}-[0-9]+$", "maxLength": 10}),
        json!({"anyOf": [{"type": "integer", "minimum": -5, "maximum": 5}, {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}]}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"leaf": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["leaf"], "additionalProperties": false}}}),
        json!({"type": "object"}),
    ]
}

#[test]
fn random_walks_under_a_schema_always_fit_it() {
    let grammars = grammars();
    let mut n_texts = 0;
    for schema in schemas() {
        for strict in [true, false] {
            let format = ResponseFormat::JsonSchema { schema: schema.clone(), strict };
            for seed in 0..15 {
                let mut constraint = plain_constraint(&format, &grammars).unwrap().unwrap();
                let text = walk(&mut *constraint, grammars.tokenizer(), seed);
                let value: Value =
                    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {e} in {text:?}"));
                assert_eq!(misfit(&value, &schema, &schema), None, "{text}");
                n_texts += 1;
            }
        }
    }
    assert_eq!(n_texts, 240);
}

#[test]
fn the_judge_can_tell() {
    let schema = &schemas()[0];
    for (value, fits) in [
        (json!({"name": "a", "age": 3}), true),
        (json!({"name": "a"}), false),
        (json!({"name": "a", "age": -1}), false),
        (json!({"name": "a", "age": 3, "x": 1}), false),
        (json!({"name": 1, "age": 3}), false),
    ] {
        assert_eq!(misfit(&value, schema, schema).is_none(), fits, "{value}");
    }
}

#[test]
fn other_formats_hold_too() {
    let grammars = grammars();
    let lark = "start: \"<\" word (\" \" word)* \">\"\nword: /[ab]{1,3}/";
    let gbnf = "root ::= \"<\" word (\" \" word)* \">\"\nword ::= [ab]{1,3}";
    let is_words = |text: &str| {
        let inner = text.strip_prefix('<').and_then(|t| t.strip_suffix('>')).unwrap();
        inner.split(' ').all(|w| (1..=3).contains(&w.len()) && w.bytes().all(|b| b == b'a' || b == b'b'))
    };
    let choices = vec!["yes".to_string(), "no \"way\"\n".into(), "yes!".into()];
    let is_choice = |text: &str| choices.iter().any(|c| c == text);
    let is_date = |text: &str| text.len() == 5 && text.as_bytes()[2] == b'/';
    let is_object = |text: &str| serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok();
    type Judge<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(ResponseFormat, Judge<'_>); 5] = [
        (ResponseFormat::Grammar(lark.into()), &is_words),
        (ResponseFormat::Grammar(gbnf.into()), &is_words),
        (ResponseFormat::Choice(choices.clone()), &is_choice),
        (ResponseFormat::Regex(r"[0-9]{2}/\d{2}".into()), &is_date),
        (ResponseFormat::JsonObject, &is_object),
    ];
    for (format, fits) in cases {
        for seed in 0..10 {
            let mut constraint = plain_constraint(&format, &grammars).unwrap().unwrap();
            let text = walk(&mut *constraint, grammars.tokenizer(), seed);
            assert!(fits(&text), "{format:?}: {text:?}");
        }
    }
    assert!(plain_constraint(&ResponseFormat::Text, &grammars).unwrap().is_none());
}

#[test]
fn what_may_come_next_follows_from_the_tokens_accepted_alone() {
    let grammars = grammars();
    let vocab = grammars.tokenizer().vocab_len();
    let schemas = schemas().into_iter().map(|schema| ResponseFormat::JsonSchema { schema, strict: true });
    // Bytes that need not be text, among which the library finds control tokens.
    let bytes = ResponseFormat::Grammar("start: ~/(?s:.*)a(?s:.*)/".into());
    for (i, format) in schemas.chain([bytes]).enumerate() {
        let fresh = || plain_constraint(&format, &grammars).unwrap().unwrap();
        let mut tried = fresh();
        let mut path: Vec<u32> = Vec::new();
        let mut draws = Draws(i as u64);
        for _ in 0..40 {
            // Some tokens of a draft, looked at or not, and taken back in part.
            let mut n_drafted = 0;
            while n_drafted < 1 + draws.next(6) {
                let tokens = allowed(&mask(&mut *tried, vocab));
                let Some(token) = tokens.get(draws.next(tokens.len().max(1))) else { break };
                assert!(tried.accept(*token));
                path.push(*token);
                n_drafted += 1;
            }
            let n_back = draws.next(n_drafted + 1);
            tried.rollback(n_back);
            path.truncate(path.len() - n_back);
            let mut straight = fresh();
            assert!(path.iter().all(|token| straight.accept(*token)));
            assert_eq!(mask(&mut *tried, vocab), mask(&mut *straight, vocab), "behind {path:?}");
        }
    }
}

/// Templates in the style of each dialect, with nothing but what the dialect is told by; and the tokenizer to use.
const TEMPLATES: [(&str, &str, &str); 6] = [
    ("hermes", "{{ tools }}<tool_call>", "demo"),
    ("qwen-xml", "{{ tools }}<tool_call><function=<parameter=", "demo"),
    ("llama3-json", "{{ tools }}<|start_header_id|>{{ tool_calls }}", "demo"),
    ("hermes", "{{ tools }}<tool_call></think><think>", "demo"),
    ("hermes", "{{ tools }}<tool_call></think>", "tokenizer-qwen3"),
    ("harmony", "{{ tools }}<|channel|><|message|>", "tokenizer-gptoss"),
];

/// Dialect, template, and what is made of them.
type Model = (&'static str, &'static str, ChatFormat, Arc<Tokenizer>);

/// A model with each of them. Made once: sorting 200 000 tokens takes seconds here.
fn models() -> &'static [Model] {
    static MODELS: OnceLock<Vec<Model>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let model = |(dialect, source, tokenizer): (&'static str, &'static str, &str)| {
            let tokenizer = named_tokenizer(tokenizer);
            let chat = ChatFormat::new("test", source, tokenizer.clone()).unwrap();
            assert_eq!(chat.dialect_name(), dialect);
            (dialect, source, chat, tokenizer)
        };
        TEMPLATES.into_iter().map(model).collect()
    })
}

fn named_tokenizer(name: &str) -> Arc<Tokenizer> {
    if name == "demo" { demo_tokenizer() } else { fetched_tokenizer(name) }
}

#[test]
fn forced_calls_are_calls_of_the_tools_that_may_be_called() {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city", "days"], "additionalProperties": false});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    for &(dialect, source, ref chat, ref tokenizer) in models() {
        for (choice, names) in [
            (ToolChoice::Required, &["weather", "climate"][..]),
            (ToolChoice::Named("climate".into()), &["climate"]),
        ] {
            let conversation = Conversation {
                messages: vec![json!({"role": "user", "content": "hi"})],
                tools: vec![tool("weather"), tool("climate")],
                tool_choice: choice,
                parallel_tool_calls: true,
                add_generation_prompt: true,
                ..Default::default()
            };
            for seed in 0..4 {
                let (text, pieces) = answer(chat, &conversation, tokenizer, seed);
                let mut n_calls = 0;
                for piece in pieces {
                    match piece {
                        Piece::CallStart { name, .. } => assert!(names.contains(&name.as_str()), "{name}"),
                        Piece::CallArgs { text: args, .. } => {
                            n_calls += 1;
                            let args: Value = serde_json::from_str(&args).unwrap();
                            // Text between tags may be of any length: there the schema's is only described.
                            let mut schema = parameters.clone();
                            if dialect == "qwen-xml" {
                                schema["properties"]["city"] = json!({"type": "string"});
                            }
                            assert_eq!(misfit(&args, &schema, &schema), None, "{text}");
                        }
                        Piece::CallEnd { .. } => {}
                        Piece::Reasoning(_) => {
                            assert!(source.contains("think") || dialect == "harmony", "{text}")
                        }
                        Piece::Content(content) => panic!("{dialect}: {content:?} in {text:?}"),
                    }
                }
                assert!(n_calls > 0, "{text}");
            }
        }
    }
}

#[test]
fn content_keeps_its_format_behind_thoughts_and_beside_calls() {
    let schema = schemas().swap_remove(0);
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}});
    for (dialect, _, chat, tokenizer) in models() {
        let (mut n_contents, mut n_calls) = (0, 0);
        for seed in 0..8 {
            let conversation = Conversation {
                messages: vec![json!({"role": "user", "content": "hi"})],
                tools: if seed % 2 == 0 { vec![tool.clone()] } else { vec![] },
                format: ResponseFormat::JsonSchema { schema: schema.clone(), strict: true },
                add_generation_prompt: true,
                ..Default::default()
            };
            let (text, pieces) = answer(chat, &conversation, tokenizer, seed);
            let content: String = pieces
                .iter()
                .map(|p| if let Piece::Content(text) = p { text.as_str() } else { "" })
                .collect();
            let has_call = pieces.iter().any(|p| matches!(p, Piece::CallEnd { .. }));
            assert!(has_call == content.is_empty(), "{dialect}: either a call or content: {text}");
            n_calls += usize::from(has_call);
            if !content.is_empty() {
                let value: Value = serde_json::from_str(&content).unwrap_or_else(|e| panic!("{e}: {text}"));
                assert_eq!(misfit(&value, &schema, &schema), None, "{text}");
                n_contents += 1;
            }
        }
        assert!(n_contents >= 4, "{dialect}: {n_contents} contents, {n_calls} calls");
    }
}

#[test]
fn strict_tools_are_called_as_they_say_in_text_that_is_free() {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": false});
    let tool = |name: &str, strict: bool| json!({"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}});
    for (dialect, _, chat, tokenizer) in models() {
        let mut n_calls = 0;
        for seed in 0..8 {
            let conversation = Conversation {
                messages: vec![json!({"role": "user", "content": "hi"})],
                tools: vec![tool("strict", true), tool("loose", false)],
                parallel_tool_calls: seed % 2 == 0,
                add_generation_prompt: true,
                ..Default::default()
            };
            let (text, pieces) = answer(chat, &conversation, tokenizer, seed);
            let mut name = String::new();
            let mut n_here = 0;
            for piece in pieces {
                match piece {
                    Piece::CallStart { name: called, .. } => name = called,
                    Piece::CallArgs { text: args, .. } => {
                        n_here += 1;
                        let args: Value = serde_json::from_str(&args).unwrap();
                        assert!(
                            name == "loose" || misfit(&args, &parameters, &parameters).is_none(),
                            "{text}"
                        );
                    }
                    _ => {}
                }
            }
            assert!(n_here <= 1 || conversation.parallel_tool_calls, "{text}");
            n_calls += n_here;
        }
        assert!(n_calls > 0, "{dialect}: no walk made a call");
        // Nothing promised, nothing held to.
        let conversation = Conversation {
            messages: vec![json!({"role": "user", "content": "hi"})],
            tools: vec![tool("loose", false)],
            parallel_tool_calls: true,
            ..Default::default()
        };
        let prompt = chat.prompt(&conversation).unwrap();
        assert!(chat.constraint(&conversation, &prompt).unwrap().is_none());
    }
}

fn answer(
    chat: &ChatFormat,
    conversation: &Conversation,
    tokenizer: &Tokenizer,
    seed: u64,
) -> (String, Vec<Piece>) {
    let prompt = chat.prompt(conversation).unwrap();
    let mut constraint = chat.constraint(conversation, &prompt).unwrap().unwrap();
    let text = walk(&mut *constraint, tokenizer, seed);
    let mut pieces = Vec::new();
    let mut parser = chat.parser(&prompt);
    parser.push(&text, &mut pieces);
    parser.finish(&mut pieces);
    (text, pieces)
}
