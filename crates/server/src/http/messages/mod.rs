//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

mod input;
pub(crate) mod request;
mod response;
mod stream;

use serde_json::{Value, json};

use super::app::App;
use super::door::{Answered, Door, Reply};
use super::error::{ApiResult, Shape};
use super::fields::Fields;
use super::request_id::fresh;
use super::task::{Task, refusal};
use super::{answer, sse};
use request::MessagesRequest;
use stream::MessageEvents;

pub(crate) struct Messages;

pub(crate) struct Prepared {
    task: Task,
    model: String,
    stream: bool,
}

impl Door for Messages {
    const SHAPE: Shape = Shape::Anthropic;
    type Prepared = Prepared;

    fn prepare(app: &App, fields: Fields) -> ApiResult<(Prepared, Vec<String>)> {
        let request = MessagesRequest::read(fields, &app.defaults)?;
        let model = app.served_name(request.model)?;
        let task = Task::chat(app, &request.conversation, 1, request.settings, None)?;
        Ok((Prepared { task, model, stream: request.stream }, request.ignored))
    }

    async fn answer(prepared: Prepared, reply: Reply<'_>) -> ApiResult<Answered> {
        let Prepared { task, model, stream } = prepared;
        let running = task.submit(&reply)?;
        let id = fresh("msg_");
        if stream {
            let events = MessageEvents::new(id, model);
            return Ok(sse::stream(running, events, reply.app.config.ping_interval, reply.journal));
        }
        let (answers, figures) = answer::collect(running, false).await?;
        reply.journal.figures(&figures);
        let answer = answers.into_iter().next().unwrap_or_default();
        Ok(reply.json(&response::message(&id, &model, &answer, &figures)))
    }
}

/// What a conversation would cost, without an answer.
pub(crate) struct CountTokens;

impl Door for CountTokens {
    const SHAPE: Shape = Shape::Anthropic;
    type Prepared = Value;

    fn prepare(app: &App, mut fields: Fields) -> ApiResult<(Value, Vec<String>)> {
        let (model, conversation, ignored) = request::read_conversation(&mut fields)?;
        app.served_name(model)?;
        let prompt = app.chat()?.prompt(&conversation).map_err(refusal)?;
        Ok((json!({"input_tokens": prompt.tokens.len()}), [ignored, fields.names_left()].concat()))
    }

    async fn answer(answer: Value, reply: Reply<'_>) -> ApiResult<Answered> {
        Ok(reply.json(&answer))
    }
}
