//! The Responses API's input as a conversation. Items of one turn of the assistant's (thoughts, text, calls) are one
//! message to a template.

use serde_json::{Map, Value, json};

use crate::http::conversation::{arguments_text, read_part};
use crate::http::error::{ApiError, ApiResult};
use crate::http::fields::{Fields, kind};
use crate::http::limits::MAX_MESSAGES;

/// Messages in OpenAI's chat shape, and the names of items that mean nothing here.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Input {
    pub(super) messages: Vec<Value>,
    pub(super) ignored: Vec<String>,
}

impl Input {
    pub(super) fn read(f: &mut Fields) -> ApiResult<Self> {
        let mut input = Self::default();
        if let Some(instructions) = f.text("instructions")? {
            input.messages.push(json!({"role": "system", "content": instructions}));
        }
        match f.take("input") {
            None => return Err(f.error("input", "is missing")),
            Some(Value::String(text)) => input.messages.push(json!({"role": "user", "content": text})),
            Some(Value::Array(items)) => {
                if items.is_empty() || items.len() > MAX_MESSAGES {
                    return Err(
                        f.error("input", format!("has {} items; must be 1 to {MAX_MESSAGES}", items.len()))
                    );
                }
                for (i, item) in items.into_iter().enumerate() {
                    input.item(Fields::of_value(item, format!("input[{i}]"))?)?;
                }
            }
            Some(other) => {
                return Err(
                    f.error("input", format!("must be a string or a list of items, not {}", kind(&other)))
                );
            }
        }
        Ok(input)
    }

    fn item(&mut self, mut item: Fields) -> ApiResult<()> {
        let place = item.at("type").trim_end_matches(".type").to_owned();
        match item.text("type")?.as_deref() {
            None | Some("message") => self.message(item),
            Some("function_call") => {
                let id = item
                    .text("call_id")?
                    .or(item.text("id")?)
                    .ok_or_else(|| item.error("call_id", "is missing"))?;
                let name = item.need_text("name")?;
                let arguments = arguments_text(&mut item, "arguments")?;
                let call =
                    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
                let turn = self.assistant();
                match turn.entry("tool_calls").or_insert_with(|| json!([])) {
                    Value::Array(calls) => calls.push(call),
                    _ => unreachable!("only lists are put there"),
                }
                Ok(())
            }
            Some("function_call_output") => {
                let id = item.need_text("call_id")?;
                let content = content(&mut item, "output")?.unwrap_or_else(|| "".into());
                self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
                Ok(())
            }
            Some("reasoning") => {
                // What is encrypted is another server's; what is plain may be ours.
                let parts = item.list("content", MAX_MESSAGES)?.unwrap_or_default();
                let texts = parts.iter().filter_map(|p| p["text"].as_str());
                let text: String = texts.collect();
                if !text.is_empty() {
                    self.assistant().insert("reasoning_content".into(), text.into());
                }
                Ok(())
            }
            Some("item_reference") => {
                Err(item.error("type", "this server keeps nothing between requests; send the item itself"))
            }
            Some(_) => {
                self.ignored.push(place);
                Ok(())
            }
        }
    }

    fn message(&mut self, mut item: Fields) -> ApiResult<()> {
        let role = item.need_text("role")?;
        if !matches!(role.as_str(), "system" | "developer" | "user" | "assistant") {
            return Err(item.error("role", "must be system, developer, user or assistant"));
        }
        let content = content(&mut item, "content")?.ok_or_else(|| item.error("content", "is missing"))?;
        // Text joins the thoughts before it, not the text or calls of an earlier item.
        if role == "assistant" && self.assistant_is_silent() {
            self.assistant().insert("content".into(), content);
        } else {
            self.messages.push(json!({"role": role, "content": content}));
        }
        Ok(())
    }

    fn assistant_is_silent(&self) -> bool {
        self.messages.last().is_some_and(|m| {
            m["role"] == "assistant" && m["content"].is_null() && m.get("tool_calls").is_none()
        })
    }

    /// The assistant's turn that is going on, or a new one.
    fn assistant(&mut self) -> &mut Map<String, Value> {
        if self.messages.last().is_none_or(|m| m["role"] != "assistant") {
            self.messages.push(json!({"role": "assistant", "content": null}));
        }
        match self.messages.last_mut() {
            Some(Value::Object(message)) => message,
            _ => unreachable!("messages are objects, and there is one"),
        }
    }
}

/// A string, or parts that are text.
fn content(item: &mut Fields, name: &str) -> ApiResult<Option<Value>> {
    let path = item.at(name);
    match item.take(name) {
        None => Ok(None),
        Some(text @ Value::String(_)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let part = |(i, part)| read_part(part, format!("{path}[{i}]"));
            Ok(Some(parts.into_iter().enumerate().map(part).collect::<ApiResult<Vec<Value>>>()?.into()))
        }
        Some(other) => {
            Err(ApiError::field(path, format!("must be a string or a list of parts, not {}", kind(&other))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value) -> ApiResult<Input> {
        Input::read(&mut Fields::of_value(json!({"instructions": "be brief", "input": input}), "").unwrap())
    }

    #[test]
    fn items_of_one_turn_become_one_message() {
        let got = read(json!([
            {"role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": "hi"},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "web_search_call", "id": "w"},
        ]))
        .unwrap();
        let text = |t: &str| json!([{"type": "text", "text": t}]);
        assert_eq!(
            Value::Array(got.messages),
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "developer", "content": text("rules")},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": text("I look"), "reasoning_content": "hm", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
            ])
        );
        assert_eq!(got.ignored, ["input[7]"]);
    }

    #[test]
    fn items_that_cannot_be_read_are_refused_with_their_place() {
        for (input, param) in [
            (json!(null), "input"),
            (json!([]), "input"),
            (json!(5), "input"),
            (json!(["x"]), "input[0]"),
            (json!([{"role": "robot", "content": "x"}]), "input[0].role"),
            (json!([{"role": "user"}]), "input[0].content"),
            (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0].type"),
            (json!([{"type": "function_call", "name": "f"}]), "input[0].call_id"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
        ] {
            assert_eq!(read(input.clone()).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
    }
}
