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
    /// The tokens of each answer's prompt, where they are scored.
    prompts: Vec<Vec<u32>>,
}

impl Door for Completions {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Prepared;

    fn prepare(app: &App, fields: Fields) -> ApiResult<(Prepared, Vec<String>)> {
        let mut request = CompletionRequest::read(fields, &app.defaults)?;
        let model = app.served_name(request.model.take())?;
        let tokenizer = &app.handle.facts().tokenizer;
        let (mut answers, mut echoes, mut prompts) = (Vec::new(), Vec::new(), Vec::new());
        let mut prompt_tokens = 0;
        let is_scored = request.of_prompt().is_some();
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
                prompts.push(if is_scored { tokens.clone() } else { Vec::new() });
            }
        }
        let task = Task {
            answers,
            settings: request.settings.clone(),
            logprobs: request.logprobs,
            prompt_logprobs: request.of_prompt(),
            is_silent: request.is_silent,
            prompt_tokens,
        };
        let head = Head { id: fresh("cmpl-"), created: unix_seconds(), model };
        let ignored = std::mem::take(&mut request.ignored);
        Ok((Prepared { request, task, head, echoes, prompts }, ignored))
    }

    async fn answer(prepared: Prepared, reply: Reply<'_>) -> ApiResult<Answered> {
        let Prepared { request, task, head, echoes, prompts } = prepared;
        let app = reply.app;
        let running = task.submit(&reply)?;
        let tokenizer = app.handle.facts().tokenizer.clone();
        if let Some(options) = request.streaming {
            let offsets = vec![0; echoes.len()];
            let with_origins = request.settings.token_origins;
            let chunks = Chunks {
                head,
                options,
                logprobs: request.logprobs,
                with_origins,
                tokenizer,
                echoes,
                prompts,
                offsets,
                n_ended: 0,
            };
            return Ok(sse::stream(running, chunks, app.config.ping_interval, reply.journal));
        }
        let (answers, figures) = answer::collect(running, request.logprobs.is_some()).await?;
        reply.journal.figures(&figures);
        let choices = answers.iter().zip(echoes).enumerate().map(|(index, (answer, echo))| {
            let of_answer = logprobs::told_of_answer(&answer.tokens);
            let of_tokens = match request.logprobs {
                None => Value::Null,
                Some(n) if request.echo => {
                    let told = logprobs::told_of_prompt(&prompts[index], &answer.scores, n).chain(of_answer);
                    logprobs::completion(&tokenizer, told, &mut 0)
                }
                Some(_) => logprobs::completion(&tokenizer, of_answer, &mut 0),
            };
            let text = echo.unwrap_or_default() + &answer.content;
            let mut choice = choice(index, &text, of_tokens, answer.end.as_ref());
            if let Some(n) = request.prompt_logprobs {
                choice["prompt_logprobs"] = logprobs::prompt(&tokenizer, &prompts[index], &answer.scores, n);
            }
            choice
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
