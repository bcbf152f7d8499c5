//! The handle, and the thread behind it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overdraft_engine::spec::learned::Learned;
use overdraft_engine::{Clock, Engine, EngineError, SystemClock};

use super::desk::{Desk, Next, Waiting, retry_after};
use super::facts::{About, ModelFacts};
use super::figures::{Gauges, Totals};
use super::job::{Job, Limits, Refused};
use super::stream::{Channel, Stream};
use super::turns::may_wait;
use super::update::{FailKind, Update};

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

/// What handles, the engine's thread and its watchdog touch.
pub(crate) struct Shared {
    facts: ModelFacts,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    inbox: Mutex<Inbox>,
    /// There may be something to do.
    nudge: Condvar,
    /// The engine's thread is over.
    ended: Condvar,
    figures: Mutex<(Gauges, Totals)>,
    /// What the engine had learned when it last had nothing to do.
    learned: Mutex<Learned>,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) waiting: VecDeque<Waiting>,
    /// Requests that have left the queue and are not over.
    pub(crate) running: Vec<Arc<Channel>>,
    pub(crate) is_draining: bool,
    pub(crate) step_began: Option<Instant>,
    pub(crate) dead: Option<String>,
    is_nudged: bool,
    has_ended: bool,
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

    pub(crate) fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nudge(&self) {
        self.inbox().is_nudged = true;
        self.nudge.notify_all();
    }

    fn wait(&self, until: Option<Instant>) {
        let mut inbox = self.inbox();
        while !inbox.is_nudged {
            let left = until.map(|end| end.saturating_duration_since(self.clock.now()));
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

    /// A running request is over.
    pub(crate) fn ends(&self, channel: &Arc<Channel>) {
        self.inbox().running.retain(|running| !Arc::ptr_eq(running, channel));
    }

    /// No request can be served any more: everyone is told.
    pub(crate) fn fail_all(&self, reason: &str) {
        let mut inbox = self.inbox();
        inbox.dead.get_or_insert_with(|| reason.into());
        let waiting: Vec<Waiting> = inbox.waiting.drain(..).collect();
        let running = std::mem::take(&mut inbox.running);
        let mut figures = self.figures();
        for channel in running.into_iter().chain(waiting.into_iter().map(|w| w.channel)) {
            figures.1.count_failure(FailKind::Engine);
            channel.send(Update::Failed { message: reason.into(), kind: FailKind::Engine });
        }
    }

    /// How long the step that is under way has been running, if that is longer than the watchdog allows.
    fn stuck_for(&self, inbox: &Inbox) -> Option<Duration> {
        let running = self.clock.now().saturating_duration_since(inbox.step_began?);
        (running >= self.limits.watchdog).then_some(running)
    }
}

impl EngineHandle {
    /// Takes the engine and starts its thread.
    pub fn start(
        engine: Engine,
        about: About,
        limits: Limits,
    ) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
        let (handle, desk) = Self::detached(engine, about, limits, Arc::new(SystemClock));
        let [served, watched] = [(); 2].map(|()| handle.owner.shared.clone());
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || serve(desk, &served))?;
        std::thread::Builder::new().name("engine watchdog".into()).spawn(move || watch(&watched))?;
        Ok((handle, thread))
    }

    /// A handle and the work behind it, for whoever has a thread for it.
    pub(crate) fn detached(
        engine: Engine,
        about: About,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> (EngineHandle, Desk) {
        let shared = Arc::new(Shared {
            facts: ModelFacts::new(&engine, about),
            limits,
            clock,
            inbox: Mutex::default(),
            nudge: Condvar::new(),
            ended: Condvar::new(),
            figures: Mutex::default(),
            learned: Mutex::default(),
        });
        let desk = Desk::new(engine, shared.clone());
        (EngineHandle { owner: Arc::new(Owner { shared }) }, desk)
    }

    /// Queues a request, or says at once why not.
    pub fn submit(&self, job: Job) -> Result<Stream, Refused> {
        let shared = &self.owner.shared;
        let checked = job.request.check(&shared.facts.bounds()).and_then(|()| job.options.check());
        checked.map_err(|error| match error {
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
        let own = inbox.waiting.iter().filter(|w| w.job.caller == job.caller).count();
        let is_full = waiting + inbox.running.len() >= shared.limits.queue + streams;
        if is_full || !may_wait(job.caller, own, shared.limits.queue) {
            let mut figures = shared.figures();
            figures.1.failed.refused_busy += 1;
            let retry_after = retry_after(waiting, streams, figures.1.request_seconds.mean());
            return Err(Refused::Busy { waiting, retry_after });
        }
        let nudged = shared.clone();
        let (stream, channel) = Stream::new(Arc::new(move || nudged.nudge()));
        inbox.waiting.push_back(Waiting { job, channel, submitted: shared.clock.now() });
        drop(inbox);
        shared.nudge();
        Ok(stream)
    }

    #[cfg(test)]
    pub(crate) fn fail_all(&self, reason: &str) {
        self.owner.shared.fail_all(reason);
    }

    pub fn facts(&self) -> &ModelFacts {
        &self.owner.shared.facts
    }

    pub fn limits(&self) -> &Limits {
        &self.owner.shared.limits
    }

    pub fn gauges(&self) -> Gauges {
        let inbox = self.owner.shared.inbox();
        let (waiting, running) = (inbox.waiting.len(), inbox.running.len());
        Gauges { waiting, running, ..self.owner.shared.figures().0 }
    }

    pub fn totals(&self) -> Totals {
        self.owner.shared.figures().1.clone()
    }

    /// What the engine has learned of this pair on this machine, as of when it last had nothing to do: for a later
    /// engine's [`Engine::recall`].
    pub fn learned(&self) -> Learned {
        self.owner.shared.learned().clone()
    }

    /// No new requests from now on; those that wait or run finish, then the thread ends.
    pub fn drain(&self) {
        self.owner.shared.inbox().is_draining = true;
        self.owner.shared.nudge();
    }

    pub fn health(&self) -> Health {
        let inbox = self.owner.shared.inbox();
        if let Some(running) = self.owner.shared.stuck_for(&inbox) {
            return Health::Stuck { seconds: running.as_secs() };
        }
        match &inbox.dead {
            Some(reason) => Health::Dead { reason: reason.clone() },
            None if inbox.is_draining => Health::Draining,
            None => Health::Ready,
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
            Ok(Ok(Next::Stop)) => break None,
            Ok(Err(error)) => break Some(error.to_string()),
            Err(panic) => {
                let message = panic.downcast_ref::<&str>().map(|s| s.to_string());
                let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
                break Some(format!("a fault in the engine: {}", message.unwrap_or_default()));
            }
        }
    };
    reason.iter().for_each(|reason| shared.fail_all(reason));
    shared.inbox().has_ended = true;
    shared.ended.notify_all();
}

/// Looks now and then whether a step has been running for too long. Nothing can be done for it, but those who wait for
/// its tokens are told.
fn watch(shared: &Shared) {
    let pause = shared.limits.watchdog / 4;
    let mut inbox = shared.inbox();
    while !inbox.has_ended {
        inbox = shared.ended.wait_timeout(inbox, pause).unwrap_or_else(PoisonError::into_inner).0;
        if let Some(running) = shared.stuck_for(&inbox) {
            drop(inbox);
            shared.fail_all(&format!("a step of the engine did not return within {} s", running.as_secs()));
            return;
        }
    }
}
