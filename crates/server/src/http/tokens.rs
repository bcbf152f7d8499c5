//! Text to tokens and back, and a conversation to its prompt: what other tools count and compare with.

use overdraft_formats::tokenizer::Specials;
use serde_json::{Value, json};

use super::app::App;
use super::chat::request::read_conversation;
use super::completions::raw_tokens;
use super::completions::request::read_ids;
use super::door::{Answered, Door, Reply};
use super::error::{ApiError, ApiResult, Shape};
use super::fields::Fields;
use super::task::refusal;

/// `/tokenize`: llama.cpp's `content`, vLLM's `prompt` or `messages`.
pub(crate) struct Tokenize;

impl Door for Tokenize {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Value;

    fn prepare(app: &App, mut fields: Fields) -> ApiResult<(Value, Vec<String>)> {
        let f = &mut fields;
        app.served_name(f.text("model")?)?;
        let facts = app.handle.facts();
        let tokenizer = &facts.tokenizer;
        let with_pieces = f.bool("with_pieces")?.unwrap_or(false);
        let with_texts = f.bool("return_token_strs")?.unwrap_or(false);
        let add_special = f.bool("add_special")?.or(f.bool("add_special_tokens")?);
        let text = f.text("content")?.or(f.text("prompt")?);
        let (tokens, ignored) = match text {
            // llama.cpp adds nothing unless told to; so do we, for a count of just this text.
            Some(text) if add_special.unwrap_or(false) => (raw_tokens(tokenizer, &text), Vec::new()),
            Some(text) => (tokenizer.encode(&text, Specials::Parse), Vec::new()),
            None if f.peek("messages").is_some() => {
                let (conversation, ignored) = read_conversation(f)?;
                (app.chat()?.prompt(&conversation).map_err(refusal)?.tokens, ignored)
            }
            None => return Err(ApiError::field("content", "is missing; give content, prompt or messages")),
        };
        let piece = |id: &u32| tokenizer.token_text(*id).unwrap_or_default().into_owned();
        let mut answer = json!({"count": tokens.len(), "max_model_len": facts.context});
        answer["tokens"] = if with_pieces {
            tokens.iter().map(|id| json!({"id": id, "piece": piece(id)})).collect()
        } else {
            tokens.iter().copied().collect()
        };
        if with_texts {
            answer["token_strs"] = tokens.iter().map(piece).collect();
        }
        Ok((answer, [ignored, fields.names_left()].concat()))
    }

    async fn answer(answer: Value, reply: Reply<'_>) -> ApiResult<Answered> {
        Ok(reply.json(&answer))
    }
}

/// `/detokenize`: both names for the text.
pub(crate) struct Detokenize;

impl Door for Detokenize {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Value;

    fn prepare(app: &App, mut fields: Fields) -> ApiResult<(Value, Vec<String>)> {
        app.served_name(fields.text("model")?)?;
        let list = fields.list("tokens", usize::MAX)?.ok_or_else(|| fields.error("tokens", "is missing"))?;
        let ids = read_ids(&list, "tokens", app.defaults.vocab)?;
        let text = app.handle.facts().tokenizer.decode(&ids, false);
        Ok((json!({"content": text, "prompt": text}), fields.names_left()))
    }

    async fn answer(answer: Value, reply: Reply<'_>) -> ApiResult<Answered> {
        Ok(reply.json(&answer))
    }
}

/// `/apply-template`: what the model would read.
pub(crate) struct ApplyTemplate;

impl Door for ApplyTemplate {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Value;

    fn prepare(app: &App, mut fields: Fields) -> ApiResult<(Value, Vec<String>)> {
        app.served_name(fields.text("model")?)?;
        let (conversation, ignored) = read_conversation(&mut fields)?;
        let prompt = app.chat()?.prompt(&conversation).map_err(refusal)?;
        let answer = json!({"prompt": prompt.text, "count": prompt.tokens.len()});
        Ok((answer, [ignored, fields.names_left()].concat()))
    }

    async fn answer(answer: Value, reply: Reply<'_>) -> ApiResult<Answered> {
        Ok(reply.json(&answer))
    }
}
