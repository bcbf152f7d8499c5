//! From a request of any API to answers on their way.

use std::time::Instant;

use overdraft_engine::{Constraint, Options, Request};

use super::app::{App, refused};
use super::door::Reply;
use super::error::{ApiError, ApiResult, Fault};
use super::running::{Running, Taken};
use super::settings::Settings;
use super::stops::Stops;
use crate::handle::Job;
use crate::output::{Conversation, OutputParser, Refusal};

/// A request that was read, rendered and encoded: what is left is the engine's.
pub(crate) struct Task {
    pub(crate) answers: Vec<Wanted>,
    pub(crate) settings: Settings,
    pub(crate) logprobs: Option<usize>,
    /// The same of the prompts' tokens.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Only the prompts matter; nothing is to be written.
    pub(crate) is_silent: bool,
    /// Of all prompts, each counted once.
    pub(crate) prompt_tokens: usize,
}

/// One answer that is wanted.
pub(crate) struct Wanted {
    pub(crate) prompt: Vec<u32>,
    /// Which of several answers to its prompt.
    pub(crate) choice: u32,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) parser: Option<OutputParser>,
}

impl Task {
    /// `n` answers to a conversation. Renders, encodes and compiles, so it may take its time: not for async tasks.
    pub(crate) fn chat(
        app: &App,
        conversation: &Conversation,
        n: usize,
        mut settings: Settings,
        logprobs: Option<usize>,
    ) -> ApiResult<Self> {
        let chat = app.chat()?;
        let prompt = chat.prompt(conversation).map_err(refusal)?;
        let prompt_tokens = prompt.tokens.len();
        check_length(app, prompt_tokens)?;
        // Some models' tags are control tokens, and the parser needs them.
        settings.keep_specials |= prompt.keep_specials;
        let answers = (0..n as u32).map(|choice| {
            let constraint = chat.constraint(conversation, &prompt).map_err(refusal)?;
            Ok(Wanted {
                prompt: prompt.tokens.clone(),
                choice,
                constraint,
                parser: Some(chat.parser(&prompt)),
            })
        });
        let answers = answers.collect::<ApiResult<_>>()?;
        Ok(Self { answers, settings, logprobs, prompt_logprobs: None, is_silent: false, prompt_tokens })
    }

    /// Hands all answers to the engine, or none.
    pub(crate) fn submit(self, reply: &Reply<'_>) -> ApiResult<Running> {
        let (app, caller) = (reply.app, reply.caller);
        reply.journal.asked(&self.settings, self.answers.len());
        let Self { answers, settings, logprobs, prompt_logprobs, is_silent, prompt_tokens } = self;
        let deadline = app.config.request_timeout.map(|t| Instant::now() + t);
        let cache_salt = app.config.keys.salted(caller, settings.cache_salt.as_deref());
        let (speculative, seed) = (settings.speculative, settings.sampling.drawing.seed);
        let mut taken = Vec::with_capacity(answers.len());
        for Wanted { prompt, choice, constraint, parser } in answers {
            let mut sampling = settings.sampling.clone();
            sampling.drawing.choice = choice;
            let request = Request {
                prompt,
                max_tokens: settings.max_tokens,
                sampling,
                stop_ids: settings.stop_ids.clone(),
                stop_strings: settings.stop_strings.clone(),
            };
            let options = Options {
                logprobs,
                prompt_logprobs,
                speculative,
                constraint,
                cache_salt,
                keep_specials: settings.keep_specials,
            };
            // Those taken before one that is refused are dropped with this function, and so cancelled.
            let stream = app
                .handle
                .submit(Job { request, options, caller: caller.salt, deadline })
                .map_err(refused)?;
            let stops = Stops::new(&settings.stop_strings, &app.handle.facts().tokenizer);
            let own = |id: &&u32| !app.defaults.end_ids.contains(id);
            let own_stop_ids = settings.stop_ids.iter().filter(own).copied().collect();
            taken.push(Taken { stream, parser, stops, own_stop_ids, is_silent });
        }
        Ok(Running::new(taken, prompt_tokens, speculative, seed))
    }
}

/// What no context of this engine holds is refused before anything is compiled for it.
pub(crate) fn check_length(app: &App, prompt_tokens: usize) -> ApiResult<()> {
    let facts = app.handle.facts();
    if prompt_tokens < facts.context {
        return Ok(());
    }
    let (limit, trained) = (facts.context - 1, facts.trained_context);
    Err(refused(crate::handle::Refused::TooLong { prompt: prompt_tokens, limit, trained }))
}

pub(crate) fn refusal(refusal: Refusal) -> ApiError {
    ApiError { param: Some(refusal.param.into()), ..ApiError::new(Fault::Invalid, refusal.message) }
}
