//! The handle, and the thread behind it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overdraft_engine::{Engine, EngineError};

use super::desk::{Desk, Next, Waiting, retry_after};
use super::facts::{About, ModelFacts};
use super::figures::{Gauges, Totals};
use super::job::{Job, Limits, Refused};
use super::stream::Stream;

/// The engine, from any thread. Cheap to clone; when the last one is dropped the engine drains and its thread ends.
#[derive(Clone)]
pub struct EngineHandle {
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<Shared>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Ready,
    /// No new requests; running ones finish.
    Draining,
    /// A step has been running for longer than the watchdog allows.
    Stuck {
        seconds: u64,
    },
    /// The device failed; only a new process helps.
    Dead {
        reason: String,
    },
}

/// What handles and the thread both touch.
pub(crate) struct Shared {
    facts: ModelFacts,
    pub(crate) limits: Limits,
    inbox: Mutex<Inbox>,
    /// There may be something to do.
    nudge: Condvar,
    figures: Mutex<(Gauges, Totals)>,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) waiting: VecDeque<Waiting>,
    /// Requests that have left the queue and are not over.
    pub(crate) running: usize,
    pub(crate) is_draining: bool,
    pub(crate) step_began: Option<Instant>,
    dead: Option<String>,
    is_nudged: bool,
}

impl Shared {
    // Neither lock is ever held across a step, a wait or a call of somebody else's code, and a panic while one is held
    // leaves figures and a queue that are still whole.
    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where both are needed, the inbox is locked first.
    pub(crate) fn figures(&self) -> MutexGuard<'_, (Gauges, Totals)> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nudge(&self) {
        self.inbox().is_nudged = true;
        self.nudge.notify_all();
    }

    fn wait(&self, until: Option<Instant>) {
        let mut inbox = self.inbox();
        while !inbox.is_nudged {
            let left = until.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            inbox = match left {
                None => self.nudge.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.nudge.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        inbox.is_nudged = false;
    }
}

impl EngineHandle {
    /// Takes the engine and starts its thread.
    pub fn start(
        engine: Engine,
        about: About,
        limits: Limits,
    ) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
        let shared = Arc::new(Shared {
            facts: ModelFacts::new(&engine, about),
            limits,
            inbox: Mutex::default(),
            nudge: Condvar::new(),
            figures: Mutex::default(),
        });
        let desk = Desk::new(engine, shared.clone());
        let owner = Arc::new(Owner { shared: shared.clone() });
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || serve(desk, &shared))?;
        Ok((EngineHandle { owner }, thread))
    }

    /// Queues a request, or says at once why not.
    pub fn submit(&self, job: Job) -> Result<Stream, Refused> {
        let shared = &self.owner.shared;
        job.request.check(&shared.facts.bounds()).map_err(|error| match error {
            EngineError::PromptTooLong { prompt, context, trained } => {
                Refused::TooLong { prompt, limit: context - 1, trained }
            }
            other => Refused::Invalid(other),
        })?;
        let mut inbox = shared.inbox();
        if let Some(reason) = &inbox.dead {
            return Err(Refused::Dead { reason: reason.clone() });
        }
        if inbox.is_draining {
            return Err(Refused::Draining);
        }
        let streams = shared.limits.max_streams;
        let waiting = inbox.waiting.len();
        if waiting + inbox.running >= shared.limits.queue + streams {
            let mut figures = shared.figures();
            figures.1.failed.refused_busy += 1;
            let retry_after = retry_after(waiting, streams, figures.1.request_seconds.mean());
            return Err(Refused::Busy { waiting, retry_after });
        }
        let nudged = shared.clone();
        let (stream, channel) = Stream::new(Arc::new(move || nudged.nudge()));
        inbox.waiting.push_back(Waiting { job, channel, submitted: Instant::now() });
        drop(inbox);
        shared.nudge();
        Ok(stream)
    }

    pub fn facts(&self) -> &ModelFacts {
        &self.owner.shared.facts
    }

    pub fn limits(&self) -> &Limits {
        &self.owner.shared.limits
    }

    pub fn gauges(&self) -> Gauges {
        let inbox = self.owner.shared.inbox();
        let (waiting, running) = (inbox.waiting.len(), inbox.running);
        Gauges { waiting, running, ..self.owner.shared.figures().0 }
    }

    pub fn totals(&self) -> Totals {
        self.owner.shared.figures().1.clone()
    }

    /// No new requests from now on; those that wait or run finish, then the thread ends.
    pub fn drain(&self) {
        self.owner.shared.inbox().is_draining = true;
        self.owner.shared.nudge();
    }

    pub fn health(&self) -> Health {
        let inbox = self.owner.shared.inbox();
        if let Some(reason) = &inbox.dead {
            return Health::Dead { reason: reason.clone() };
        }
        match inbox.step_began.map(|began| began.elapsed()) {
            Some(running) if running >= self.owner.shared.limits.watchdog => {
                Health::Stuck { seconds: running.as_secs() }
            }
            _ if inbox.is_draining => Health::Draining,
            _ => Health::Ready,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.inbox().is_draining = true;
        self.shared.nudge();
    }
}

fn serve(mut desk: Desk, shared: &Shared) {
    let reason = loop {
        // After a panic nothing of the engine is used again.
        match catch_unwind(AssertUnwindSafe(|| desk.tick())) {
            Ok(Ok(Next::Again)) => {}
            Ok(Ok(Next::Wait(until))) => shared.wait(until),
            Ok(Ok(Next::Stop)) => return,
            Ok(Err(error)) => break error.to_string(),
            Err(panic) => {
                let message = panic.downcast_ref::<&str>().map(|s| s.to_string());
                let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
                break format!("a fault in the engine: {}", message.unwrap_or_default());
            }
        }
    };
    shared.inbox().dead = Some(reason.clone());
    desk.fail_all(&reason);
}
