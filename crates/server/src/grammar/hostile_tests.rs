//! Schemas and grammars that have hurt other servers: an answer or a refusal, soon, and no crash.

use std::time::Instant;

use serde_json::{Value, json};

use super::walk_tests::grammars;
use super::{ResponseFormat, plain_constraint};

fn nested(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({"type": "string"}), |inner, _| wrap(inner))
}

fn schema(schema: Value) -> ResponseFormat {
    ResponseFormat::JsonSchema { schema, strict: true }
}

#[rustfmt::skip]
fn attacks() -> Vec<(&'static str, ResponseFormat)> {
    let optional = |n: usize| (0..n).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>();
    let words = |n: usize| (0..n).map(|i| format!("w{i}")).collect::<Vec<_>>();
    vec![
        ("itself by reference",      schema(json!({"$ref": "#"}))),
        ("two that refer in turn",   schema(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}))),
        ("a cycle through allOf",    schema(json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}))),
        ("a cycle through anyOf",    schema(json!({"anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]}))),
        ("a reference elsewhere",    schema(json!({"$ref": "http://example.com/schema"}))),
        ("a reference to nothing",   schema(json!({"$ref": "#/$defs/none"}))),
        ("nested beyond the cap",    schema(nested(100, |inner| json!({"type": "array", "items": inner})))),
        ("anyOf nested",             schema(nested(28, |inner| json!({"anyOf": [inner.clone(), {"type": "array", "items": inner["type"]}]})))),
        ("properties nested",        schema(nested(20, |inner| json!({"type": "object", "properties": {"a": inner}})))),
        ("10 000 words",             schema(json!({"enum": words(10_000)}))),
        ("4 000 words",              schema(json!({"enum": words(4_000)}))),
        ("1000 optional fields",     schema(json!({"type": "object", "properties": optional(1000), "additionalProperties": false}))),
        ("10 000 optional fields",   schema(json!({"type": "object", "properties": optional(10_000)}))),
        ("a million items",          schema(json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}))),
        ("100 000 items",            schema(json!({"type": "array", "items": {"type": "integer"}, "minItems": 99_999, "maxItems": 100_000}))),
        ("100 000 characters",       schema(json!({"type": "string", "minLength": 99_999, "maxLength": 100_000}))),
        ("an absurd number",         schema(json!({"type": "number", "multipleOf": 1e-300, "minimum": 1e308}))),
        ("counted repetition",       schema(json!({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}))),
        ("repetition thrice",        ResponseFormat::Regex("((a{1,1000}){1,1000}){1,1000}b".into())),
        ("backtracking",             ResponseFormat::Regex("(a+)+(a+)+(a+)+b".into())),
        ("an exponential automaton", ResponseFormat::Regex("(a|b)*a(a|b){200}".into())),
        ("look-around",              ResponseFormat::Regex("(?=a)b(?<!c)".into())),
        ("a pattern of 100 KB",      ResponseFormat::Regex("a|".repeat(50_000))),
        ("brackets without end",     ResponseFormat::Regex("(".repeat(3000))),
        ("nonsense",                 ResponseFormat::Grammar("start: %%% \u{0} ::".into())),
        ("nothing",                  ResponseFormat::Grammar(String::new())),
        ("left recursion",           ResponseFormat::Grammar("start: start start | \"a\"".into())),
        ("a rule of nothing",        ResponseFormat::Grammar("start: x x x x\nx: x | ".into())),
        ("ambiguity",                ResponseFormat::Grammar("start: (a | b)*\na: /[a-z]+/\nb: /[a-z0-9]+/".into())),
        ("GBNF that goes deep",      ResponseFormat::Grammar(format!("root ::= {}", "(".repeat(10_000)))),
        ("GBNF that repeats",        ResponseFormat::Grammar("root ::= ((([a-z]{1,9999}){1,9999}){1,9999})".into())),
        ("JSON in a grammar",        ResponseFormat::Grammar(format!("start: %json {}", "[".repeat(50)))),
        ("an option of the library", schema(json!({"type": "object", "x-guidance": {"item_separator": "(a+)+"}}))),
        ("no schema",                schema(json!([1, 2]))),
        ("text where a cut falls inside a character", schema(json!({"type": "é".repeat(200)}))),
        ("no choice",                ResponseFormat::Choice(vec![])),
        ("many choices",             ResponseFormat::Choice(words(10_000))),
    ]
}

#[test]
fn every_attack_ends_in_a_grammar_or_a_refusal() {
    let grammars = grammars();
    let mut n_refused = 0;
    for (name, format) in attacks() {
        let begun = Instant::now();
        let outcome = plain_constraint(&format, &grammars);
        let compiled = begun.elapsed();
        let shown = match outcome {
            Err(refusal) => {
                n_refused += 1;
                assert!(refusal.message.len() < 400 && !refusal.message.contains('\n'), "{name}: {refusal}");
                format!("{refusal}")
            }
            Ok(None) => panic!("{name}: no grammar at all"),
            Ok(Some(mut constraint)) => {
                // A step may not hold up everybody's: some steps with whatever is allowed.
                let vocab = grammars.tokenizer().vocab_len();
                for _ in 0..8 {
                    let mut mask = vec![0; vocab.div_ceil(32)];
                    constraint.mask(&mut mask);
                    let Some(word) = mask.iter().position(|w| *w != 0) else { break };
                    let token = word as u32 * 32 + mask[word].trailing_zeros();
                    if !constraint.accept(token) {
                        break;
                    }
                }
                format!("compiled, 8 steps in {:?}", begun.elapsed() - compiled)
            }
        };
        eprintln!("{name}: {compiled:?}, {shown}");
    }
    assert!(n_refused >= 12, "only {n_refused} were refused");
}

#[test]
fn a_refusal_says_what_is_not_supported() {
    let grammars = grammars();
    for (format, param, part) in [
        (schema(nested(100, |inner| json!({"items": inner}))), "response_format", "nested deeper than 64"),
        (schema(json!({"enum": (0..5000).collect::<Vec<_>>()})), "response_format", "`enum` of 5000 values"),
        (schema(json!({"maxLength": 1_000_000})), "response_format", "`maxLength` of 1000000"),
        (
            schema(json!({"type": "object", "unevaluatedProperties": false})),
            "response_format",
            "unevaluatedProperties",
        ),
        (schema(json!({"type": "nonsense"})), "response_format", "nonsense"),
        (ResponseFormat::Regex("(?=a)".into()), "structured_outputs", "look-around"),
        (ResponseFormat::Grammar("start: other".into()), "grammar", "other"),
    ] {
        let refusal =
            plain_constraint(&format, &grammars).err().unwrap_or_else(|| panic!("{part}: was taken"));
        assert_eq!(refusal.param, param, "{refusal}");
        assert!(refusal.message.contains(part), "{part}: {refusal}");
    }
    // What is not strict leaves out what it cannot enforce.
    let lenient = ResponseFormat::JsonSchema {
        schema: json!({"type": "object", "unevaluatedProperties": false}),
        strict: false,
    };
    assert!(plain_constraint(&lenient, &grammars).unwrap().is_some());
}

#[test]
fn compiled_grammars_are_kept_and_their_number_is_bounded() {
    let grammars = grammars();
    let format = |i: usize| ResponseFormat::Choice(vec![format!("choice {i}")]);
    for i in 0..40 {
        plain_constraint(&format(i), &grammars).unwrap();
    }
    assert_eq!(grammars.n_kept(), 32);
    plain_constraint(&format(39), &grammars).unwrap();
    assert_eq!(grammars.n_kept(), 32, "the same once more is found");
}
