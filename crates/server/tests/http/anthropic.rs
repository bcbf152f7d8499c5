//! Anthropic's messages.

use serde_json::{Value, json};

use crate::client::post;
use crate::server::plain;

fn body(more: Value) -> Value {
    let mut body = json!({
        "model": "demo", "max_tokens": 12, "temperature": 0,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Add two numbers"}]}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_message_is_the_same_whole_and_in_events() {
    let whole = post(plain(), "/v1/messages?beta=true", &body(json!({}))).ok();
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert_eq!(whole["usage"]["output_tokens"], 12);

    let events = post(plain(), "/v1/messages", &body(json!({"stream": true}))).events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let got: String = events.iter().filter_map(|(_, e)| e["delta"]["text"].as_str()).collect();
    assert_eq!(got, text);
    let start = &events[0].1["message"]["usage"];
    let input = |usage: &Value| {
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(input(start), input(&whole["usage"]));
    let delta = &events[events.len() - 2].1;
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(12))
    );

    let counted = post(
        plain(),
        "/v1/messages/count_tokens",
        &json!({"model": "demo", "messages": body(json!({}))["messages"]}),
    )
    .ok();
    assert_eq!(counted["input_tokens"], input(start));
}

#[test]
fn a_stop_sequence_is_named() {
    let text = post(plain(), "/v1/messages", &body(json!({}))).ok()["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let stop: String = text.chars().skip(3).take(2).collect();
    let cut = post(plain(), "/v1/messages", &body(json!({"stop_sequences": [stop]}))).ok();
    assert_eq!((&cut["stop_reason"], &cut["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(cut["content"][0]["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
}

#[test]
fn what_an_agent_sends_is_taken() {
    let request = body(json!({
        "max_tokens": 32000, "stop_sequences": ["\n"],
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "Write Python."}],
        "thinking": {"type": "adaptive"}, "context_management": {"edits": []}, "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
    }));
    let answer = post(plain(), "/v1/messages?beta=true", &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-overdraft-ignored"), Some("context_management"));
}

#[test]
fn errors_have_anthropics_shape() {
    for (request, status, kind) in [
        (json!({"messages": []}), 400, "invalid_request_error"),
        (body(json!({"model": "claude"})), 404, "not_found_error"),
        (
            body(json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
            400,
            "invalid_request_error",
        ),
    ] {
        let answer = post(plain(), "/v1/messages", &request);
        assert_eq!(answer.status, status);
        let error = answer.json();
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)));
        assert!(error["error"]["message"].is_string());
    }
}
