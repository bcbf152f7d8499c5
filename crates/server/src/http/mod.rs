//! The server's doors: OpenAI's, Anthropic's and the small ones beside them.
//!
//! A request passes the guard (`guard.rs`: its id, host, origin and key), is received (`receive.rs`), read field by field
//! on a thread that may take its time (`door.rs`, `fields.rs`), becomes a task for the engine (`task.rs`), and its answers
//! come back as happenings (`running.rs`) that are collected (`answer.rs`) or streamed (`sse.rs`).

mod about;
mod answer;
mod app;
mod chat;
mod completions;
mod conversation;
mod counts;
mod door;
pub mod error;
mod fields;
mod figures;
mod guard;
mod journal;
pub mod keys;
mod limits;
mod loading;
pub mod log;
mod logprobs;
mod messages;
mod metrics;
#[cfg(test)]
mod mutation_tests;
mod openapi;
pub mod origin;
mod patient;
mod receive;
mod request_id;
mod responses;
mod routes;
mod running;
mod serve;
mod settings;
mod sse;
mod stops;
mod task;
mod tokens;
pub mod trace;
mod wishes;

pub use app::HttpConfig;
pub use completions::raw_tokens;
pub use loading::loading;
pub use serve::{Stopped, serve};

/// A vocabulary of three letters.
#[cfg(test)]
pub(crate) fn tiny_tokenizer() -> overdraft_formats::tokenizer::Tokenizer {
    use overdraft_formats::tokenizer::{SpecialIds, Tokenizer, VocabInput};
    let input = VocabInput {
        file: "test",
        model: "gpt2",
        pre: "qwen2",
        tokens: vec![b"a", b"b", b"ab"],
        token_types: None,
        merges: vec![b"a b"],
        ids: SpecialIds::default(),
        add_bos: None,
        add_eos: None,
    };
    Tokenizer::from_vocab(input).expect("a well-formed vocabulary")
}
