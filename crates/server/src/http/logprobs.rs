//! Log-probabilities in the two shapes OpenAI has for them.

use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::handle::TokenOut;

/// JSON has no infinity; OpenAI's word for "never" is this.
const NEVER: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { NEVER }
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    json!({"token": String::from_utf8_lossy(bytes), "logprob": finite(logprob), "bytes": bytes})
}

/// Chat completions' entries, one for each token.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[TokenOut]) -> Vec<Value> {
    let of_token = |token: &TokenOut| {
        let mut value = entry(tokenizer, token.id, token.logprob.unwrap_or(NEVER));
        let top: Vec<Value> = token.top.iter().map(|(id, p)| entry(tokenizer, *id, *p)).collect();
        value["top_logprobs"] = top.into();
        value
    };
    tokens.iter().map(of_token).collect()
}

/// Completions' parallel lists. Offsets are in characters of the text, from `offset` on, which moves with them.
pub(crate) fn completion(tokenizer: &Tokenizer, tokens: &[TokenOut], offset: &mut usize) -> Value {
    let text = |id: u32| tokenizer.token_text(id).unwrap_or_default().into_owned();
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(*offset);
        *offset += text(token.id).chars().count();
    }
    let top = |token: &TokenOut| -> Map<String, Value> {
        token.top.iter().map(|(id, p)| (text(*id), finite(*p).into())).collect()
    };
    json!({
        "tokens": tokens.iter().map(|t| text(t.id)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|t| finite(t.logprob.unwrap_or(NEVER))).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// How tokens came to be, for whoever colours them.
pub(crate) fn origins(tokens: &[TokenOut]) -> Vec<Value> {
    let of_token = |token: &TokenOut| json!({"text": token.text, "origin": origin(token), "id": token.id});
    tokens.iter().map(of_token).collect()
}

fn origin(token: &TokenOut) -> &'static str {
    match token.origin {
        overdraft_engine::Origin::Plain => "plain",
        overdraft_engine::Origin::Accepted => "accepted",
        overdraft_engine::Origin::Corrected => "corrected",
    }
}
