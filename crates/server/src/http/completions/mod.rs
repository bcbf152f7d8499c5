//! `/v1/completions`: raw text continued.

pub(crate) mod request;
mod stream;

use overdraft_formats::tokenizer::{Specials, Tokenizer};
use serde_json::{Value, json};

use super::app::App;
use super::chat::response::Head;
use super::door::{Answered, Door, Reply};
use super::error::{ApiError, ApiResult, Shape};
use super::fields::Fields;
use super::logprobs;
use super::request_id::{fresh, unix_seconds};
use super::task::{Task, Wanted, check_length, refusal};
use super::{answer, sse};
use crate::output::plain_constraint;
use request::{CompletionRequest, PromptText};
use stream::{Chunks, choice, object};

pub(crate) struct Completions;

pub(crate) struct Prepared {
    request: CompletionRequest,
    task: Task,
    head: Head,
    /// What each answer begins with, where prompts are echoed.
    echoes: Vec<Option<String>>,
}

impl Door for Completions {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Prepared;

    fn prepare(app: &App, fields: Fields) -> ApiResult<(Prepared, Vec<String>)> {
        let mut request = CompletionRequest::read(fields, &app.defaults)?;
        let model = app.served_name(request.model.take())?;
        let tokenizer = &app.handle.facts().tokenizer;
        let (mut answers, mut echoes, mut prompt_tokens) = (Vec::new(), Vec::new(), 0);
        for prompt in std::mem::take(&mut request.prompts) {
            let (tokens, text) = match prompt {
                PromptText::Text(text) if request.add_special_tokens => (raw_tokens(tokenizer, &text), text),
                PromptText::Text(text) => (tokenizer.encode(&text, Specials::Parse), text),
                PromptText::Tokens(ids) => {
                    let text = if request.echo { tokenizer.decode(&ids, false) } else { String::new() };
                    (ids, text)
                }
            };
            if tokens.is_empty() {
                return Err(ApiError::field("prompt", "is empty; give at least one token of text"));
            }
            check_length(app, tokens.len())?;
            prompt_tokens += tokens.len();
            for choice in 0..request.n as u32 {
                let constraint = plain_constraint(&request.format, &app.grammars).map_err(refusal)?;
                answers.push(Wanted { prompt: tokens.clone(), choice, constraint, parser: None });
                echoes.push(request.echo.then(|| text.clone()));
            }
        }
        let task =
            Task { answers, settings: request.settings.clone(), logprobs: request.logprobs, prompt_tokens };
        let head = Head { id: fresh("cmpl-"), created: unix_seconds(), model };
        let ignored = std::mem::take(&mut request.ignored);
        Ok((Prepared { request, task, head, echoes }, ignored))
    }

    async fn answer(prepared: Prepared, reply: Reply<'_>) -> ApiResult<Answered> {
        let Prepared { request, task, head, echoes } = prepared;
        let app = reply.app;
        let running = task.submit(app, reply.caller)?;
        let tokenizer = app.handle.facts().tokenizer.clone();
        let with_logprobs = request.logprobs.is_some();
        if let Some(options) = request.streaming {
            let offsets = vec![0; echoes.len()];
            let with_origins = request.settings.token_origins;
            let chunks =
                Chunks { head, options, with_logprobs, with_origins, tokenizer, echoes, offsets, n_ended: 0 };
            return Ok(sse::stream(running, chunks, app.config.ping_interval, reply.journal));
        }
        let (answers, figures) = answer::collect(running, with_logprobs).await?;
        reply.journal.figures(&figures);
        let choices = answers.iter().zip(echoes).enumerate().map(|(index, (answer, echo))| {
            let text = echo.unwrap_or_default() + &answer.content;
            let of_tokens = match with_logprobs {
                true => logprobs::completion(&tokenizer, &answer.tokens, &mut 0),
                false => Value::Null,
            };
            choice(index, &text, of_tokens, answer.end.as_ref())
        });
        let mut whole = object(&head, json!(choices.collect::<Vec<_>>()));
        whole["usage"] = figures.usage();
        figures.add_to(&mut whole);
        Ok(reply.json(&whole))
    }
}

/// Special tokens count as such: people paste whole ChatML prompts. No end token is added, whatever the vocabulary
/// wants for training texts: this text goes on.
pub fn raw_tokens(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut tokens = tokenizer.encode(text, Specials::Parse);
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
        && tokens.first() != Some(&bos)
    {
        tokens.insert(0, bos);
    }
    tokens
}
