//! Calls of tools, streamed by three APIs.

use serde_json::{Value, json};

use crate::client::post;
use crate::server::plain;

fn parameters() -> Value {
    json!({
        "type": "object", "required": ["path", "count"], "additionalProperties": false,
        "properties": {"path": {"type": "string", "minLength": 24, "maxLength": 40}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    })
}

fn ask(api: &str, stream: bool) -> crate::client::Response {
    let text = "Add two numbers";
    let body = match api {
        "/v1/chat/completions" => json!({
            "messages": [{"role": "user", "content": text}], "max_tokens": 400, "temperature": 0, "stream": stream,
            "tools": [{"type": "function", "function": {"name": "write", "parameters": parameters()}}],
            "tool_choice": "required", "parallel_tool_calls": false,
        }),
        "/v1/responses" => json!({
            "input": text, "max_output_tokens": 400, "temperature": 0, "stream": stream,
            "tools": [{"type": "function", "name": "write", "parameters": parameters()}],
            "tool_choice": "required", "parallel_tool_calls": false,
        }),
        _ => json!({
            "messages": [{"role": "user", "content": text}], "max_tokens": 400, "temperature": 0, "stream": stream,
            "tools": [{"name": "write", "input_schema": parameters()}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }),
    };
    post(plain(), api, &body)
}

/// The places in the list where `is` holds.
fn places(events: &[(String, Value)], is: impl Fn(&Value) -> bool) -> Vec<usize> {
    (0..events.len()).filter(|i| is(&events[*i].1)).collect()
}

#[test]
fn chat_names_the_function_and_then_its_arguments_as_they_are_written() {
    let api = "/v1/chat/completions";
    let whole = ask(api, false).ok()["choices"][0]["message"]["tool_calls"][0]["function"].clone();
    assert_eq!(whole["name"], "write");
    let events = ask(api, true).events();
    let call = |c: &Value| c["choices"][0]["delta"]["tool_calls"][0].clone();
    let deltas: Vec<Value> = events.iter().map(|(_, c)| call(c)).filter(|c| !c.is_null()).collect();
    assert_eq!(
        (&deltas[0]["type"], &deltas[0]["function"]),
        (&json!("function"), &json!({"name": "write", "arguments": ""}))
    );
    assert!(deltas[0]["id"].as_str().unwrap().starts_with("call_"));
    assert!(
        deltas[1..]
            .iter()
            .all(|d| d["index"] == 0 && d.get("id").is_none() && d["function"].get("name").is_none())
    );
    let joined: String = deltas.iter().map(|d| d["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(joined, whole["arguments"]);
    assert!(deltas.len() > 4, "{} deltas of {joined}", deltas.len());
    let arguments: Value = serde_json::from_str(&joined).unwrap();
    assert!(arguments["path"].is_string() && arguments["count"].is_u64());
}

#[test]
fn responses_have_an_event_for_each_piece_of_the_arguments_and_one_for_all() {
    let api = "/v1/responses";
    let whole = ask(api, false).ok();
    let arguments = whole["output"].as_array().unwrap().last().unwrap()["arguments"].clone();
    let events = ask(api, true).events();
    let of = |kind: &str| places(&events, |e| e["type"] == format!("response.{kind}"));
    let deltas = of("function_call_arguments.delta");
    let joined: String = deltas.iter().map(|i| events[*i].1["delta"].as_str().unwrap()).collect();
    assert_eq!(joined, arguments);
    assert!(deltas.len() > 3, "{} deltas of {joined}", deltas.len());
    let done = of("function_call_arguments.done");
    assert_eq!((done.len(), &events[done[0]].1["arguments"]), (1, &arguments));
    let added = places(&events, |e| {
        e["type"] == "response.output_item.added" && e["item"]["type"] == "function_call"
    });
    assert!(added[0] < deltas[0] && deltas[deltas.len() - 1] < done[0]);
    assert_eq!(events[added[0]].1["item"]["name"], "write");
}

#[test]
fn messages_build_the_input_of_a_block_from_its_deltas() {
    let api = "/v1/messages";
    let whole = ask(api, false).ok();
    let block = whole["content"].as_array().unwrap().last().unwrap();
    let events = ask(api, true).events();
    let deltas = places(&events, |e| e["delta"]["type"] == "input_json_delta");
    let joined: String =
        deltas.iter().map(|i| events[*i].1["delta"]["partial_json"].as_str().unwrap()).collect();
    assert_eq!(&serde_json::from_str::<Value>(&joined).unwrap(), &block["input"]);
    assert!(deltas.len() > 3, "{} deltas of {joined}", deltas.len());
    let start = places(&events, |e| e["content_block"]["type"] == "tool_use")[0];
    assert_eq!(
        (&events[start].1["content_block"]["name"], &events[start].1["content_block"]["input"]),
        (&json!("write"), &json!({}))
    );
    assert!(start < deltas[0]);
    assert_eq!(whole["stop_reason"], "tool_use");
}

#[test]
fn a_call_that_was_cut_off_is_told_as_far_as_it_was_written() {
    let mut body = json!({
        "messages": [{"role": "user", "content": "x"}], "temperature": 0, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "write", "parameters": parameters()}}],
    });
    let full = post(plain(), "/v1/chat/completions", &{
        body["max_tokens"] = 400.into();
        body.clone()
    })
    .ok();
    let arguments = full["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    body["max_tokens"] = (full["usage"]["completion_tokens"].as_u64().unwrap() / 2).into();
    let cut = post(plain(), "/v1/chat/completions", &body).ok();
    let choice = &cut["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let begun = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(arguments.starts_with(begun) && begun.len() < arguments.len(), "{begun} of {arguments}");
}
