//! Messages in OpenAI's chat shape, checked: what goes into the template is text and calls, nothing else.

use serde_json::{Map, Value, json};

use super::error::{ApiError, ApiResult};
use super::fields::{Fields, kind};
use super::limits::MAX_MESSAGES;

/// The list under `messages`.
pub(crate) fn read_messages(fields: &mut Fields) -> ApiResult<Vec<Value>> {
    let list =
        fields.list("messages", MAX_MESSAGES)?.ok_or_else(|| fields.error("messages", "is missing"))?;
    if list.is_empty() {
        return Err(fields.error("messages", "must have at least one message"));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, m)| read_message(Fields::of_value(m, format!("messages[{i}]"))?))
        .collect()
}

fn read_message(mut fields: Fields) -> ApiResult<Value> {
    let role = fields.need_text("role")?;
    let mut message = Map::new();
    message.insert("role".into(), role.as_str().into());
    let content = read_content(&mut fields)?;
    match role.as_str() {
        "system" | "developer" | "user" => {
            let content = content.ok_or_else(|| fields.error("content", "is missing"))?;
            message.insert("content".into(), content);
        }
        "assistant" => {
            let calls = read_calls(&mut fields)?;
            // Two names for it are in use; one server's answers are another's input.
            let reasoning = fields.text("reasoning_content")?.or(fields.text("reasoning")?);
            message.insert("content".into(), content.unwrap_or_default());
            if let Some(reasoning) = reasoning.filter(|r| !r.is_empty()) {
                message.insert("reasoning_content".into(), reasoning.into());
            }
            if !calls.is_empty() {
                message.insert("tool_calls".into(), calls.into());
            }
        }
        "tool" => {
            message.insert("content".into(), content.unwrap_or_else(|| "".into()));
            for name in ["tool_call_id", "name"] {
                if let Some(text) = fields.text(name)? {
                    message.insert(name.into(), text.into());
                }
            }
        }
        _ => return Err(fields.error("role", "must be system, developer, user, assistant or tool")),
    }
    Ok(Value::Object(message))
}

/// A string, a list of parts that are text, or nothing.
fn read_content(fields: &mut Fields) -> ApiResult<Option<Value>> {
    match fields.take("content") {
        None => Ok(None),
        Some(text @ Value::String(_)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let path = fields.at("content");
            let part = |(i, part)| read_part(part, format!("{path}[{i}]"));
            let parts: Vec<Value> = parts.into_iter().enumerate().map(part).collect::<ApiResult<_>>()?;
            Ok(Some(parts.into()))
        }
        Some(other) => {
            Err(fields.error("content", format!("must be a string or a list of parts, not {}", kind(&other))))
        }
    }
}

/// A part of a content, in the spelling of chat completions or of the Responses API.
pub(crate) fn read_part(part: Value, path: String) -> ApiResult<Value> {
    if let Value::String(text) = part {
        return Ok(json!({"type": "text", "text": text}));
    }
    let mut part = Fields::of_value(part, path)?;
    match part.need_text("type")?.as_str() {
        "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => {
            Ok(json!({"type": "text", "text": part.need_text("text")?}))
        }
        "refusal" => Ok(json!({"type": "text", "text": part.need_text("refusal")?})),
        "image_url" | "input_image" | "image" | "input_audio" | "audio_url" | "video_url" | "file"
        | "input_file" | "document" => {
            Err(part.error("type", "this server reads text only").code("unsupported_content"))
        }
        _ => Err(part.error("type", "must be text")),
    }
}

/// Calls of an earlier answer; their arguments as text, whatever the client made of them.
fn read_calls(fields: &mut Fields) -> ApiResult<Vec<Value>> {
    let path = fields.at("tool_calls");
    let calls = fields.list("tool_calls", MAX_MESSAGES)?.unwrap_or_default();
    let call = |(i, call): (usize, Value)| -> ApiResult<Value> {
        let mut call = Fields::of_value(call, format!("{path}[{i}]"))?;
        let id = call.text("id")?.unwrap_or_else(|| format!("call_{i}"));
        let mut function = call.object("function")?.ok_or_else(|| call.error("function", "is missing"))?;
        let name = function.need_text("name")?;
        let arguments = arguments_text(&mut function, "arguments")?;
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    calls.into_iter().enumerate().map(call).collect()
}

/// JSON text; an object is written out.
pub(crate) fn arguments_text(fields: &mut Fields, name: &str) -> ApiResult<String> {
    match fields.take(name) {
        None => Ok("{}".into()),
        Some(Value::String(text)) => Ok(text),
        Some(object @ Value::Object(_)) => Ok(object.to_string()),
        Some(other) => Err(fields.error(name, format!("must be JSON text, not {}", kind(&other)))),
    }
}

/// `chat_template_kwargs` and the fields that are variables of templates under their own names.
pub(crate) fn read_template_vars(fields: &mut Fields) -> ApiResult<Map<String, Value>> {
    let mut vars = fields.map("chat_template_kwargs")?.unwrap_or_default();
    if let Some(on) = fields.bool("enable_thinking")? {
        vars.insert("enable_thinking".into(), on.into());
    }
    if let Some(effort) = fields.short_text("reasoning_effort", 64)? {
        think_as_much(&mut vars, &effort)?;
    }
    Ok(vars)
}

/// gpt-oss knows efforts by name; other models think or do not.
pub(crate) fn think_as_much(vars: &mut Map<String, Value>, effort: &str) -> ApiResult<()> {
    const KNOWN: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    if !KNOWN.contains(&effort) {
        return Err(ApiError::field(
            "reasoning_effort",
            "must be none, minimal, low, medium, high, xhigh or max",
        ));
    }
    if effort == "none" {
        vars.entry("enable_thinking").or_insert(false.into());
    } else {
        let named = match effort {
            "minimal" => "low",
            "xhigh" | "max" => "high",
            other => other,
        };
        vars.entry("reasoning_effort").or_insert(named.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value) -> ApiResult<Vec<Value>> {
        read_messages(&mut Fields::of_value(json!({"messages": messages}), "").unwrap())
    }

    #[test]
    fn every_shape_that_clients_send_becomes_text_and_calls() {
        let got = read(json!([
            {"role": "developer", "content": "be brief", "name": "x"},
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}, "b"]},
            {"role": "assistant", "content": null, "reasoning": "hm", "refusal": null,
             "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]));
        assert_eq!(
            Value::Array(got.unwrap()),
            json!([
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "reasoning_content": "hm",
                 "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
                {"role": "tool", "content": "3", "tool_call_id": "c1"},
            ])
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_place() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 5}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0].function"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(read(messages.clone()).unwrap_err().param.as_deref(), Some(param), "{messages}");
        }
    }

    #[test]
    fn thinking_is_a_variable_of_the_template() {
        for (value, vars) in [
            (json!({}), json!({})),
            (json!({"enable_thinking": false}), json!({"enable_thinking": false})),
            (json!({"reasoning_effort": "none"}), json!({"enable_thinking": false})),
            (
                json!({"reasoning_effort": "xhigh", "chat_template_kwargs": {"a": 1}}),
                json!({"a": 1, "reasoning_effort": "high"}),
            ),
        ] {
            let got = read_template_vars(&mut Fields::of_value(value, "").unwrap()).unwrap();
            assert_eq!(Value::Object(got), vars);
        }
        let bad = read_template_vars(&mut Fields::of_value(json!({"reasoning_effort": "huge"}), "").unwrap());
        assert_eq!(bad.unwrap_err().param.as_deref(), Some("reasoning_effort"));
    }
}
