//! Any text as a template, over a conversation that has one of everything: no panic, no overflow, and never
//! more than the budget. The input is the source; its first byte picks what else is known.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use overdraft_formats::template::{ChatInput, ChatTemplate, Limits};
use serde_json::{Map, Value, json};

static MESSAGES: LazyLock<Value> = LazyLock::new(|| {
    json!([
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": [{"type": "text", "text": "héllo"}, {"type": "image"}]},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes", "reasoning_content": null},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "y": [true]}}}]},
        {"role": "tool", "name": "f", "content": "{\"a\": 1}"},
        {"role": "user", "content": "日本 😀"},
    ])
});
static TOOLS: LazyLock<Value> = LazyLock::new(|| {
    json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
        "type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "array", "items": {"type": "string"}}}}}}])
});

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::parse("fuzz", source) else { return };
    let choice = source.as_bytes().first().copied().unwrap_or(0);
    let input = ChatInput {
        messages: &MESSAGES,
        tools: (choice & 1 == 0).then(|| &*TOOLS),
        add_generation_prompt: choice & 2 == 0,
        bos_token: Some("<s>"),
        eos_token: (choice & 4 == 0).then_some("</s>"),
        extra: &Map::new(),
    };
    let Ok(vars) = template.variables(&input) else { return };
    // Small limits keep the executions many; the deep ones come first all the same.
    let limits = Limits { steps: 20_000, bytes: 1 << 20, time: Duration::from_secs(5), ..Limits::default() };
    if let Ok(text) = template.render(&vars, &limits) {
        assert!(text.len() <= limits.bytes);
    }
});
