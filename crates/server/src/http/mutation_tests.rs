//! Requests with one or a few things wrong, thousands of them: each is read, or refused by the name of a field.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::chat::request::ChatRequest;
use super::completions::request::CompletionRequest;
use super::error::ApiError;
use super::fields::Fields;
use super::messages::request::MessagesRequest;
use super::responses::request::ResponsesRequest;
use super::settings::Defaults;

/// What any field may be given instead.
static STRANGE: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(-1e-308),
        json!(""),
        json!("x"),
        json!("\u{0}\u{feff}\u{1F600}"),
        json!("a".repeat(100_000)),
        json!([]),
        json!([null]),
        json!(vec![0; 20_000]),
        json!({}),
        json!({"": null}),
        json!({"type": "function"}),
        deep,
    ]
});

/// Draws by splitmix64, so that a failure can be had again by its seed.
struct Mutator {
    state: u64,
}

impl Mutator {
    fn below(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) % n.max(1) as u64) as usize
    }

    /// Changes one value somewhere inside.
    fn mutate(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) if !map.is_empty() && self.below(4) > 0 => {
                let at = self.below(map.len());
                if let Some(inner) = map.values_mut().nth(at) {
                    self.mutate(inner);
                }
            }
            Value::Array(list) if !list.is_empty() && self.below(4) > 0 => {
                let at = self.below(list.len());
                self.mutate(&mut list[at]);
            }
            Value::Object(map) => match self.below(3) {
                0 => map.clear(),
                1 => {
                    let keys: Vec<String> = map.keys().cloned().collect();
                    if let Some(key) = keys.get(self.below(keys.len())) {
                        map.remove(key);
                    }
                }
                _ => {
                    let strange = self.strange();
                    map.insert("odd".into(), strange);
                }
            },
            Value::Array(list) => {
                let copies = list.clone();
                list.extend(copies);
                let strange = self.strange();
                list.push(strange);
            }
            other => *other = self.strange(),
        }
    }

    fn strange(&mut self) -> Value {
        STRANGE[self.below(STRANGE.len())].clone()
    }
}

type Read = fn(Fields, &Defaults) -> Option<ApiError>;

fn apis() -> [(Value, Read); 4] {
    let tools = json!([{"type": "function", "name": "f", "input_schema": {}, "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let common = json!({
        "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["a", "b"], "logit_bias": {"3": 1},
        "frequency_penalty": 0.1, "stop_token_ids": [2], "speculative": {"max_depth": 3}, "stream": true, "tools": tools,
        "chat_template_kwargs": {"a": 1}, "cache_salt": "s", "repetition_penalty": 1.1, "reasoning_effort": "low",
    });
    let with = |more: Value| {
        let mut body: Map<String, Value> = common.as_object().cloned().unwrap_or_default();
        body.extend(more.as_object().cloned().unwrap_or_default());
        Value::Object(body)
    };
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let chat = json!({
        "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": null, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "n": 2, "logprobs": true, "top_logprobs": 2, "max_tokens": 5, "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "stream_options": {"include_usage": true},
    });
    let raw = json!({"prompt": [[1, 2], [3]], "n": 2, "logprobs": 3, "max_tokens": 0, "echo": true, "prompt_logprobs": 2, "stream": false, "structured_outputs": {"choice": ["a"]}});
    let responses = json!({
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"}, {"type": "reasoning", "content": [{"text": "t"}]},
        ],
        "instructions": "i", "max_output_tokens": 5, "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "include": ["x"],
    });
    let messages = json!({
        "system": [{"type": "text", "text": "s"}], "max_tokens": 5, "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]}]},
        ],
        "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "enabled", "budget_tokens": 1000}, "output_config": {"effort": "low"},
        "stop_sequences": ["x"],
    });
    [
        (with(chat), |f, d| ChatRequest::read(f, d).err()),
        (with(raw), |f, d| CompletionRequest::read(f, d).err()),
        (with(responses), |f, d| ResponsesRequest::read(f, d).err()),
        (with(messages), |f, d| MessagesRequest::read(f, d).err()),
    ]
}

#[test]
fn ten_thousand_odd_requests_are_read_or_refused_by_name() {
    let defaults = Defaults { vocab: 100, end_ids: vec![1], recommended: Default::default() };
    let (mut read, mut refused) = (0, 0);
    for (which, (body, reader)) in apis().into_iter().enumerate() {
        let as_it_is = reader(Fields::of_value(body.clone(), "").unwrap(), &defaults);
        assert_eq!(as_it_is, None, "what is mutated is right to begin with");
        for seed in 0..2500 {
            let mut mutator = Mutator { state: seed * 4 + which as u64 };
            let mut odd = body.clone();
            for _ in 0..=mutator.below(3) {
                mutator.mutate(&mut odd);
            }
            let Ok(fields) = Fields::of_value(odd, "") else { continue };
            match reader(fields, &defaults) {
                None => read += 1,
                Some(error) => {
                    refused += 1;
                    assert!(error.param.is_some() && error.fault.status() == 400, "{error:?}");
                    assert!(error.message.len() < 1000, "nothing long is quoted back");
                }
            }
        }
    }
    assert!(read > 500 && refused > 5000, "{read} read, {refused} refused");
}
