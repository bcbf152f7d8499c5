//! The tokenizer against the `tokenizers` library and Oniguruma, and against files and texts made to break it.

mod clock;
mod config;
mod corpus;
mod data;
mod hostile;
mod ids;
mod pathological;
mod plain_text;
mod pretokenizers;
mod random;
mod speed;
mod streaming;
