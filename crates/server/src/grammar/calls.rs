//! The calls of functions as a grammar, written as the model's dialect writes them.

use serde_json::{Value, json};

use super::lark::{Answer, any_of, json_rule, literal, quoted, until};
use crate::output::{CallStyle, Dialect, Refusal};
use crate::tools::Tool;

/// More calls at once than any agent makes; a grammar without end would let a model go on for ever.
const MAX_CALLS: usize = 16;
const OPEN: &str = "<tool_call>";

/// The rule `calls` and those below it.
pub(super) fn rules(answer: &Answer<'_>) -> Result<String, Refusal> {
    let mut text = String::new();
    let mut names = Vec::new();
    for (i, tool) in answer.tools.tools.iter().enumerate() {
        text += &call_rule(answer, tool, &format!("call{i}"))?;
        names.push(format!("call{i}"));
    }
    let any = names.join(" | ");
    let literal = |text| literal(answer.tokenizer, text);
    Ok(match answer.dialect {
        Dialect::Harmony | Dialect::Tagged(CallStyle::LeadingJson) => format!("calls: {any}\n{text}"),
        Dialect::Tagged(CallStyle::Hermes | CallStyle::Xml) => {
            let (open, end) = (literal(OPEN), literal("\n</tool_call>"));
            let more = match answer.several_calls {
                true => format!(" ({} {open} opened_call){{0,{}}}", literal("\n"), MAX_CALLS - 1),
                false => String::new(),
            };
            // `opened_calls` goes on behind the first tag, wherever that stood.
            format!(
                "calls: {open} opened_calls\nopened_calls: opened_call{more}\nopened_call: {} ({any}) {end}\n{text}",
                literal("\n")
            )
        }
    })
}

/// Text that is free, with calls in it that are not.
pub(super) struct Free {
    /// Text and calls behind it.
    pub(super) calls: String,
    /// Text without any.
    pub(super) text: String,
    pub(super) rules: String,
}

pub(super) fn free(answer: &Answer<'_>) -> Free {
    let literal = |text| literal(answer.tokenizer, text);
    match answer.dialect {
        Dialect::Harmony => {
            let (head, end) =
                (literal("<|channel|>commentary<|message|>"), literal("<|end|><|start|>assistant"));
            Free {
                calls: format!("{head} ANYTHING {end} calls"),
                text: "ANYTHING".into(),
                rules: String::new(),
            }
        }
        Dialect::Tagged(CallStyle::LeadingJson) => Free {
            calls: "calls".into(),
            text: "FREE".into(),
            rules: "FREE: /([^{\\[\\s](?s:.*))?/\n".into(),
        },
        Dialect::Tagged(CallStyle::Hermes | CallStyle::Xml) => {
            // One terminal for both: of two that match the same text, one alone would be taken at its end.
            if answer.tokenizer.first_control(OPEN).is_some() {
                let calls = format!("FREE {} opened_calls", literal(OPEN));
                return Free { calls, text: "FREE".into(), rules: "FREE: /(?s:.*)/\n".into() };
            }
            let text_and_tag = until(answer.tokenizer, "text_and_tag", OPEN);
            // What is not the one is any bytes; the other makes it text.
            let rules = format!("FREE: ~/(?s:.*){OPEN}(?s:.*)/ & /(?s:.*)/\n{text_and_tag}");
            Free { calls: "text_and_tag opened_calls".into(), text: "FREE".into(), rules }
        }
    }
}

fn call_rule(answer: &Answer<'_>, tool: &Tool, rule: &str) -> Result<String, Refusal> {
    let refused =
        |problem: String| Refusal::new("tools", format!("the parameters of `{}`: {problem}", tool.name));
    let literal = |text: &str| literal(answer.tokenizer, text);
    // Where nobody asked for more, calls of the model's own are objects of any kind: a schema beyond our means is then
    // no reason to refuse a conversation.
    let is_typed = answer.must_call || tool.is_strict;
    let args = |schema: &Value| {
        let any = json!({"type": "object"});
        json_rule(if is_typed { schema } else { &any }, tool.is_strict).map_err(refused)
    };
    let name = quoted(&tool.name);
    Ok(match answer.dialect {
        Dialect::Harmony => {
            let header =
                format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name);
            format!("{rule}: {} {rule}_args\n{rule}_args: {}\n", literal(&header), args(&tool.parameters)?)
        }
        Dialect::Tagged(CallStyle::Hermes) => {
            let head = literal(&format!("{{\"name\": {name}, \"arguments\": "));
            format!("{rule}: {head} {rule}_args \"}}\"\n{rule}_args: {}\n", args(&tool.parameters)?)
        }
        Dialect::Tagged(CallStyle::LeadingJson) => {
            let head = literal(&format!("{{\"name\": {name}, \"parameters\": "));
            format!("{rule}: {head} {rule}_args \"}}\"\n{rule}_args: {}\n", args(&tool.parameters)?)
        }
        Dialect::Tagged(CallStyle::Xml) if !is_typed => {
            let (head, end) = (literal(&format!("<function={}>\n", tool.name)), literal("</function>"));
            let value = until(answer.tokenizer, &format!("{rule}_v"), "</parameter>");
            format!(
                "{rule}: {head} {rule}_p* {end}\n{rule}_p: {} /[^<>\\s]{{1,100}}/ \">\" {rule}_v \"\\n\"\n{value}",
                literal("<parameter=")
            )
        }
        Dialect::Tagged(CallStyle::Xml) => {
            let head = literal(&format!("<function={}>\n", tool.name));
            let mut parts = String::new();
            let mut rules = String::new();
            for (i, (key, schema)) in
                tool.parameters["properties"].as_object().into_iter().flatten().enumerate()
            {
                let is_required = is_required(&tool.parameters, key);
                parts += &format!(" {rule}_p{i}{}", if is_required { "" } else { "?" });
                let head = literal(&format!("<parameter={key}>\n"));
                // Text has no quotes here, and ends with the first tag that says so.
                if schema["type"] == "string" && schema.get("enum").is_none() {
                    let value = until(answer.tokenizer, &format!("{rule}_v{i}"), "</parameter>");
                    rules += &format!("{rule}_p{i}: {head} {rule}_v{i} \"\\n\"\n{value}");
                } else {
                    let value = match enum_texts(schema) {
                        Some(texts) => {
                            let terminal = format!("{}_V{i}", rule.to_uppercase());
                            format!("{terminal}\n{terminal}: {}", any_of(&texts))
                        }
                        None => args(&with_definitions(schema, &tool.parameters))?,
                    };
                    let end = literal("\n</parameter>\n");
                    rules += &format!("{rule}_p{i}: {head} {rule}_v{i} {end}\n{rule}_v{i}: {value}\n");
                }
            }
            format!("{rule}: {head}{parts} {}\n{rules}", literal("</function>"))
        }
    })
}

fn is_required(parameters: &Value, key: &str) -> bool {
    parameters["required"].as_array().is_some_and(|required| required.iter().any(|name| name == key))
}

/// The texts of an enumeration of nothing else.
fn enum_texts(schema: &Value) -> Option<Vec<&str>> {
    let texts: Option<Vec<&str>> = schema.get("enum")?.as_array()?.iter().map(Value::as_str).collect();
    texts.filter(|texts| !texts.is_empty())
}

/// A property's schema refers to definitions beside it.
fn with_definitions(schema: &Value, parameters: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = parameters.get(name) {
                map.insert(name.into(), definitions.clone());
            }
        }
    }
    schema
}
