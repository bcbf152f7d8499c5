//! A conversation in OpenAI's shape into the messages that a template prints.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::fallback;
use super::probe::{CallForm, Traits};

/// The messages as the template with these traits wants them; `tools` are described among them if it cannot.
pub(crate) fn shape(messages: &[Value], tools: &[Value], traits: &Traits) -> Vec<Value> {
    let mut shaped = Shaping { traits, systems: Vec::new(), out: Vec::new() };
    let names = names_of_calls(messages);
    for (at, message) in messages.iter().enumerate() {
        match message["role"].as_str().unwrap_or("user") {
            "system" | "developer" => shaped.system(message),
            "assistant" => shaped.assistant(message, &messages[at + 1..], &names),
            "tool" if shaped.was_given(at, messages) => {}
            "tool" => shaped.result(message, &names),
            role => shaped.out.push(json!({"role": role, "content": content(message, traits)})),
        }
    }
    if !tools.is_empty() && !traits.prints_tools {
        shaped.systems.push(fallback::description(tools));
    }
    shaped.finish()
}

struct Shaping<'a> {
    traits: &'a Traits,
    /// Texts of the one system message in front.
    systems: Vec<String>,
    out: Vec<Value>,
}

impl Shaping<'_> {
    fn system(&mut self, message: &Value) {
        let text = text_of(&message["content"]);
        if self.out.is_empty() || !self.traits.prints_late_system {
            self.systems.push(text);
        } else {
            self.out.push(json!({"role": "system", "content": text}));
        }
    }

    fn assistant(&mut self, message: &Value, later: &[Value], names: &HashMap<&str, &str>) {
        let calls = message["tool_calls"].as_array().map_or(&[][..], |calls| calls);
        let thoughts = ["reasoning_content", "reasoning"].iter().find_map(|key| message[key].as_str());
        let Some(form) = self.traits.calls.filter(|_| !calls.is_empty()) else {
            let mut text = text_of(&message["content"]);
            if !calls.is_empty() {
                text += if text.is_empty() { "" } else { "\n" };
                text += &fallback::calls(calls);
            }
            let mut fields =
                Map::from_iter([("role".into(), "assistant".into()), ("content".into(), text.into())]);
            self.think(&mut fields, thoughts);
            return self.out.push(Value::Object(fields));
        };
        if self.traits.prints_several_calls || calls.len() == 1 {
            return self.out.push(self.asking(message, calls, thoughts, form));
        }
        // One by one, each with its result behind it.
        for (i, call) in calls.iter().enumerate() {
            let (message, thoughts) = if i == 0 { (message, thoughts) } else { (&Value::Null, None) };
            self.out.push(self.asking(message, std::slice::from_ref(call), thoughts, form));
            if let Some(result) = results_of(later).find(|r| r["tool_call_id"] == call["id"]) {
                self.result(result, names);
            }
        }
    }

    /// A message that makes calls.
    fn asking(&self, message: &Value, calls: &[Value], thoughts: Option<&str>, form: CallForm) -> Value {
        let mut text = text_of(&message["content"]);
        let mut thoughts = thoughts.map(str::to_owned);
        // gpt-oss prints either, as thoughts, and refuses both.
        if self.traits.thought_keys == ["thinking"] && !text.is_empty() && thoughts.is_some() {
            thoughts = thoughts.map(|thoughts| format!("{thoughts}\n\n{text}"));
            text.clear();
        }
        let content = if text.is_empty() && form.content_is_none { Value::Null } else { text.into() };
        let calls = calls.iter().map(|call| {
            let function = &call["function"];
            let text = function["arguments"].as_str().unwrap_or("{}");
            // What is no JSON stays text: the template prints it as it can.
            let arguments = match serde_json::from_str::<Value>(text) {
                Ok(value) if !form.args_as_text => value,
                _ => text.into(),
            };
            json!({"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}})
        });
        let mut fields = Map::from_iter([("role".into(), "assistant".into()), ("content".into(), content)]);
        fields.insert("tool_calls".into(), calls.collect());
        self.think(&mut fields, thoughts.as_deref());
        Value::Object(fields)
    }

    fn think(&self, fields: &mut Map<String, Value>, thoughts: Option<&str>) {
        if let Some(thoughts) = thoughts.filter(|text| !text.is_empty()) {
            fields.extend(self.traits.thought_keys.iter().map(|key| ((*key).to_owned(), thoughts.into())));
        }
    }

    fn result(&mut self, message: &Value, names: &HashMap<&str, &str>) {
        let text = text_of(&message["content"]);
        if !self.traits.prints_results {
            let text = fallback::result(&text);
            // Results of several calls are one turn: templates without calls want roles in turn.
            match self.out.last_mut() {
                Some(last) if last["role"] == "user" && last["content"].is_string() => {
                    let before = last["content"].as_str().unwrap_or("");
                    last["content"] = format!("{before}\n{text}").into();
                }
                _ => self.out.push(json!({"role": "user", "content": text})),
            }
            return;
        }
        let id = &message["tool_call_id"];
        let name = message["name"].as_str().or_else(|| names.get(id.as_str()?).copied());
        let mut fields = Map::from_iter([("role".into(), "tool".into()), ("content".into(), text.into())]);
        if !id.is_null() {
            fields.insert("tool_call_id".into(), id.clone());
        }
        fields.extend(name.map(|name| ("name".to_owned(), name.into())));
        self.out.push(Value::Object(fields));
    }

    /// Whether the result at `at` was put behind its call already.
    fn was_given(&self, at: usize, messages: &[Value]) -> bool {
        if self.traits.prints_several_calls || self.traits.calls.is_none() {
            return false;
        }
        let asking = messages[..at].iter().rfind(|m| m["role"] != "tool");
        let calls = asking.and_then(|m| m["tool_calls"].as_array()).filter(|calls| calls.len() > 1);
        let id = &messages[at]["tool_call_id"];
        calls.is_some_and(|calls| calls.iter().any(|call| call["id"] == *id))
    }

    fn finish(mut self) -> Vec<Value> {
        self.systems.retain(|text| !text.is_empty());
        if self.systems.is_empty() {
            return self.out;
        }
        let text = self.systems.join("\n\n");
        if self.traits.prints_system {
            self.out.insert(0, json!({"role": "system", "content": text}));
            return self.out;
        }
        match self.out.iter_mut().find(|m| m["role"] == "user") {
            Some(user) => user["content"] = format!("{text}\n\n{}", text_of(&user["content"])).into(),
            None => self.out.insert(0, json!({"role": "user", "content": text})),
        }
        self.out
    }
}

/// The results that follow a message at once.
fn results_of(later: &[Value]) -> impl Iterator<Item = &Value> {
    later.iter().take_while(|m| m["role"] == "tool")
}

/// What the calls of the conversation are named, by their ids.
fn names_of_calls(messages: &[Value]) -> HashMap<&str, &str> {
    let calls = messages.iter().filter_map(|m| m["tool_calls"].as_array()).flatten();
    calls.filter_map(|call| Some((call["id"].as_str()?, call["function"]["name"].as_str()?))).collect()
}

/// A text; or the parts, where there are several and the template joins them as its model knows it.
fn content(message: &Value, traits: &Traits) -> Value {
    match &message["content"] {
        Value::Array(parts) if parts.len() > 1 && traits.prints_parts => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.map(|text| json!({"type": "text", "text": text})).collect()
        }
        other => text_of(other).into(),
    }
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
