//! Chat completion chunks.

use std::sync::Arc;

use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::request::StreamOptions;
use super::response::{Head, finish_reason, stop_reason};
use crate::handle::TokenOut;
use crate::http::error::{ApiError, Shape};
use crate::http::figures::Figures;
use crate::http::logprobs;
use crate::http::running::Happening;
use crate::http::sse::{Events, Writer};
use crate::output::Piece;

pub(crate) struct Chunks {
    pub(crate) head: Head,
    pub(crate) options: StreamOptions,
    pub(crate) with_logprobs: bool,
    pub(crate) with_origins: bool,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Choices whose first chunk, with the role, was sent.
    pub(crate) begun: Vec<bool>,
    pub(crate) n_ended: usize,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": super::FINGERPRINT,
            "choices": choices,
        });
        // If and only if usage was asked for, every chunk has the field.
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: Value) -> Value {
        self.chunk(json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]))
    }

    fn begin(&mut self, choice: usize, out: &mut Events) {
        if !std::mem::replace(&mut self.begun[choice], true) {
            out.data(&self.delta(choice, json!({"role": "assistant", "content": ""})));
        }
    }

    fn more(
        &mut self,
        choice: usize,
        pieces: Vec<Piece>,
        tokens: &[TokenOut],
        figures: &Figures,
        out: &mut Events,
    ) {
        let mut deltas: Vec<Value> = pieces.into_iter().filter_map(delta_of).collect();
        let says_more = self.with_logprobs || self.with_origins;
        // Tokens without text of their own still have log-probabilities.
        if deltas.is_empty() && says_more && !tokens.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        if deltas.is_empty() {
            return;
        }
        self.begin(choice, out);
        for (i, delta) in deltas.into_iter().enumerate() {
            let mut chunk = self.delta(choice, delta);
            // What is told of tokens goes with the first chunk that they made.
            if i == 0 && self.with_logprobs && !tokens.is_empty() {
                let entries = logprobs::chat(&self.tokenizer, tokens);
                chunk["choices"][0]["logprobs"] = json!({"content": entries, "refusal": null});
            }
            if i == 0 && self.with_origins {
                chunk["choices"][0]["token_origins"] = logprobs::origins(tokens).into();
            }
            if self.options.continuous_usage {
                chunk["usage"] = figures.usage();
            }
            out.data(&chunk);
        }
    }
}

impl Writer for Chunks {
    fn happened(&mut self, happening: Happening, figures: &Figures, out: &mut Events) {
        match happening {
            // Clients time their first token by the first chunk.
            Happening::Started { .. } | Happening::Scored { .. } => {}
            Happening::More { choice, pieces, tokens } => self.more(choice, pieces, &tokens, figures, out),
            Happening::Ended { choice, end } => {
                self.begin(choice, out);
                self.n_ended += 1;
                let mut chunk = self.delta(choice, json!({}));
                chunk["choices"][0]["finish_reason"] = finish_reason(&end).into();
                chunk["choices"][0]["stop_reason"] = stop_reason(&end);
                // Without a chunk for figures the last one carries them.
                if self.n_ended == self.begun.len() && !self.options.include_usage {
                    figures.add_to(&mut chunk);
                }
                out.data(&chunk);
            }
        }
    }

    fn end(&mut self, figures: &Figures, out: &mut Events) {
        if self.options.include_usage {
            out.data(&figures.last_chunk(self.chunk(json!([]))));
        }
        out.done();
    }

    fn fail(&mut self, error: &ApiError, out: &mut Events) {
        out.data(&error.body(Shape::OpenAi));
        out.done();
    }
}

/// `index` on every delta of a call, id, type and name on the first only.
fn delta_of(piece: Piece) -> Option<Value> {
    match piece {
        Piece::Content(text) => Some(json!({"content": text})),
        Piece::Reasoning(text) => Some(json!({"reasoning_content": text, "reasoning": text})),
        Piece::CallStart { index, id, name } => Some(json!({"tool_calls": [
            {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        ]})),
        Piece::CallArgs { index, text } => {
            Some(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}))
        }
        Piece::CallEnd { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::running::End;
    use overdraft_engine::Finish;

    fn chunks(include_usage: bool) -> Chunks {
        let head = Head { id: "x".into(), created: 7, model: "m".into() };
        let options = StreamOptions { include_usage, continuous_usage: false };
        let tokenizer = Arc::new(crate::http::tiny_tokenizer());
        Chunks {
            head,
            options,
            with_logprobs: false,
            with_origins: false,
            tokenizer,
            begun: vec![false],
            n_ended: 0,
        }
    }

    /// The chunks' JSON, and whether the stream was closed in order.
    fn parsed(out: &Events) -> (Vec<Value>, bool) {
        let lines: Vec<&str> = out.text().split("\n\n").filter_map(|e| e.strip_prefix("data: ")).collect();
        let done = lines.last() == Some(&"[DONE]");
        let values = lines.iter().filter(|l| **l != "[DONE]").map(|l| serde_json::from_str(l).unwrap());
        (values.collect(), done)
    }

    fn run(chunks: &mut Chunks) -> (Vec<Value>, bool) {
        let (mut out, figures) = (Events::default(), Figures::default());
        let pieces = vec![
            Piece::Reasoning("hm".into()),
            Piece::Content("hi".into()),
            Piece::CallStart { index: 0, id: "c".into(), name: "f".into() },
            Piece::CallArgs { index: 0, text: "{}".into() },
            Piece::CallEnd { index: 0 },
        ];
        chunks.happened(Happening::Started { choice: 0 }, &figures, &mut out);
        chunks.happened(Happening::More { choice: 0, pieces, tokens: vec![] }, &figures, &mut out);
        let end = End { finish: Finish::EndToken, called: true, stop: None };
        chunks.happened(Happening::Ended { choice: 0, end }, &figures, &mut out);
        chunks.end(&figures, &mut out);
        parsed(&out)
    }

    #[test]
    fn chunks_come_in_the_order_that_clients_rely_on() {
        let (got, done) = run(&mut chunks(false));
        let deltas: Vec<&Value> = got.iter().map(|c| &c["choices"][0]["delta"]).collect();
        assert_eq!(
            deltas,
            [
                &json!({"role": "assistant", "content": ""}),
                &json!({"reasoning_content": "hm", "reasoning": "hm"}),
                &json!({"content": "hi"}),
                &json!({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
                &json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
                &json!({}),
            ]
        );
        assert_eq!(got[5]["choices"][0]["finish_reason"], "tool_calls");
        assert!(done && got.iter().all(|c| c.get("usage").is_none()));
        assert!(got[5]["metrics"].is_object(), "the last chunk tells the figures");
    }

    #[test]
    fn usage_comes_in_a_chunk_of_its_own_if_it_was_asked_for() {
        let (got, done) = run(&mut chunks(true));
        let (last, before) = got.split_last().unwrap();
        assert!(done && before.iter().all(|c| c["usage"].is_null() && c.get("usage").is_some()));
        assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(0)));
    }

    #[test]
    fn a_failure_is_told_in_the_stream() {
        let mut out = Events::default();
        chunks(false).fail(&ApiError::new(crate::http::error::Fault::Unavailable, "gone"), &mut out);
        let (got, done) = parsed(&out);
        assert_eq!((&got[0]["error"]["message"], done), (&json!("gone"), true));
    }
}
