//! Events of a message: blocks that open, grow and close.

use serde_json::{Value, json};

use super::response::stop_reason;
use crate::http::error::{ApiError, Shape};
use crate::http::figures::Figures;
use crate::http::running::{End, Happening};
use crate::http::sse::{Events, Writer};
use crate::output::Piece;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

pub(crate) struct MessageEvents {
    id: String,
    model: String,
    has_begun: bool,
    open: Option<Block>,
    /// Of the block that is open, or comes next.
    index: usize,
    end: Option<End>,
}

impl MessageEvents {
    pub(crate) fn new(id: String, model: String) -> Self {
        Self { id, model, has_begun: false, open: None, index: 0, end: None }
    }

    fn begin(&mut self, figures: &Figures, out: &mut Events) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let mut usage = figures.messages_usage();
        usage["output_tokens"] = 0.into();
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        out.named("message_start", &json!({"type": "message_start", "message": message}));
    }

    fn close(&mut self, out: &mut Events) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.delta(json!({"type": "signature_delta", "signature": ""}), out);
        }
        out.named("content_block_stop", &json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
    }

    /// Makes `block` the open one. A call opens a block of its own each time.
    fn open(&mut self, block: Block, content: Value, out: &mut Events) {
        if self.open == Some(block) && block != Block::Call {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let event = json!({"type": "content_block_start", "index": self.index, "content_block": content});
        out.named("content_block_start", &event);
    }

    fn delta(&self, delta: Value, out: &mut Events) {
        let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        out.named("content_block_delta", &event);
    }

    fn piece(&mut self, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Reasoning(text) => {
                self.open(Block::Thinking, json!({"type": "thinking", "thinking": "", "signature": ""}), out);
                self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Piece::Content(text) => {
                self.open(Block::Text, json!({"type": "text", "text": ""}), out);
                self.delta(json!({"type": "text_delta", "text": text}), out);
            }
            Piece::CallStart { id, name, .. } => {
                self.open(Block::Call, json!({"type": "tool_use", "id": id, "name": name, "input": {}}), out);
            }
            Piece::CallArgs { text, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": text}), out);
            }
            Piece::CallEnd { .. } => self.close(out),
        }
    }
}

impl Writer for MessageEvents {
    fn happened(&mut self, happening: Happening, figures: &Figures, out: &mut Events) {
        match happening {
            Happening::Started { .. } | Happening::Scored { .. } => self.begin(figures, out),
            Happening::More { pieces, .. } => {
                self.begin(figures, out);
                pieces.into_iter().for_each(|piece| self.piece(piece, out));
            }
            Happening::Ended { end, .. } => self.end = Some(end),
        }
    }

    fn end(&mut self, figures: &Figures, out: &mut Events) {
        self.begin(figures, out);
        self.close(out);
        // An answer has a block, if an empty one.
        if self.index == 0 {
            self.open(Block::Text, json!({"type": "text", "text": ""}), out);
            self.close(out);
        }
        let stop = self.end.as_ref().map(stop_reason);
        out.named(
            "message_delta",
            &json!({
                "type": "message_delta",
                "delta": {"stop_reason": stop.map(|s| s.0), "stop_sequence": stop.and_then(|s| s.1)},
                "usage": figures.messages_usage(),
                "timings": figures.timings(),
                "metrics": figures.metrics(),
            }),
        );
        out.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Events) {
        out.named("error", &error.body(Shape::Anthropic));
    }

    fn ping(&mut self, out: &mut Events) {
        // Before the first event there is no message that a ping could belong to.
        if self.has_begun { out.named("ping", &json!({"type": "ping"})) } else { out.comment() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdraft_engine::Finish;

    fn events(pieces: Vec<Piece>) -> Vec<String> {
        let (mut events, mut out) = (MessageEvents::new("i".into(), "m".into()), Events::default());
        let figures = Figures::default();
        events.happened(Happening::Started { choice: 0 }, &figures, &mut out);
        events.happened(Happening::More { choice: 0, pieces, tokens: vec![] }, &figures, &mut out);
        let end = End { finish: Finish::EndToken, called: false, stop: None };
        events.happened(Happening::Ended { choice: 0, end }, &figures, &mut out);
        events.end(&figures, &mut out);
        let event = |e: &str| {
            let (name, data) = e.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name, "the data repeats the name");
            let index = data.get("index").map(|i| format!(" {i}")).unwrap_or_default();
            let kind = data.pointer("/content_block/type").or(data.pointer("/delta/type"));
            format!("{name}{index}{}", kind.map(|k| format!(" {}", k.as_str().unwrap())).unwrap_or_default())
        };
        out.text().split_terminator("\n\n").map(event).collect()
    }

    #[test]
    fn blocks_open_and_close_in_order() {
        let call = |index| {
            [
                Piece::CallStart { index, id: "t".into(), name: "f".into() },
                Piece::CallArgs { index, text: "{}".into() },
                Piece::CallEnd { index },
            ]
        };
        let pieces = [Piece::Reasoning("a".into()), Piece::Content("b".into()), Piece::Content("c".into())];
        assert_eq!(
            events(pieces.into_iter().chain(call(0)).chain(call(1)).collect()),
            [
                "message_start",
                "content_block_start 0 thinking",
                "content_block_delta 0 thinking_delta",
                "content_block_delta 0 signature_delta",
                "content_block_stop 0",
                "content_block_start 1 text",
                "content_block_delta 1 text_delta",
                "content_block_delta 1 text_delta",
                "content_block_stop 1",
                "content_block_start 2 tool_use",
                "content_block_delta 2 input_json_delta",
                "content_block_stop 2",
                "content_block_start 3 tool_use",
                "content_block_delta 3 input_json_delta",
                "content_block_stop 3",
                "message_delta",
                "message_stop",
            ]
        );
    }

    #[test]
    fn an_empty_answer_is_a_message_too() {
        assert_eq!(
            events(vec![]),
            [
                "message_start",
                "content_block_start 0 text",
                "content_block_stop 0",
                "message_delta",
                "message_stop"
            ]
        );
    }
}
