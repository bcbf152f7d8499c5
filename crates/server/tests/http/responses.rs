//! The Responses API.

use serde_json::{Value, json};

use crate::client::post;
use crate::server::plain;

fn body(more: Value) -> Value {
    let mut body = json!({"input": "Add two numbers", "max_output_tokens": 12, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_response_is_the_same_whole_and_in_events() {
    let whole = post(plain(), "/v1/responses", &body(json!({}))).ok();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    let text = &whole["output"][0]["content"][0]["text"];
    assert!(!text.as_str().unwrap().is_empty());
    assert_eq!(whole["usage"]["output_tokens"], 12);

    let events = post(plain(), "/v1/responses", &body(json!({"stream": true}))).events();
    assert!(
        events
            .iter()
            .enumerate()
            .all(|(i, (name, e))| e["sequence_number"] == i && e["type"] == name.as_str())
    );
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    let tail = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(names[names.len() - 4..], tail);
    let delta = |(name, e): &(String, Value)| {
        (name == "response.output_text.delta").then(|| e["delta"].as_str().unwrap().to_owned())
    };
    assert_eq!(events.iter().filter_map(delta).collect::<String>(), text.as_str().unwrap());
    let last = &events.last().unwrap().1["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
}

#[test]
fn the_same_conversation_is_the_same_prompt_as_in_chat() {
    let input = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "Write Python."}]},
        {"role": "user", "content": "Add two numbers"},
    ]);
    let response = post(plain(), "/v1/responses", &body(json!({"input": input}))).ok();
    let messages = json!([
        {"role": "developer", "content": "Write Python."},
        {"role": "user", "content": "Add two numbers"},
    ]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let chat = post(plain(), "/v1/chat/completions", &chat).ok();
    assert_eq!(response["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn log_probabilities_come_with_the_text() {
    let more = json!({"top_logprobs": 2, "include": ["message.output_text.logprobs"]});
    let response = post(plain(), "/v1/responses", &body(more)).ok();
    let entries = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(entries.len(), 12);
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
}
