//! Chunks of completions, and the choices they share with whole ones.

use std::sync::Arc;

use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::http::chat::FINGERPRINT;
use crate::http::chat::request::StreamOptions;
use crate::http::chat::response::{Head, finish_reason, stop_reason};
use crate::http::error::{ApiError, Shape};
use crate::http::figures::Figures;
use crate::http::logprobs;
use crate::http::running::{End, Happening};
use crate::http::sse::{Events, Writer};
use crate::output::Piece;

pub(crate) fn object(head: &Head, choices: Value) -> Value {
    json!({
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
    })
}

pub(crate) fn choice(index: usize, text: &str, logprobs: Value, end: Option<&End>) -> Value {
    json!({
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": end.map(finish_reason),
        "stop_reason": end.map_or(Value::Null, stop_reason),
    })
}

pub(crate) struct Chunks {
    pub(crate) head: Head,
    pub(crate) options: StreamOptions,
    pub(crate) logprobs: Option<usize>,
    pub(crate) with_origins: bool,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// What is echoed before each choice's first text.
    pub(crate) echoes: Vec<Option<String>>,
    /// The tokens of that, where they are scored.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Characters of each choice so far.
    pub(crate) offsets: Vec<usize>,
    pub(crate) n_ended: usize,
}

impl Chunks {
    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = object(&self.head, json!([choice]));
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl Writer for Chunks {
    fn happened(&mut self, happening: Happening, figures: &Figures, out: &mut Events) {
        match happening {
            // With its scores the prompt is told once it was read.
            Happening::Started { choice: index } => {
                if let Some(echo) = self.echoes[index].take_if(|_| self.logprobs.is_none()) {
                    out.data(&self.chunk(choice(index, &echo, Value::Null, None)));
                }
            }
            Happening::Scored { choice: index, scores } => {
                if let (Some(echo), Some(n)) = (self.echoes[index].take(), self.logprobs) {
                    let told = logprobs::told_of_prompt(&self.prompts[index], &scores, n);
                    let scores = logprobs::completion(&self.tokenizer, told, &mut self.offsets[index]);
                    out.data(&self.chunk(choice(index, &echo, scores, None)));
                }
            }
            Happening::More { choice: index, pieces, tokens } => {
                let text: String = pieces.iter().filter_map(content).collect();
                if text.is_empty() && self.logprobs.is_none() && !self.with_origins {
                    return;
                }
                let of_tokens = self.logprobs.map_or(Value::Null, |_| {
                    let told = logprobs::told_of_answer(&tokens);
                    logprobs::completion(&self.tokenizer, told, &mut self.offsets[index])
                });
                let mut choice = choice(index, &text, of_tokens, None);
                if self.with_origins {
                    choice["token_origins"] = logprobs::origins(&tokens).into();
                }
                let mut chunk = self.chunk(choice);
                if self.options.continuous_usage {
                    chunk["usage"] = figures.usage();
                }
                out.data(&chunk);
            }
            Happening::Ended { choice: index, end } => {
                self.n_ended += 1;
                let mut chunk = self.chunk(choice(index, "", Value::Null, Some(&end)));
                if self.n_ended == self.echoes.len() && !self.options.include_usage {
                    figures.add_to(&mut chunk);
                }
                out.data(&chunk);
            }
        }
    }

    fn end(&mut self, figures: &Figures, out: &mut Events) {
        if self.options.include_usage {
            out.data(&figures.last_chunk(object(&self.head, json!([]))));
        }
        out.done();
    }

    fn fail(&mut self, error: &ApiError, out: &mut Events) {
        out.data(&error.body(Shape::OpenAi));
        out.done();
    }
}

/// Raw text is all content.
fn content(piece: &Piece) -> Option<&str> {
    match piece {
        Piece::Content(text) => Some(text),
        _ => None,
    }
}
