//! Chat completions and completions.

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::server::{CONTEXT, plain};

const CHAT: &str = "/v1/chat/completions";
const RAW: &str = "/v1/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Add two numbers"}], "max_tokens": 12, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn raw(more: Value) -> Value {
    let mut body = json!({"prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_stream_brings_the_whole_answer_in_pieces() {
    let whole = post(plain(), CHAT, &chat(json!({}))).ok();
    let events =
        post(plain(), CHAT, &chat(json!({"stream": true, "stream_options": {"include_usage": true}})))
            .events();
    let (done, chunks) = events.split_last().unwrap();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(done.1, "[DONE]");
    assert_eq!(chunks[0].1["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String =
        chunks.iter().filter_map(|(_, c)| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    assert!(!text.is_empty());
    let last = &chunks.last().unwrap().1["choices"][0];
    assert_eq!((&last["finish_reason"], &last["delta"]), (&json!("length"), &json!({})));
    assert_eq!(usage.1["choices"], json!([]));
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage.1["usage"][name], whole["usage"][name], "{name}");
    }
    assert_eq!(usage.1["usage"]["completion_tokens"], 12);
    assert!(
        chunks.iter().all(|(_, c)| c["id"] == chunks[0].1["id"] && c["object"] == "chat.completion.chunk")
    );
}

#[test]
fn an_answer_tells_its_figures_in_the_words_of_both_peers() {
    let answer = post(plain(), RAW, &raw(json!({"max_tokens": 32}))).ok();
    let (timings, spec) = (&answer["timings"], &answer["metrics"]["speculative_decoding"]);
    assert_eq!(timings["predicted_n"], 32);
    assert_eq!(
        timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap(),
        answer["usage"]["prompt_tokens"]
    );
    let histogram: Vec<u64> =
        spec["acceptance_histogram"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(histogram.len() as u64, spec["num_spec_tokens"].as_u64().unwrap() + 1);
    assert_eq!(histogram.iter().sum::<u64>(), spec["num_spec_steps"]);
    let accepted: u64 = histogram.iter().enumerate().map(|(i, n)| i as u64 * n).sum();
    assert_eq!(accepted, spec["num_accepted_draft_tokens"]);
    assert_eq!(timings["draft_n_accepted"], accepted);
    assert_eq!(answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], accepted);
}

#[test]
fn speculation_can_be_switched_off_and_changes_no_text() {
    for more in [
        json!({}),
        json!({"temperature": 0.8, "seed": 7}),
        json!({"temperature": 1, "seed": 8, "top_p": 0.9}),
    ] {
        let text = |speculative: Value| {
            let mut body = raw(json!({"max_tokens": 24, "speculative": speculative}));
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = post(plain(), RAW, &body).ok();
            let steps = answer["metrics"]["speculative_decoding"]["num_spec_steps"].as_u64().unwrap();
            assert!(speculative != false || steps == 0, "off is off");
            answer["choices"][0]["text"].clone()
        };
        let plain_text = text(json!(false));
        for speculative in [json!(true), json!({"max_depth": 2}), json!({"max_nodes": 3})] {
            assert_eq!(text(speculative.clone()), plain_text, "{more} {speculative}");
        }
    }
}

#[test]
fn several_prompts_and_answers_are_what_each_would_be_alone() {
    let prompts = ["def add(a, b):\n", "class Stack:\n"];
    let settings = json!({"temperature": 0.9, "seed": 3, "n": 2, "ignore_eos": true});
    let body = |prompt: Value| {
        let mut body = raw(settings.clone());
        body["prompt"] = prompt;
        body
    };
    let together = post(plain(), RAW, &body(json!(prompts))).ok();
    let texts: Vec<&Value> = together["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    let indices: Vec<&Value> = together["choices"].as_array().unwrap().iter().map(|c| &c["index"]).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let alone: Vec<Value> = prompts
        .iter()
        .flat_map(|prompt| {
            let answer = post(plain(), RAW, &body(json!(prompt))).ok();
            [answer["choices"][0]["text"].clone(), answer["choices"][1]["text"].clone()]
        })
        .collect();
    assert_eq!(texts, alone.iter().collect::<Vec<_>>());
    assert_ne!(texts[0], texts[1], "two answers are two draws");
    assert_eq!(together["usage"]["completion_tokens"], 48);
}

#[test]
fn text_and_its_tokens_are_the_same_prompt() {
    let tokens = post(plain(), "/tokenize", &json!({"content": "def add(a, b):\n"})).ok();
    let text = post(plain(), "/detokenize", &json!({"tokens": tokens["tokens"]})).ok();
    assert_eq!(text["content"], "def add(a, b):\n");
    let of = |prompt: Value| {
        let mut body = raw(json!({"echo": true, "add_special_tokens": false}));
        body["prompt"] = prompt;
        post(plain(), RAW, &body).ok()["choices"][0]["text"].clone()
    };
    let from_text = of(json!("def add(a, b):\n"));
    assert_eq!(from_text, of(tokens["tokens"].clone()));
    assert!(from_text.as_str().unwrap().starts_with("def add(a, b):\n"), "the prompt is echoed");
    let messages = json!([{"role": "user", "content": "hi"}]);
    let prompt = post(plain(), "/apply-template", &json!({"messages": messages})).ok();
    assert!(prompt["prompt"].as_str().unwrap().contains("hi"));
    assert_eq!(post(plain(), "/tokenize", &json!({"messages": messages})).ok()["count"], prompt["count"]);
}

#[test]
fn log_probabilities_come_for_every_token_drafted_or_not() {
    let whole = post(plain(), CHAT, &chat(json!({"logprobs": true, "top_logprobs": 3}))).ok();
    let entries = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 12);
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&entry["token"], &entry["logprob"]),
            "greedy takes the best"
        );
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values[0] <= 0.0 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
    }
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|e| e["bytes"].as_array().unwrap())
        .map(|b| b.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(
        String::from_utf8(bytes).unwrap(),
        whole["choices"][0]["message"]["content"].as_str().unwrap()
    );
    let off =
        post(plain(), CHAT, &chat(json!({"logprobs": true, "top_logprobs": 3, "speculative": false}))).ok();
    assert_eq!(off["choices"][0]["logprobs"], whole["choices"][0]["logprobs"], "to the last bit");
    let streamed =
        post(plain(), CHAT, &chat(json!({"logprobs": true, "top_logprobs": 3, "stream": true}))).events();
    let joined: Vec<Value> = streamed
        .iter()
        .filter_map(|(_, c)| c["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&joined, entries);

    let raw = post(plain(), RAW, &raw(json!({"logprobs": 2}))).ok();
    let lists = &raw["choices"][0]["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().unwrap().len(), 12, "{name}");
    }
}

#[test]
fn a_text_ends_before_its_stop() {
    let whole = post(plain(), RAW, &raw(json!({"max_tokens": 24}))).ok();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    // Somewhere inside, wherever tokens end.
    let at = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[at..].chars().take(3).collect();
    let expected = &text[..text.find(&stop).unwrap()];
    for body in [json!({"stop": stop}), json!({"stop": [stop]})] {
        let cut = post(plain(), RAW, &raw(json!({"max_tokens": 24, "stop": body["stop"]}))).ok();
        let choice = &cut["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(expected), &json!("stop")));
        assert_eq!(choice["stop_reason"], stop);
    }
    let tokens = post(plain(), "/tokenize", &json!({"content": text})).ok();
    let third = tokens["tokens"][2].clone();
    let cut = post(plain(), RAW, &raw(json!({"max_tokens": 24, "stop_token_ids": [third]}))).ok();
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    assert_eq!(cut["choices"][0]["stop_reason"], third);
}

#[test]
fn more_tokens_than_the_context_leaves_are_clamped_and_longer_prompts_refused() {
    let ids = vec![100; CONTEXT - 5];
    let answer =
        post(plain(), RAW, &json!({"prompt": ids, "max_tokens": 1_000_000_000_000i64, "ignore_eos": true}))
            .ok();
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["choices"][0]["stop_reason"]),
        (&json!("length"), &json!("context"))
    );
    let refused = post(plain(), RAW, &json!({"prompt": vec![100; CONTEXT]}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[test]
fn what_came_before_is_not_read_again() {
    let ids: Vec<u32> = (0..150).map(|i| 300 + i).collect();
    let body = json!({"prompt": ids, "max_tokens": 4, "temperature": 0, "cache_salt": "what_came_before"});
    let cold = post(plain(), RAW, &body).ok();
    let warm = post(plain(), RAW, &body).ok();
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 128, "whole blocks of 64");
    assert_eq!(cold["choices"], warm["choices"]);
    let mut other = body;
    other["cache_salt"] = "another".into();
    assert_eq!(post(plain(), RAW, &other).ok()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn models_are_listed_and_others_refused() {
    let models = get(plain(), "/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(models["data"][0]["max_model_len"], CONTEXT);
    assert_eq!(get(plain(), "/v1/models/demo").ok()["id"], "demo");
    assert_eq!(get(plain(), "/v1/models/org/other").status, 404);
    let refused = post(plain(), CHAT, &chat(json!({"model": "../../etc/passwd"})));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(!refused.text().contains("passwd"), "nothing is quoted back");
}

#[test]
fn tokens_say_how_they_came_to_be_if_asked() {
    let body = raw(json!({"max_tokens": 24, "stream": true, "token_origins": true}));
    let events = post(plain(), RAW, &body).events();
    let origins: Vec<Value> = events
        .iter()
        .filter_map(|(_, c)| c["choices"][0]["token_origins"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(origins.len(), 24);
    let text: String = origins.iter().map(|o| o["text"].as_str().unwrap()).collect();
    assert_eq!(
        text,
        post(plain(), RAW, &raw(json!({"max_tokens": 24}))).ok()["choices"][0]["text"].as_str().unwrap()
    );
    assert!(
        origins.iter().all(|o| ["plain", "accepted", "corrected"].contains(&o["origin"].as_str().unwrap()))
    );
}
