//! Rendering against goldens made by Jinja2 itself (`template_oracle.py`): one language feature a row, and whole
//! chat templates of our own over every conversation.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use overdraft_formats::template::{ChatInput, ChatTemplate, Limits};
use serde_json::{Map, Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/template")
}

fn rows(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(name)).expect("a golden beside this test");
    serde_json::from_str(&text).expect("goldens are JSON")
}

/// The oracle's clock: 2026-02-03 04:05:06.
fn limits() -> Limits {
    Limits { now: UNIX_EPOCH + Duration::from_secs(1_770_091_506), ..Limits::default() }
}

fn render(source: &str, vars: &Value) -> Result<String, String> {
    let template = ChatTemplate::parse("test.jinja", source).map_err(|e| e.to_string())?;
    template.render(vars, &limits()).map_err(|e| e.to_string())
}

/// Describes a difference, or nothing when both render the same or both refuse.
fn difference(what: &str, expected: Option<&str>, got: Result<String, String>) -> Option<String> {
    match (expected, got) {
        (Some(want), Ok(have)) if want == have => None,
        (None, Err(problem)) if problem.starts_with("test.jinja: chat template line ") => None,
        (want, have) => Some(format!("{what}\n  jinja2 {want:?}\n  ours   {have:?}")),
    }
}

#[track_caller]
fn all_agree(differences: Vec<String>, of: usize) {
    assert!(differences.is_empty(), "{} of {of} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn every_language_feature_prints_what_jinja2_prints() {
    let rows = rows("grid.json");
    let vars = &rows[0]["variables"];
    assert!(rows.len() > 150, "the grid has only {} rows", rows.len());
    let differ = |row: &Value| {
        let source = row["source"].as_str()?;
        difference(source, row["expected"].as_str(), render(source, vars))
    };
    all_agree(rows[1..].iter().filter_map(differ).collect(), rows.len() - 1);
}

#[test]
fn chat_templates_print_what_jinja2_prints() {
    let conversations = rows("conversations.json");
    let rows = rows("chats.json");
    let empty = Map::new();
    let mut differences = Vec::new();
    for row in &rows {
        let name = row["template"].as_str().expect("a template's name");
        let source = std::fs::read_to_string(folder().join(name)).expect("the template of a golden");
        let conversation =
            conversations.iter().find(|c| c["name"] == row["conversation"]).expect("a golden's conversation");
        let template = ChatTemplate::parse("test.jinja", &source).expect("our own templates parse");
        let vars = template.variables(&ChatInput {
            messages: &conversation["messages"],
            tools: conversation.get("tools"),
            add_generation_prompt: conversation["add_generation_prompt"] == true,
            bos_token: Some("<|begin|>"),
            eos_token: Some("<|end|>"),
            extra: conversation.get("extra").and_then(Value::as_object).unwrap_or(&empty),
        });
        let got = template.render(&vars.expect("no reserved name"), &limits()).map_err(|e| e.to_string());
        differences.extend(difference(
            &format!("{name}, {}", row["conversation"]),
            row["expected"].as_str(),
            got,
        ));
    }
    all_agree(differences, rows.len());
}

#[test]
#[rustfmt::skip]
fn errors_name_the_file_the_line_and_the_cause() {
    //    source                                        what the message says
    check("a\nb {{ x.y }}",                             "test.jinja: chat template line 2: `x` is undefined, so it has no `y`");
    check("\n\n{{ 1|shout }}",                          "test.jinja: chat template line 3: unknown filter `shout`");
    check("\n{{ 1 is loud }}",                          "test.jinja: chat template line 2: unknown test `loud`");
    check("\n{% shout %}",                              "test.jinja: chat template line 2: unknown tag `shout`");
    check("{% if a %}\n",                               "test.jinja: chat template line 1: the file ends, but `elif` or `else` or `endif` is missing");
    check("{{ raise_exception('no tools') }}",          "test.jinja: chat template line 1: the template refuses: no tools");
    check("{% macro f() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ f() }}", "test.jinja: chat template line 2: division by zero");
    check("{{ 10 ** 39 }}",                             "test.jinja: chat template line 1: 10 `**` 39 is too large an integer");
    check("{{ [1].append(2) }}",                        "test.jinja: chat template line 1: `append` is undefined or not allowed, so it can't be called");
}

#[track_caller]
fn check(source: &str, message: &str) {
    assert_eq!(render(source, &json!({})), Err(message.to_string()), "{source}");
}

#[test]
fn a_request_cannot_replace_what_the_engine_sets() {
    let template = ChatTemplate::parse("test.jinja", "{{ messages[0].content }}{{ extra }}").expect("parses");
    let messages = json!([{"role": "user", "content": "hi"}]);
    let render = |extra: &Map<String, Value>| {
        template.render_chat(&ChatInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            bos_token: None,
            eos_token: None,
            extra,
        })
    };
    for name in ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"] {
        let extra = Map::from_iter([(name.to_string(), json!("x"))]);
        let error = render(&extra).expect_err("a reserved name").to_string();
        assert!(error.contains(&format!("`{name}` is set by the engine")), "{error}");
    }
    let extra = Map::from_iter([("extra".to_string(), json!("!"))]);
    assert_eq!(render(&extra).expect("renders"), "hi!");
}

/// A million tokens of conversation is work, not an attack.
#[test]
fn a_very_long_conversation_renders() {
    let source = std::fs::read_to_string(folder().join("thinking.jinja")).expect("our template");
    let template = ChatTemplate::parse("thinking.jinja", &source).expect("parses");
    let turn = |n: usize| json!({"role": if n.is_multiple_of(2) { "user" } else { "assistant" }, "content": "word ".repeat(200)});
    let messages = Value::Array((0..4001).map(turn).collect());
    let input = ChatInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: true,
        bos_token: None,
        eos_token: None,
        extra: &Map::new(),
    };
    let text = template.render_chat(&input).expect("4 MB of messages fit the limits made for them");
    assert!(text.len() > 4_000_000, "{}", text.len());
}
