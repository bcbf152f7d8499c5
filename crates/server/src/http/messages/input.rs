//! Anthropic's messages as a conversation: content blocks become text, calls and results.

use serde_json::{Map, Value, json};

use crate::http::conversation::arguments_text;
use crate::http::error::{ApiError, ApiResult};
use crate::http::fields::{Fields, kind};
use crate::http::limits::MAX_MESSAGES;

/// A client's first system block, whose value changes with every request: with it no prefix would ever be found again.
const BILLING: &str = "x-anthropic-billing-header";

/// `system` and `messages`, in OpenAI's chat shape.
pub(super) fn read_messages(f: &mut Fields) -> ApiResult<Vec<Value>> {
    let mut out = Vec::new();
    let system = read_system(f)?;
    if !system.is_empty() {
        out.push(json!({"role": "system", "content": system}));
    }
    let list = f.list("messages", MAX_MESSAGES)?.ok_or_else(|| f.error("messages", "is missing"))?;
    if list.is_empty() {
        return Err(f.error("messages", "must have at least one message"));
    }
    for (i, message) in list.into_iter().enumerate() {
        read_message(Fields::of_value(message, format!("messages[{i}]"))?, &mut out)?;
    }
    Ok(out)
}

fn read_system(f: &mut Fields) -> ApiResult<String> {
    let path = f.at("system");
    let texts = match f.take("system") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(blocks)) => {
            let text = |(i, block)| text_of(block, format!("{path}[{i}]"));
            blocks.into_iter().enumerate().map(text).collect::<ApiResult<Vec<String>>>()?
        }
        Some(other) => {
            return Err(
                f.error("system", format!("must be a string or a list of blocks, not {}", kind(&other)))
            );
        }
    };
    let kept: Vec<String> = texts.into_iter().filter(|text| !text.starts_with(BILLING)).collect();
    Ok(kept.join("\n\n"))
}

fn text_of(block: Value, path: String) -> ApiResult<String> {
    if let Value::String(text) = block {
        return Ok(text);
    }
    let mut block = Fields::of_value(block, path)?;
    match block.need_text("type")?.as_str() {
        "text" => block.need_text("text"),
        "image" | "document" | "search_result" => {
            Err(block.error("type", "this server reads text only").code("unsupported_content"))
        }
        _ => Err(block.error("type", "must be text")),
    }
}

/// One message; results of tools become messages of their own, in their place.
fn read_message(mut f: Fields, out: &mut Vec<Value>) -> ApiResult<()> {
    let role = f.need_text("role")?;
    if !matches!(role.as_str(), "user" | "assistant" | "system") {
        return Err(f.error("role", "must be user or assistant"));
    }
    let path = f.at("content");
    let blocks = match f.take("content") {
        Some(Value::String(text)) => {
            out.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        Some(other) => {
            return Err(
                f.error("content", format!("must be a string or a list of blocks, not {}", kind(&other)))
            );
        }
        None => return Err(f.error("content", "is missing")),
    };
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of_value(block, format!("{path}[{i}]"))?;
        match (block.need_text("type")?.as_str(), role.as_str()) {
            ("text", _) => texts.push(json!({"type": "text", "text": block.need_text("text")?})),
            ("thinking", "assistant") => reasoning.push_str(&block.need_text("thinking")?),
            // Nothing of it can be read, by design.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let (id, name) = (block.need_text("id")?, block.need_text("name")?);
                let arguments = arguments_text(&mut block, "input")?;
                calls.push(
                    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
                );
            }
            ("tool_result", "user") => out.push(read_result(&mut block)?),
            ("image" | "document" | "search_result", _) => {
                return Err(block.error("type", "this server reads text only").code("unsupported_content"));
            }
            _ => return Err(block.error("type", "is not a block that this message can have")),
        }
    }
    if texts.is_empty() && reasoning.is_empty() && calls.is_empty() {
        return Ok(());
    }
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), if texts.is_empty() { Value::Null } else { texts.into() });
    if !reasoning.is_empty() {
        message.insert("reasoning_content".into(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    out.push(Value::Object(message));
    Ok(())
}

fn read_result(block: &mut Fields) -> ApiResult<Value> {
    let id = block.need_text("tool_use_id")?;
    let failed = block.bool("is_error")?.unwrap_or(false);
    let path = block.at("content");
    let text = match block.take("content") {
        None => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(blocks)) => {
            let text = |(i, block)| text_of(block, format!("{path}[{i}]"));
            blocks.into_iter().enumerate().map(text).collect::<ApiResult<Vec<_>>>()?.join("\n")
        }
        Some(other) => {
            return Err(ApiError::field(
                path,
                format!("must be a string or a list of blocks, not {}", kind(&other)),
            ));
        }
    };
    let text = if failed { format!("Error: {text}") } else { text };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": text}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> ApiResult<Vec<Value>> {
        read_messages(&mut Fields::of_value(body, "").unwrap())
    }

    #[test]
    fn blocks_become_text_calls_and_results_in_order() {
        let got = read(json!({
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"},
                       {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
                {"role": "system", "content": "a reminder"},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true},
                    {"type": "text", "text": "go on"}]},
            ],
        }));
        assert_eq!(
            Value::Array(got.unwrap()),
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [{"type": "text", "text": "I look."}], "reasoning_content": "hm",
                 "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
                {"role": "system", "content": "a reminder"},
                {"role": "tool", "tool_call_id": "t1", "content": "3"},
                {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
                {"role": "user", "content": [{"type": "text", "text": "go on"}]},
            ])
        );
    }

    #[test]
    fn blocks_that_cannot_be_read_are_refused_with_their_place() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([{"role": "tool", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image"}]}]), "messages[0].content[0].type"),
            (
                json!([{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]),
                "messages[0].content[0].type",
            ),
            (
                json!([{"role": "user", "content": [{"type": "tool_result"}]}]),
                "messages[0].content[0].tool_use_id",
            ),
        ] {
            assert_eq!(
                read(json!({"messages": messages})).unwrap_err().param.as_deref(),
                Some(param),
                "{messages}"
            );
        }
    }
}
