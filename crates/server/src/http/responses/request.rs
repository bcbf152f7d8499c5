//! A request to the Responses API, read.

use serde_json::{Map, Value, json};

use super::input::Input;
use crate::http::conversation::{read_template_vars, think_as_much};
use crate::http::error::ApiResult;
use crate::http::fields::Fields;
use crate::http::limits::{MAX_TOOLS, MAX_TOP_LOGPROBS};
use crate::http::settings::{Defaults, Settings, read_max_tokens};
use crate::http::wishes::{Tools, read_format, read_tool_choice};
use crate::output::{Conversation, ResponseFormat};

#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) model: Option<String>,
    pub(crate) conversation: Conversation,
    pub(crate) settings: Settings,
    pub(crate) logprobs: Option<usize>,
    pub(crate) stream: bool,
    /// Fields that every object of the answer repeats.
    pub(crate) echoed: Map<String, Value>,
    pub(crate) ignored: Vec<String>,
}

/// What needs a server that remembers, or does more than write.
const STATELESS: &str = "this server keeps nothing between requests; send the whole input";

impl ResponsesRequest {
    pub(crate) fn read(mut fields: Fields, defaults: &Defaults) -> ApiResult<Self> {
        let f = &mut fields;
        for name in ["previous_response_id", "conversation", "prompt"] {
            f.refuse_unless(name, &[], STATELESS)?;
        }
        f.refuse_unless("background", &[false.into()], STATELESS)?;
        f.refuse_unless("n", &[1.into()], "a response has one answer")?;
        let mut echoed = echo(f);
        let model = f.text("model")?;
        let max_tokens = read_max_tokens(f, &["max_output_tokens"])?;
        let input = Input::read(f)?;
        let tools = read_tools(f)?;
        let tool_choice = read_tool_choice(f)?;
        tools.check_choice(&tool_choice)?;
        let mut template_vars = read_template_vars(f)?;
        if let Some(mut reasoning) = f.object("reasoning")?
            && let Some(effort) = reasoning.text("effort")?
        {
            think_as_much(&mut template_vars, &effort).map_err(|_| {
                reasoning.error("effort", "must be none, minimal, low, medium, high, xhigh or max")
            })?;
        }
        let format = read_text_format(f)?;
        let conversation = Conversation {
            messages: input.messages,
            tools: tools.functions,
            tool_choice,
            parallel_tool_calls: f.bool("parallel_tool_calls")?.unwrap_or(true),
            format,
            template_vars,
            add_generation_prompt: true,
            continue_final_message: false,
        };
        let settings = Settings::read(f, defaults, max_tokens.unwrap_or(usize::MAX))?;
        echoed.insert("temperature".into(), settings.sampling.drawing.temperature.into());
        echoed.insert("top_p".into(), settings.sampling.drawing.top_p.into());
        let logprobs = read_logprobs(f)?;
        let stream = f.bool("stream")?.unwrap_or(false);
        ["user", "metadata", "safety_identifier", "stream_options"]
            .iter()
            .for_each(|name| drop(f.take(name)));
        let ignored = [input.ignored, tools.ignored, fields.names_left()].concat();
        Ok(Self { model, conversation, settings, logprobs, stream, echoed, ignored })
    }
}

/// The request's own words that its answer repeats, with the API's defaults.
fn echo(f: &mut Fields) -> Map<String, Value> {
    let defaults = json!({
        "instructions": null,
        "max_output_tokens": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "reasoning": {"effort": null, "summary": null},
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "user": null,
    });
    let Value::Object(mut echoed) = defaults else { return Map::new() };
    for (name, value) in &mut echoed {
        if let Some(given) = f.peek(name) {
            *value = given.clone();
        }
    }
    // We keep nothing, whatever was asked.
    echoed.insert("store".into(), false.into());
    echoed.insert("previous_response_id".into(), Value::Null);
    echoed
}

/// Functions stand flat here; other kinds are left out and named, never refused.
fn read_tools(f: &mut Fields) -> ApiResult<Tools> {
    let mut tools = Tools::default();
    for (i, tool) in f.list("tools", MAX_TOOLS)?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of_value(tool, format!("tools[{i}]"))?;
        match tool.text("type")?.as_deref() {
            Some("function") => tools.add(tool)?,
            _ => tools.ignored.push(format!("tools[{i}]")),
        }
    }
    Ok(tools)
}

fn read_text_format(f: &mut Fields) -> ApiResult<ResponseFormat> {
    let Some(mut text) = f.object("text")? else { return read_format(f) };
    let path = text.at("format");
    let format = text.take("format").unwrap_or_else(|| json!({"type": "text"}));
    let mut as_chat = Fields::of_value(json!({"response_format": format}), "")?;
    read_format(&mut as_chat).map_err(|mut error| {
        let place = error.param.unwrap_or_default().replace("response_format", &path);
        error.message = error.message.replace("response_format", &path);
        error.param = Some(place);
        error
    })
}

/// Asked for by a count, and by a word under `include`.
fn read_logprobs(f: &mut Fields) -> ApiResult<Option<usize>> {
    let top = f.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|n| n as usize);
    let included = f
        .peek("include")
        .and_then(Value::as_array)
        .is_some_and(|list| list.iter().any(|word| word == "message.output_text.logprobs"));
    Ok(if included { Some(top.unwrap_or(0)) } else { top.filter(|n| *n > 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut body: Value) -> ApiResult<ResponsesRequest> {
        if body.get("input").is_none() {
            body["input"] = json!("hi");
        }
        let defaults = Defaults { vocab: 100, end_ids: vec![1], recommended: Default::default() };
        ResponsesRequest::read(Fields::of_value(body, "").unwrap(), &defaults)
    }

    #[test]
    fn an_agents_request_is_read_as_it_comes() {
        let request = read(json!({
            "model": "m", "stream": true, "store": false, "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "high", "summary": "auto"}, "prompt_cache_key": "k", "client_metadata": {"a": "b"},
            "max_output_tokens": 7, "text": {"verbosity": "low"}, "tool_choice": "auto", "parallel_tool_calls": false,
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": false}, {"type": "namespace"}, {"type": "web_search"}],
        }))
        .unwrap();
        assert_eq!((request.settings.max_tokens, request.stream, request.logprobs), (7, true, None));
        assert_eq!(request.conversation.tools.len(), 1);
        assert_eq!(request.conversation.template_vars["reasoning_effort"], "high");
        assert_eq!(request.echoed["reasoning"]["effort"], "high");
        assert_eq!(request.echoed["store"], false);
        let mut ignored = request.ignored;
        ignored.sort();
        assert_eq!(
            ignored,
            ["client_metadata", "include", "prompt_cache_key", "store", "tools[1]", "tools[2]"]
        );
    }

    #[test]
    fn state_and_nonsense_are_refused_by_name() {
        for (body, param) in [
            (json!({"previous_response_id": "r"}), "previous_response_id"),
            (json!({"conversation": "c"}), "conversation"),
            (json!({"background": true}), "background"),
            (json!({"n": 2}), "n"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
            (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
            (json!({"tool_choice": {"type": "function", "name": "f"}}), "tool_choice"),
            (json!({"top_logprobs": 21}), "top_logprobs"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn forms_and_logprobs_have_their_own_spelling() {
        let request = read(json!({
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": true}},
            "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        }))
        .unwrap();
        assert_eq!(
            request.conversation.format,
            ResponseFormat::JsonSchema { schema: json!({"type": "object"}), strict: true }
        );
        assert_eq!(request.logprobs, Some(2));
    }
}
