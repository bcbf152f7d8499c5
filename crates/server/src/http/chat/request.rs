//! A chat completions request, read.

use serde_json::Value;

use crate::http::conversation::{read_messages, read_template_vars};
use crate::http::error::ApiResult;
use crate::http::fields::Fields;
use crate::http::limits::{MAX_CHOICES, MAX_TOP_LOGPROBS};
use crate::http::settings::{Defaults, Settings, read_max_tokens};
use crate::http::wishes::{Tools, read_format, read_tool_choice};
use crate::output::Conversation;

#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) conversation: Conversation,
    pub(crate) settings: Settings,
    pub(crate) n: usize,
    pub(crate) logprobs: Option<usize>,
    pub(crate) streaming: Option<StreamOptions>,
    pub(crate) ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// One more chunk with the figures.
    pub(crate) include_usage: bool,
    /// Figures with every chunk.
    pub(crate) continuous_usage: bool,
}

impl ChatRequest {
    pub(crate) fn read(mut fields: Fields, defaults: &Defaults) -> ApiResult<Self> {
        let f = &mut fields;
        let model = f.text("model")?;
        let conversation = read_conversation(f)?;
        let max_tokens = read_max_tokens(f, &["max_completion_tokens", "max_tokens", "n_predict"])?;
        let settings = Settings::read(f, defaults, max_tokens.unwrap_or(usize::MAX))?;
        let n = f.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as usize;
        f.refuse_unless("best_of", &[1.into(), (n as i64).into()], "use n")?;
        f.refuse_unless(
            "echo",
            &[false.into()],
            "a chat's prompt is its template's text; /apply-template shows it",
        )?;
        let logprobs = read_logprobs(f)?;
        let streaming = read_streaming(f)?;
        // What a request says of its sender changes nothing.
        ["user", "metadata", "safety_identifier", "request_id"].iter().for_each(|name| drop(f.take(name)));
        let (conversation, mut ignored) = conversation;
        ignored.extend(fields.names_left());
        Ok(Self { model, conversation, settings, n, logprobs, streaming, ignored })
    }
}

/// Messages, tools and forms; also what `/apply-template` reads. And the names of what was left out.
pub(crate) fn read_conversation(f: &mut Fields) -> ApiResult<(Conversation, Vec<String>)> {
    let messages = read_messages(f)?;
    let tools = Tools::read(f)?;
    let tool_choice = read_tool_choice(f)?;
    tools.check_choice(&tool_choice)?;
    let last_is_assistant = messages.last().is_some_and(|m| m["role"] == "assistant");
    let continue_final_message = f.bool("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = f.bool("add_generation_prompt")?.unwrap_or(!continue_final_message);
    if continue_final_message && add_generation_prompt {
        return Err(f.error("continue_final_message", "can't be true together with `add_generation_prompt`"));
    }
    if continue_final_message && !last_is_assistant {
        return Err(f.error("continue_final_message", "needs a last message of the assistant"));
    }
    let conversation = Conversation {
        messages,
        tools: tools.functions,
        tool_choice,
        parallel_tool_calls: f.bool("parallel_tool_calls")?.unwrap_or(true),
        format: read_format(f)?,
        template_vars: read_template_vars(f)?,
        add_generation_prompt,
        continue_final_message,
    };
    Ok((conversation, tools.ignored))
}

fn read_logprobs(f: &mut Fields) -> ApiResult<Option<usize>> {
    let wanted = f.bool("logprobs")?.unwrap_or(false);
    let top = f.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (false, Some(n)) if n > 0 => Err(f.error("top_logprobs", "needs `logprobs` to be true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
    }
}

/// `None` for a client that waits for the whole answer.
pub(crate) fn read_streaming(f: &mut Fields) -> ApiResult<Option<StreamOptions>> {
    let stream = f.bool("stream")?.unwrap_or(false);
    let mut options = StreamOptions::default();
    if let Some(mut given) = f.object("stream_options")? {
        options.include_usage = given.bool("include_usage")?.unwrap_or(false);
        options.continuous_usage = given.bool("continuous_usage_stats")?.unwrap_or(false);
        // Padding against guessing texts by chunk sizes; not ours to promise.
        let _: Option<Value> = given.take("include_obfuscation");
    }
    Ok(stream.then_some(options))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::{ResponseFormat, ToolChoice};

    fn read(mut body: Value) -> ApiResult<ChatRequest> {
        if body.get("messages").is_none() {
            body["messages"] = json!([{"role": "user", "content": "hi"}]);
        }
        let defaults = Defaults { vocab: 100, end_ids: vec![1], recommended: Default::default() };
        ChatRequest::read(Fields::of_value(body, "").unwrap(), &defaults)
    }

    #[test]
    fn agents_may_send_dozens_of_fields_and_hear_which_did_nothing() {
        let request = read(json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_completion_tokens": 32000,
            "n": 2, "logprobs": true, "top_logprobs": 3, "temperature": 0, "user": "u", "metadata": {"a": "b"},
            "service_tier": "auto", "store": false, "prompt_cache_key": "k", "verbosity": "low", "x_agent": {"y": 1},
            "functions": [], "prediction": null, "tools": [{"type": "web_search"}],
            "tool_choice": "auto", "response_format": {"type": "json_object"}, "reasoning_effort": "low",
        }))
        .unwrap();
        assert_eq!((request.n, request.logprobs, request.settings.max_tokens), (2, Some(3), 32_000));
        assert_eq!(request.streaming, Some(StreamOptions { include_usage: true, continuous_usage: false }));
        assert_eq!(request.conversation.format, ResponseFormat::JsonObject);
        assert_eq!(request.conversation.tool_choice, ToolChoice::Auto);
        let mut ignored = request.ignored;
        ignored.sort();
        assert_eq!(
            ignored,
            ["functions", "prompt_cache_key", "service_tier", "store", "tools[0]", "verbosity", "x_agent"]
        );
    }

    #[test]
    fn every_bad_field_is_named() {
        for (body, param) in [
            (json!({"model": 3}), "model"),
            (json!({"n": 0}), "n"),
            (json!({"n": 17}), "n"),
            (json!({"n": 1i64 << 40}), "n"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": -2}), "max_tokens"),
            (json!({"max_tokens": "many"}), "max_tokens"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": []}), "stream_options"),
            (json!({"logprobs": 1}), "logprobs"),
            (json!({"top_logprobs": 5}), "top_logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"echo": true}), "echo"),
            (json!({"best_of": 4}), "best_of"),
            (json!({"prompt_logprobs": 1}), "prompt_logprobs"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"continue_final_message": true}), "continue_final_message"),
            (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
            (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
            (json!({"messages": null}), "messages"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
