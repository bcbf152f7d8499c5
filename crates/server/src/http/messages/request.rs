//! A request to `/v1/messages`, read.

use serde_json::{Map, Value};

use super::input::read_messages;
use crate::http::conversation::think_as_much;
use crate::http::error::ApiResult;
use crate::http::fields::{Fields, kind};
use crate::http::limits::MAX_TOOLS;
use crate::http::settings::{Defaults, Settings, read_max_tokens, read_stops};
use crate::http::wishes::Tools;
use crate::output::{Conversation, ResponseFormat, ToolChoice};

#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) model: Option<String>,
    pub(crate) conversation: Conversation,
    pub(crate) settings: Settings,
    pub(crate) stream: bool,
    pub(crate) ignored: Vec<String>,
}

impl MessagesRequest {
    pub(crate) fn read(mut fields: Fields, defaults: &Defaults) -> ApiResult<Self> {
        let f = &mut fields;
        let max_tokens =
            read_max_tokens(f, &["max_tokens"])?.ok_or_else(|| f.error("max_tokens", "is missing"))?;
        let (model, conversation, mut ignored) = read_conversation(f)?;
        let stop_strings = read_stops(f, "stop_sequences")?;
        let mut settings = Settings::read(f, defaults, max_tokens)?;
        settings.stop_strings.extend(stop_strings);
        let stream = f.bool("stream")?.unwrap_or(false);
        drop(f.take("metadata"));
        ignored.extend(fields.names_left());
        Ok(Self { model, conversation, settings, stream, ignored })
    }
}

/// What `count_tokens` has too: the model, the conversation, and the names of what was left out.
pub(super) fn read_conversation(f: &mut Fields) -> ApiResult<(Option<String>, Conversation, Vec<String>)> {
    let model = f.text("model")?;
    let messages = read_messages(f)?;
    let tools = read_tools(f)?;
    let (tool_choice, parallel_tool_calls) = read_tool_choice(f)?;
    tools.check_choice(&tool_choice)?;
    let (template_vars, format) = read_thinking(f)?;
    // A last message of the assistant's is the beginning of its answer.
    let continue_final_message =
        messages.last().is_some_and(|m| m["role"] == "assistant" && m.get("tool_calls").is_none());
    let conversation = Conversation {
        messages,
        tools: tools.functions,
        tool_choice,
        parallel_tool_calls,
        format,
        template_vars,
        add_generation_prompt: !continue_final_message,
        continue_final_message,
    };
    Ok((model, conversation, tools.ignored))
}

/// Tools of the client's own; those that Anthropic runs itself have another `type`, and are left out.
fn read_tools(f: &mut Fields) -> ApiResult<Tools> {
    let mut tools = Tools::default();
    for (i, tool) in f.list("tools", MAX_TOOLS)?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of_value(tool, format!("tools[{i}]"))?;
        match tool.text("type")?.as_deref() {
            None | Some("custom") => {
                let name = tool.need_text("name")?;
                let schema = tool.map("input_schema")?;
                let mut function = Map::new();
                function.insert("name".into(), name.into());
                function.extend(tool.take("description").map(|d| ("description".to_owned(), d)));
                function.extend(tool.take("strict").map(|s| ("strict".to_owned(), s)));
                function.extend(schema.map(|s| ("parameters".to_owned(), Value::Object(s))));
                tools.add(Fields::of_value(Value::Object(function), format!("tools[{i}]"))?)?;
            }
            Some(_) => tools.ignored.push(format!("tools[{i}]")),
        }
    }
    Ok(tools)
}

/// The choice, and whether several calls may come at once.
fn read_tool_choice(f: &mut Fields) -> ApiResult<(ToolChoice, bool)> {
    let Some(mut choice) = f.object("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    let parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let wanted = match choice.need_text("type")?.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(choice.need_text("name")?),
        _ => return Err(choice.error("type", "must be auto, any, tool or none")),
    };
    Ok((wanted, parallel))
}

/// `thinking` and `output_config`, as far as templates know them.
fn read_thinking(f: &mut Fields) -> ApiResult<(Map<String, Value>, ResponseFormat)> {
    let mut vars = f.map("chat_template_kwargs")?.unwrap_or_default();
    let mut format = ResponseFormat::Text;
    if let Some(mut config) = f.object("output_config")? {
        if let Some(effort) = config.text("effort")? {
            think_as_much(&mut vars, &effort)
                .map_err(|_| config.error("effort", "must be low, medium, high, xhigh or max"))?;
        }
        if let Some(mut wanted) = config.object("format")? {
            match (wanted.need_text("type")?.as_str(), wanted.take("schema")) {
                ("json_schema", Some(schema @ Value::Object(_))) => {
                    format = ResponseFormat::JsonSchema { schema, strict: true };
                }
                ("json_schema", other) => {
                    let got = other.as_ref().map_or("nothing", kind);
                    return Err(wanted.error("schema", format!("must be a JSON schema, not {got}")));
                }
                _ => return Err(wanted.error("type", "must be json_schema")),
            }
        }
    }
    if let Some(mut thinking) = f.object("thinking")? {
        match thinking.need_text("type")?.as_str() {
            // How long is the model's affair: a budget would need another end of its thoughts than its own.
            "enabled" => drop(vars.insert("enable_thinking".into(), true.into())),
            "disabled" => drop(vars.insert("enable_thinking".into(), false.into())),
            "adaptive" => {}
            _ => return Err(thinking.error("type", "must be enabled, disabled or adaptive")),
        }
    }
    Ok((vars, format))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mut body: Value) -> ApiResult<MessagesRequest> {
        for (name, value) in
            [("max_tokens", json!(10)), ("messages", json!([{"role": "user", "content": "hi"}]))]
        {
            if body.get(name).is_none() {
                body[name] = value;
            }
        }
        let defaults = Defaults { vocab: 100, end_ids: vec![1], recommended: Default::default() };
        MessagesRequest::read(Fields::of_value(body, "").unwrap(), &defaults)
    }

    #[test]
    fn an_agents_request_is_read_as_it_comes() {
        let request = read(json!({
            "model": "m", "max_tokens": 32000, "stream": true, "temperature": 1, "top_k": 5, "stop_sequences": ["X"],
            "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "context_management": {"edits": []},
            "output_config": {"effort": "high"}, "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}},
                      {"type": "web_search_20250305", "name": "web_search"}],
        }))
        .unwrap();
        assert_eq!((request.settings.max_tokens, request.stream), (32_000, true));
        assert_eq!(request.settings.stop_strings, ["X"]);
        let conversation = request.conversation;
        assert_eq!(
            (conversation.tool_choice, conversation.parallel_tool_calls),
            (ToolChoice::Required, false)
        );
        assert_eq!(conversation.template_vars["reasoning_effort"], "high");
        assert_eq!(
            conversation.tools,
            [
                json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}})
            ]
        );
        assert_eq!(request.ignored, ["tools[1]", "context_management"]);
    }

    #[test]
    fn bad_fields_are_named() {
        for (body, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
            (json!({"tool_choice": {"type": "all"}}), "tool_choice.type"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (json!({"tool_choice": "auto"}), "tool_choice"),
            (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
            (json!({"output_config": {"effort": "extreme"}}), "output_config.effort"),
            (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
            (json!({"stop_sequences": [1]}), "stop_sequences[0]"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn an_answer_that_was_begun_is_continued() {
        let messages =
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is"}]);
        let conversation = read(json!({"messages": messages})).unwrap().conversation;
        assert!(conversation.continue_final_message && !conversation.add_generation_prompt);
    }
}
