//! `/v1/responses`: OpenAI's newer API, without memory between requests.

mod input;
mod items;
pub(crate) mod request;
mod stream;

use super::app::App;
use super::door::{Answered, Door, Reply};
use super::error::{ApiResult, Shape};
use super::fields::Fields;
use super::request_id::{fresh, unix_seconds};
use super::sse;
use super::task::Task;
use items::{Items, Numbered};
use request::ResponsesRequest;
use stream::Response;

pub(crate) struct Responses;

pub(crate) struct Prepared {
    task: Task,
    response: Response,
    stream: bool,
}

impl Door for Responses {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Prepared;

    fn prepare(app: &App, fields: Fields) -> ApiResult<(Prepared, Vec<String>)> {
        let request = ResponsesRequest::read(fields, &app.defaults)?;
        let model = app.served_name(request.model)?;
        let task = Task::chat(app, &request.conversation, 1, request.settings, request.logprobs)?;
        let tokenizer = request.logprobs.map(|_| app.handle.facts().tokenizer.clone());
        let response = Response {
            id: fresh("resp_"),
            created: unix_seconds(),
            model,
            echoed: request.echoed,
            items: Items::new(tokenizer),
            has_begun: false,
            end: None,
            out: Numbered::default(),
        };
        Ok((Prepared { task, response, stream: request.stream }, request.ignored))
    }

    async fn answer(prepared: Prepared, reply: Reply<'_>) -> ApiResult<Answered> {
        let Prepared { task, response, stream } = prepared;
        let running = task.submit(&reply)?;
        if stream {
            return Ok(sse::stream(running, response, reply.app.config.ping_interval, reply.journal));
        }
        let (object, figures) = response.whole(running).await?;
        reply.journal.figures(&figures);
        Ok(reply.json(&object))
    }
}
