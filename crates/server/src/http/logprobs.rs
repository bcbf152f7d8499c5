//! Log-probabilities in the two shapes OpenAI has for them.

use overdraft_engine::Logprobs;
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

/// What completions tell of a token.
pub(crate) struct Told<'a> {
    id: u32,
    /// `None` for a text's first token, which nothing stands before.
    logprob: Option<f32>,
    top: &'a [(u32, f32)],
}

/// Of what was written.
pub(crate) fn told_of_answer(tokens: &[TokenOut]) -> impl Iterator<Item = Told<'_>> {
    tokens.iter().map(|t| Told { id: t.id, logprob: Some(t.logprob.unwrap_or(NEVER)), top: &t.top })
}

/// Of a prompt: every token with its score, the first without. Of the best, the `n` that were asked for.
pub(crate) fn told_of_prompt<'a>(
    prompt: &'a [u32],
    scores: &'a [Logprobs],
    n: usize,
) -> impl Iterator<Item = Told<'a>> {
    let scores = std::iter::once(None).chain(scores.iter().map(Some));
    prompt.iter().zip(scores).map(move |(id, score)| Told {
        id: *id,
        logprob: score.map(|s| s.chosen),
        top: score.map_or(&[], |s| &s.top[..n.min(s.top.len())]),
    })
}

/// Completions' parallel lists. Offsets are in characters of the text, from `offset` on, which moves with them.
pub(crate) fn completion<'a>(
    tokenizer: &Tokenizer,
    told: impl Iterator<Item = Told<'a>>,
    offset: &mut usize,
) -> Value {
    let text = |id: u32| tokenizer.token_text(id).unwrap_or_default().into_owned();
    let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for Told { id, logprob, top } in told {
        let own = text(id);
        offsets.push(*offset);
        *offset += own.chars().count();
        logprobs.push(logprob.map(finite));
        tops.push(logprob.map(|logprob| {
            // Tokens of broken characters have one text: the best keeps it. The token itself is always among them.
            let mut best = Map::new();
            for (id, logprob) in top.iter().copied().chain([(id, logprob)]) {
                best.entry(text(id)).or_insert_with(|| finite(logprob).into());
            }
            best
        }));
        tokens.push(own);
    }
    json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

/// vLLM's `prompt_logprobs`: of every token of the prompt the best and itself, by id. The rank of one that is not among
/// the best is not known.
pub(crate) fn prompt(tokenizer: &Tokenizer, prompt: &[u32], scores: &[Logprobs], n: usize) -> Value {
    let entry = |id: u32, logprob: f32, rank: Option<usize>| {
        let text = tokenizer.token_text(id).unwrap_or_default();
        json!({"logprob": finite(logprob), "rank": rank, "decoded_token": text})
    };
    let of_token = |told: Told<'_>| {
        let mut tokens = Map::new();
        for (at, (id, logprob)) in told.top.iter().enumerate() {
            tokens.insert(id.to_string(), entry(*id, *logprob, Some(at + 1)));
        }
        let own = tokens.entry(told.id.to_string());
        own.or_insert_with(|| entry(told.id, told.logprob.unwrap_or(NEVER), None));
        if told.logprob.is_some() { Value::Object(tokens) } else { Value::Null }
    };
    told_of_prompt(prompt, scores, n).map(of_token).collect()
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
