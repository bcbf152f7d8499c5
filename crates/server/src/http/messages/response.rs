//! A whole message, and the words its events share.

use overdraft_engine::Finish;
use serde_json::{Value, json};

use crate::http::answer::Answer;
use crate::http::figures::Figures;
use crate::http::running::{End, Stop};

/// Why it ended, and the client's own words if they did it.
pub(super) fn stop_reason(end: &End) -> (&'static str, Option<&str>) {
    match (end.finish, &end.stop) {
        (Finish::MaxTokens, _) => ("max_tokens", None),
        (Finish::Context, _) => ("model_context_window_exceeded", None),
        (Finish::StopString, Some(Stop::Text(text))) => ("stop_sequence", Some(text)),
        (Finish::StopString, _) => ("stop_sequence", None),
        (Finish::EndToken | Finish::Constraint, _) if end.called => ("tool_use", None),
        (Finish::EndToken | Finish::Constraint, _) => ("end_turn", None),
    }
}

pub(super) fn message(id: &str, model: &str, answer: &Answer, figures: &Figures) -> Value {
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        // Nothing here is signed; clients that send it back send it as it came.
        content.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        content.push(json!({"type": "text", "text": answer.content}));
    }
    for call in &answer.calls {
        content.push(
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input(&call.arguments)}),
        );
    }
    let stop = answer.end.as_ref().map(stop_reason);
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop.map(|s| s.0),
        "stop_sequence": stop.and_then(|s| s.1),
        "usage": figures.messages_usage(),
        "timings": figures.timings(),
        "metrics": figures.metrics(),
    })
}

/// Arguments are text to OpenAI and an object to Anthropic. What is no object was cut short.
fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::answer::Call;

    #[test]
    fn blocks_are_what_the_answer_had() {
        let call = Call { id: "t".into(), name: "f".into(), arguments: "{\"x\":1}".into() };
        let mut answer = Answer { reasoning: "hm".into(), calls: vec![call], ..Answer::default() };
        answer.end = Some(End { finish: Finish::EndToken, called: true, stop: None });
        let got = message("i", "m", &answer, &Figures::default());
        assert_eq!(
            got["content"],
            json!([{"type": "thinking", "thinking": "hm", "signature": ""},
                   {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}])
        );
        assert_eq!(got["stop_reason"], "tool_use");
        let empty = message("i", "m", &Answer::default(), &Figures::default());
        assert_eq!(empty["content"], json!([{"type": "text", "text": ""}]), "an answer has a block");
    }
}
