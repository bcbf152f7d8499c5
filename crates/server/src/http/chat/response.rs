//! A whole chat completion, and the words that chunks share with it.

use overdraft_engine::Finish;
use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::http::answer::{Answer, Call};
use crate::http::figures::Figures;
use crate::http::logprobs;
use crate::http::running::{End, Stop};

/// What stands at the head of every object of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Clients know these four only.
pub(crate) fn finish_reason(end: &End) -> &'static str {
    match end.finish {
        Finish::MaxTokens | Finish::Context => "length",
        Finish::EndToken | Finish::StopString | Finish::Constraint if end.called => "tool_calls",
        Finish::EndToken | Finish::StopString | Finish::Constraint => "stop",
    }
}

/// What exactly ended it: the client's own stop, or that the context did.
pub(crate) fn stop_reason(end: &End) -> Value {
    match (&end.stop, end.finish) {
        (Some(Stop::Text(text)), _) => text.as_str().into(),
        (Some(Stop::Token(id)), _) => (*id).into(),
        (None, Finish::Context) => "context".into(),
        (None, _) => Value::Null,
    }
}

pub(crate) fn call(call: &Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

pub(crate) fn response(
    head: &Head,
    answers: &[Answer],
    figures: &Figures,
    with_logprobs: bool,
    tokenizer: &Tokenizer,
) -> Value {
    let choices = answers.iter().enumerate().map(|(index, answer)| {
        let mut choice = json!({
            "index": index,
            "message": message(answer),
            "logprobs": null,
            "finish_reason": answer.end.as_ref().map(finish_reason),
            "stop_reason": answer.end.as_ref().map(stop_reason),
        });
        if with_logprobs {
            choice["logprobs"] =
                json!({"content": logprobs::chat(tokenizer, &answer.tokens), "refusal": null});
        }
        choice
    });
    json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": super::FINGERPRINT,
        "choices": choices.collect::<Vec<_>>(),
        "usage": figures.usage(),
        "timings": figures.timings(),
        "metrics": figures.metrics(),
    })
}

fn message(answer: &Answer) -> Value {
    // Without text beside calls the content is null, as clients expect it.
    let content = if answer.content.is_empty() && !answer.calls.is_empty() {
        Value::Null
    } else {
        answer.content.as_str().into()
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.reasoning.is_empty() {
        // Clients look for either name.
        message["reasoning_content"] = answer.reasoning.as_str().into();
        message["reasoning"] = answer.reasoning.as_str().into();
    }
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_see_only_reasons_they_know() {
        let end = |finish, called| End { finish, called, stop: None };
        for (end, reason) in [
            (end(Finish::EndToken, false), "stop"),
            (end(Finish::StopString, false), "stop"),
            (end(Finish::EndToken, true), "tool_calls"),
            (end(Finish::MaxTokens, true), "length"),
            (end(Finish::Context, false), "length"),
        ] {
            assert_eq!(finish_reason(&end), reason, "{end:?}");
        }
    }

    #[test]
    fn content_is_null_only_beside_calls() {
        let mut answer = Answer::default();
        assert_eq!(message(&answer), json!({"role": "assistant", "content": "", "refusal": null}));
        answer.calls.push(Call { id: "c".into(), name: "f".into(), arguments: "{}".into() });
        answer.reasoning = "hm".into();
        assert_eq!(
            message(&answer),
            json!({"role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm", "reasoning": "hm",
                   "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
        );
    }
}
