//! `/v1/chat/completions`.

pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod stream;

use super::app::App;
use super::door::{Door, Reply};
use super::error::{ApiResult, Shape};
use super::fields::Fields;
use super::request_id::{fresh, unix_seconds};
use super::task::Task;
use super::{answer, sse};
use request::ChatRequest;
use response::Head;
use stream::Chunks;

/// Says which of our arithmetic wrote a text: it can change with a version, and with nothing else.
pub(crate) const FINGERPRINT: &str = concat!("overdraft-", env!("CARGO_PKG_VERSION"));

pub(crate) struct Chat;

/// A request that was read, and its task.
pub(crate) struct Prepared {
    request: ChatRequest,
    task: Task,
    head: Head,
}

impl Door for Chat {
    const SHAPE: Shape = Shape::OpenAi;
    type Prepared = Prepared;

    fn prepare(app: &App, fields: Fields) -> ApiResult<(Prepared, Vec<String>)> {
        let mut request = ChatRequest::read(fields, &app.defaults)?;
        let model = app.served_name(request.model.take())?;
        let task =
            Task::chat(app, &request.conversation, request.n, request.settings.clone(), request.logprobs)?;
        let head = Head { id: fresh("chatcmpl-"), created: unix_seconds(), model };
        let ignored = std::mem::take(&mut request.ignored);
        Ok((Prepared { request, task, head }, ignored))
    }

    async fn answer(prepared: Prepared, reply: Reply<'_>) -> ApiResult<super::door::Answered> {
        let Prepared { request, task, head } = prepared;
        let app = reply.app;
        let running = task.submit(&reply)?;
        let tokenizer = app.handle.facts().tokenizer.clone();
        let with_logprobs = request.logprobs.is_some();
        if let Some(options) = request.streaming {
            let begun = vec![false; running.n_choices()];
            let with_origins = request.settings.token_origins;
            let chunks = Chunks { head, options, with_logprobs, with_origins, tokenizer, begun, n_ended: 0 };
            return Ok(sse::stream(running, chunks, app.config.ping_interval, reply.journal));
        }
        let (answers, figures) = answer::collect(running, with_logprobs).await?;
        reply.journal.figures(&figures);
        Ok(reply.json(&response::response(&head, &answers, &figures, with_logprobs, &tokenizer)))
    }
}
