//! A response's items as they grow, and the events that tell of it. A whole answer is made of the same items.

use std::sync::Arc;

use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::handle::TokenOut;
use crate::http::logprobs;
use crate::http::request_id::fresh;
use crate::http::sse::Events;
use crate::output::Piece;

/// Events in order, each with its number.
#[derive(Debug, Default)]
pub(super) struct Numbered {
    next: u64,
    pub(super) events: Events,
}

impl Numbered {
    pub(super) fn push(&mut self, name: &str, mut event: Value) {
        event["type"] = name.into();
        event["sequence_number"] = self.next.into();
        self.next += 1;
        self.events.named(name, &event);
    }
}

#[derive(Debug)]
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String, logprobs: Vec<Value> },
    Call { id: String, call_id: String, name: String, arguments: String },
}

pub(super) struct Items {
    pub(super) done: Vec<Value>,
    open: Option<Open>,
    /// `None` where nobody asked for log-probabilities.
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// What is told of tokens whose text has not come out yet.
    waiting: Vec<Value>,
}

impl Items {
    pub(super) fn new(tokenizer: Option<Arc<Tokenizer>>) -> Self {
        Self { done: Vec::new(), open: None, tokenizer, waiting: Vec::new() }
    }

    fn index(&self) -> usize {
        self.done.len()
    }

    /// More of the answer. `tokens` are those it came from.
    pub(super) fn add(&mut self, pieces: Vec<Piece>, tokens: &[TokenOut], out: &mut Numbered) {
        if let Some(tokenizer) = &self.tokenizer {
            self.waiting.extend(logprobs::chat(tokenizer, tokens));
        }
        let is_all_held = pieces.is_empty();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.reasoning(text, out),
                // What is told of tokens goes with the first text that they made.
                Piece::Content(text) => {
                    let entries = std::mem::take(&mut self.waiting);
                    self.content(text, entries, out);
                }
                Piece::CallStart { id, name, .. } => self.call(id, name, out),
                Piece::CallArgs { text, .. } => self.arguments(&text, out),
                Piece::CallEnd { .. } => self.close("completed", out),
            }
        }
        if !is_all_held {
            // Of thoughts and calls nothing is told.
            self.waiting.clear();
        }
    }

    fn reasoning(&mut self, delta: String, out: &mut Numbered) {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            self.close("completed", out);
            let id = fresh("rs_");
            let item =
                json!({"id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"});
            out.push("response.output_item.added", json!({"output_index": self.index(), "item": item}));
            self.open = Some(Open::Reasoning { id, text: String::new() });
        }
        let index = self.index();
        if let Some(Open::Reasoning { id, text }) = &mut self.open {
            text.push_str(&delta);
            let event = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": delta});
            out.push("response.reasoning_text.delta", event);
        }
    }

    fn content(&mut self, delta: String, entries: Vec<Value>, out: &mut Numbered) {
        if !matches!(self.open, Some(Open::Message { .. })) {
            self.close("completed", out);
            let id = fresh("msg_");
            let item = json!({"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []});
            out.push("response.output_item.added", json!({"output_index": self.index(), "item": item}));
            let part = output_text("", &[]);
            let event =
                json!({"item_id": id, "output_index": self.index(), "content_index": 0, "part": part});
            out.push("response.content_part.added", event);
            self.open = Some(Open::Message { id, text: String::new(), logprobs: Vec::new() });
        }
        let index = self.index();
        if let Some(Open::Message { id, text, logprobs }) = &mut self.open {
            text.push_str(&delta);
            let event = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": delta, "logprobs": entries});
            logprobs.extend(entries);
            out.push("response.output_text.delta", event);
        }
    }

    fn call(&mut self, call_id: String, name: String, out: &mut Numbered) {
        self.close("completed", out);
        let id = fresh("fc_");
        let item = function_call(&id, &call_id, &name, "", "in_progress");
        out.push("response.output_item.added", json!({"output_index": self.index(), "item": item}));
        self.open = Some(Open::Call { id, call_id, name, arguments: String::new() });
    }

    fn arguments(&mut self, delta: &str, out: &mut Numbered) {
        let index = self.index();
        if let Some(Open::Call { id, arguments, .. }) = &mut self.open {
            arguments.push_str(delta);
            let event = json!({"item_id": id, "output_index": index, "delta": delta});
            out.push("response.function_call_arguments.delta", event);
        }
    }

    /// Ends the item that is open.
    pub(super) fn close(&mut self, status: &str, out: &mut Numbered) {
        let index = self.index();
        let Some(open) = self.open.take() else { return };
        let item = match open {
            Open::Reasoning { id, text } => {
                let event = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                out.push("response.reasoning_text.done", event);
                let content = json!([{"type": "reasoning_text", "text": text}]);
                json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Open::Message { id, text, mut logprobs } => {
                logprobs.append(&mut self.waiting);
                let place = json!({"item_id": id, "output_index": index, "content_index": 0});
                let with = |name: &str, value: Value| {
                    let mut event = place.clone();
                    event[name] = value;
                    event
                };
                let mut event = with("text", text.as_str().into());
                event["logprobs"] = logprobs.clone().into();
                out.push("response.output_text.done", event);
                let part = output_text(&text, &logprobs);
                out.push("response.content_part.done", with("part", part.clone()));
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part]})
            }
            Open::Call { id, call_id, name, arguments } => {
                let event =
                    json!({"item_id": id, "output_index": index, "name": name, "arguments": arguments});
                out.push("response.function_call_arguments.done", event);
                function_call(&id, &call_id, &name, &arguments, status)
            }
        };
        out.push("response.output_item.done", json!({"output_index": index, "item": item}));
        self.done.push(item);
    }
}

fn output_text(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

fn function_call(id: &str, call_id: &str, name: &str, arguments: &str, status: &str) -> Value {
    json!({"id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": status})
}
