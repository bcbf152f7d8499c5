//! What every route shares: the engine's handle, the model's words, the rules of the house.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overdraft_models::RecommendedSampling;
use tokio::sync::Semaphore;

use super::counts::Counts;
use super::error::{ApiError, ApiResult, Fault};
use super::fields::header_text;
use super::keys::Keys;
use super::log::Log;
use super::origin::Origins;
use super::settings::Defaults;
use super::trace::Tracer;
use crate::handle::{EngineHandle, Refused};
use crate::output::{ChatFormat, Grammars};

/// How the server behaves towards its clients.
pub struct HttpConfig {
    pub keys: Keys,
    pub origins: Origins,
    pub log: Log,
    /// Takes a span of each request that the model answers.
    pub tracer: Tracer,
    /// Further names of the model; `*` answers to any.
    pub aliases: Vec<String>,
    pub recommended: RecommendedSampling,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// Bytes of bodies that are being received or read, over all requests.
    pub max_bodies_bytes: usize,
    pub max_connections: usize,
    /// For the head of a request to come, also the next on an idle connection.
    pub head_timeout: Duration,
    pub body_timeout: Duration,
    /// For a client to read something of what it is sent; then its connection is closed.
    pub write_timeout: Duration,
    /// A request that takes longer is given up; `None` for no limit.
    pub request_timeout: Option<Duration>,
    /// A stream in which nothing happened for so long sends a sign of life.
    pub ping_interval: Duration,
    /// For running requests to finish once the server is asked to stop.
    pub drain_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            keys: Keys::open(),
            origins: Origins { loopback_only: true, ..Origins::default() },
            log: Log::none(),
            tracer: Tracer::default(),
            aliases: Vec::new(),
            recommended: RecommendedSampling::default(),
            max_body_bytes: 8 << 20,
            max_bodies_bytes: 256 << 20,
            max_connections: 4096,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            request_timeout: None,
            ping_interval: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(60),
        }
    }
}

/// Shared by all routes.
pub(crate) struct App {
    pub(crate) handle: EngineHandle,
    /// `None` for a model without a chat template.
    pub(crate) chat: Option<ChatFormat>,
    /// The chat format's own where there is one.
    pub(crate) grammars: Arc<Grammars>,
    pub(crate) config: HttpConfig,
    pub(crate) defaults: Defaults,
    pub(crate) counts: Arc<Counts>,
    /// Free bytes for bodies.
    pub(crate) body_room: Arc<Semaphore>,
    /// When this process began to serve, as models say it.
    pub(crate) created: u64,
    /// Names of ignored fields that the log has already.
    logged: Mutex<HashSet<String>>,
}

/// So many names of ignored fields are logged, ever.
const MAX_LOGGED_NAMES: usize = 256;

impl App {
    pub(crate) fn new(handle: EngineHandle, config: HttpConfig) -> Result<Self, String> {
        let facts = handle.facts();
        let template = facts.about.template.as_deref();
        let chat =
            template.map(|t| ChatFormat::new(&facts.about.name, t, facts.tokenizer.clone())).transpose()?;
        let own = || Arc::new(Grammars::new(facts.tokenizer.clone()));
        let grammars = chat.as_ref().map_or_else(own, |chat| chat.grammars().clone());
        let recommended = config.recommended;
        let defaults = Defaults { vocab: facts.vocab, end_ids: facts.stop_ids.clone(), recommended };
        Ok(Self {
            chat,
            grammars,
            defaults,
            counts: Arc::default(),
            body_room: Arc::new(Semaphore::new(config.max_bodies_bytes)),
            created: super::request_id::unix_seconds(),
            logged: Mutex::default(),
            handle,
            config,
        })
    }

    pub(crate) fn model_name(&self) -> &str {
        &self.handle.facts().about.name
    }

    /// The name an answer carries: what was asked for, if that is one of ours.
    pub(crate) fn served_name(&self, asked: Option<String>) -> ApiResult<String> {
        let Some(asked) = asked else { return Ok(self.model_name().to_owned()) };
        if asked == self.model_name() || self.config.aliases.iter().any(|a| *a == asked || a == "*") {
            return Ok(asked);
        }
        let names = [self.model_name()].into_iter().chain(self.config.aliases.iter().map(String::as_str));
        let names: Vec<&str> = names.collect();
        let message = format!(
            "the model asked for is not served here; there is {} (start with --alias NAME for another name, --alias '*' for any)",
            names.join(", ")
        );
        Err(ApiError { param: Some("model".into()), ..ApiError::new(Fault::NotFound, message) }
            .code("model_not_found"))
    }

    pub(crate) fn chat(&self) -> ApiResult<&ChatFormat> {
        let message = "this model has no chat template, so it can't be talked with; use /v1/completions";
        self.chat.as_ref().ok_or_else(|| ApiError::new(Fault::Invalid, message).code("no_chat_template"))
    }

    /// Puts names of fields that were not used into the log, each once.
    pub(crate) fn log_ignored(&self, names: &[String]) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<String> = names
            .iter()
            .filter_map(|name| header_text(std::slice::from_ref(name)))
            .filter(|name| logged.len() < MAX_LOGGED_NAMES && logged.insert(name.clone()))
            .collect();
        drop(logged);
        if !fresh.is_empty() {
            self.config.log.line("ignored-fields", &[("names", fresh.join(",").into())]);
        }
    }
}

/// Why the engine did not take a request, for its sender.
pub(crate) fn refused(refused: Refused) -> ApiError {
    let message = refused.to_string();
    match refused {
        Refused::Busy { retry_after, .. } => {
            ApiError::new(Fault::Busy, message).code("queue_full").retry_after(retry_after)
        }
        Refused::TooLong { .. } => ApiError::new(Fault::Invalid, message).code("context_length_exceeded"),
        Refused::Invalid(error) => match error {
            overdraft_engine::EngineError::Parameter { name, .. } => {
                ApiError { param: Some(name.into()), ..ApiError::new(Fault::Invalid, message) }
            }
            _ => ApiError::new(Fault::Invalid, message),
        },
        // Another replica may take it at once.
        Refused::Draining => {
            ApiError::new(Fault::Unavailable, message).code("draining").retry_after(Duration::from_secs(1))
        }
        // What a device said is for the log, not for strangers.
        Refused::Dead { .. } => {
            ApiError::new(Fault::Unavailable, "the engine has stopped").code("engine_stopped")
        }
    }
}
