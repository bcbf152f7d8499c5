//! The engine thread's work, a step at a time: who is admitted, who is given up, and what is told to whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overdraft_engine::{Engine, EngineError, Event, Events, Finish, SeqId, Stats};

use super::figures::Gauges;
use super::job::Job;
use super::stream::Channel;
use super::thread::Shared;
use super::turns::Turns;
use super::update::{FailKind, Timings, TokenOut, Update};

/// A request that was submitted and has no sequence yet.
pub(crate) struct Waiting {
    pub(crate) job: Job,
    pub(crate) channel: Arc<Channel>,
    pub(crate) submitted: Instant,
}

/// A request that has a sequence.
struct Running {
    id: SeqId,
    caller: u64,
    channel: Arc<Channel>,
    submitted: Instant,
    admitted: Instant,
    first_token: Option<Instant>,
    last_token: Instant,
    deadline: Option<Instant>,
    /// Since when its reader has left a full buffer.
    full_since: Option<Instant>,
}

/// What the thread should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Again,
    /// Wait for a nudge, or until then.
    Wait(Option<Instant>),
    /// Everything is done, and nothing will come.
    Stop,
}

pub(crate) struct Desk {
    engine: Engine,
    shared: Arc<Shared>,
    running: Vec<Running>,
    turns: Turns,
    events: Events,
}

impl Desk {
    pub(crate) fn new(engine: Engine, shared: Arc<Shared>) -> Self {
        Self { engine, shared, running: Vec::new(), turns: Turns::default(), events: Events::default() }
    }

    /// One round of the thread. An error is the engine's end.
    pub(crate) fn tick(&mut self) -> Result<Next, EngineError> {
        let now = self.shared.clock.now();
        if self.shared.inbox().dead.is_some() {
            return Ok(Next::Stop);
        }
        self.give_up(now);
        self.hold_back_for_readers(now);
        self.admit(now)?;
        if self.running.iter().all(|r| r.full_since.is_some()) {
            self.publish();
            *self.shared.learned() = self.engine.learned();
            return Ok(self.idle(now));
        }
        self.shared.inbox().step_began = Some(now);
        let outcome = self.engine.step_into(&mut self.events);
        let now = self.shared.clock.now();
        self.shared.inbox().step_began = None;
        // Before anyone is told, so that whoever is told finds it so.
        self.publish();
        self.hand_out(now);
        if let Err(error) = outcome {
            let Some(seq) = error.failed_sequence() else { return Err(error) };
            if let Some(at) = self.running.iter().position(|r| r.id == seq) {
                self.fail(at, FailKind::Request, error.to_string());
            }
        }
        Ok(Next::Again)
    }

    fn idle(&self, now: Instant) -> Next {
        let inbox = self.shared.inbox();
        if self.running.is_empty() && inbox.waiting.is_empty() && inbox.is_draining {
            return Next::Stop;
        }
        let patience = self.shared.limits.reader_patience;
        let ends = self.running.iter().flat_map(|r| [r.deadline, r.full_since.map(|since| since + patience)]);
        let waiting = inbox.waiting.iter().map(|w| w.job.deadline);
        // A reader that takes from a full buffer nudges, but one that is dropped between two looks must not be missed.
        Next::Wait(ends.chain(waiting).flatten().min().map(|end| end.max(now)))
    }

    /// Ends what nobody reads any more and what is out of time.
    fn give_up(&mut self, now: Instant) {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|d| d <= now);
        let patience = self.shared.limits.reader_patience;
        for at in (0..self.running.len()).rev() {
            let running = &self.running[at];
            if running.channel.is_abandoned() {
                self.shared.figures().1.failed.cancelled += 1;
                self.remove(at);
            } else if is_over(running.deadline) {
                self.fail(at, FailKind::Deadline, "the request's time is over".into());
            } else if running.full_since.is_some_and(|since| now - since >= patience) {
                let message = format!("nothing was read for {} s", patience.as_secs());
                self.fail(at, FailKind::SlowReader, message);
            }
        }
        let mut inbox = self.shared.inbox();
        let mut figures = self.shared.figures();
        inbox.waiting.retain(|waiting| {
            if waiting.channel.is_abandoned() {
                figures.1.failed.cancelled += 1;
                return false;
            }
            if is_over(waiting.job.deadline) {
                let message = "the request's time was over before its turn came".into();
                waiting.channel.send(Update::Failed { message, kind: FailKind::Deadline });
                figures.1.count_failure(FailKind::Deadline);
                return false;
            }
            true
        });
    }

    /// A request whose reader is behind waits for it; half a buffer read, it goes on.
    fn hold_back_for_readers(&mut self, now: Instant) {
        let most = self.shared.limits.stream_buffer_bytes;
        for running in &mut self.running {
            let most = if running.full_since.is_some() { most / 2 } else { most };
            let is_held = running.channel.hold_above(most);
            if is_held != running.full_since.is_some() {
                running.full_since = is_held.then_some(now);
                self.engine.set_paused(running.id, is_held);
            }
        }
    }

    /// Takes from the queue what there is room for, its callers in turns.
    fn admit(&mut self, now: Instant) -> Result<(), EngineError> {
        while self.running.len() < self.shared.limits.max_streams {
            let mut inbox = self.shared.inbox();
            let running = self.running.iter().map(|r| r.caller);
            let next = self.turns.next(inbox.waiting.iter().map(|w| w.job.caller), running);
            let Some((at, first)) = next.and_then(|at| inbox.waiting.get(at).map(|w| (at, w))) else {
                return Ok(());
            };
            // Whoever needs much room has it once it is there: nobody behind is let past meanwhile.
            if self.engine.has_room(&first.job.request, &first.job.options).is_err() {
                return Ok(());
            }
            let Some(Waiting { job, channel, submitted }) = inbox.waiting.remove(at) else { return Ok(()) };
            let caller = job.caller;
            let is_present = |of: u64| {
                inbox.waiting.iter().any(|w| w.job.caller == of)
                    || self.running.iter().any(|r| r.caller == of)
            };
            self.turns.serve(caller, is_present);
            inbox.running.push(channel.clone());
            drop(inbox);
            let queued = now.saturating_duration_since(submitted);
            let prompt = job.request.prompt.len();
            match self.engine.admit_as(job.request, job.options) {
                Ok(id) => {
                    let (cached_tokens, _) = self.engine.prompt_progress(id).unwrap_or_default();
                    channel.send(Update::Started { cached_tokens, queued });
                    let mut figures = self.shared.figures();
                    figures.1.prompt_tokens += prompt as u64;
                    figures.1.cached_tokens += cached_tokens as u64;
                    figures.1.queue_seconds.add(queued.as_secs_f64());
                    self.running.push(Running {
                        id,
                        caller,
                        channel,
                        submitted,
                        admitted: now,
                        first_token: None,
                        last_token: now,
                        deadline: job.deadline,
                        full_since: None,
                    });
                }
                Err(EngineError::Backend(fatal)) => return Err(fatal.into()),
                Err(other) => {
                    self.shared.ends(&channel);
                    channel.send(Update::Failed { message: other.to_string(), kind: FailKind::Request });
                }
            }
        }
        Ok(())
    }

    /// Sends what the step brought, each stream's in one update.
    fn hand_out(&mut self, now: Instant) {
        let n = self.events.len();
        let mut figures = self.shared.figures();
        figures.1.steps += 1;
        figures.1.generated_tokens += n as u64;
        figures.1.step_tokens.add(n as f64);
        drop(figures);
        let mut from = 0;
        while from < n {
            let id = self.events[from].seq;
            let same = self.events[from..].iter().take_while(|e| e.seq == id).count();
            let range = from..from + same;
            from = range.end;
            let Some(at) = self.running.iter().position(|r| r.id == id) else { continue };
            if let Some(scores) = &self.events[range.start].prompt_logprobs {
                self.running[at].channel.send(Update::Scored(scores.clone()));
            }
            let tokens: Vec<TokenOut> = self.events[range.clone()].iter().map(token_out).collect();
            self.note_tokens(at, now, same);
            self.running[at].channel.send(Update::Tokens(tokens));
            if let Some((finish, stats)) = self.events[range.end - 1].finish {
                self.finish(at, now, finish, stats);
            }
        }
    }

    fn note_tokens(&mut self, at: usize, now: Instant, n: usize) {
        let mut figures = self.shared.figures();
        let running = &mut self.running[at];
        let seconds = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        if running.first_token.is_none() {
            running.first_token = Some(now);
            figures.1.first_token_seconds.add(seconds(running.submitted));
        } else {
            figures.1.inter_token_seconds.add_times(seconds(running.last_token) / n as f64, n as u64);
        }
        running.last_token = now;
    }

    fn finish(&mut self, at: usize, now: Instant, finish: Finish, stats: Stats) {
        let running = self.running.swap_remove(at);
        self.shared.ends(&running.channel);
        let since = |earlier: Instant, later: Instant| later.saturating_duration_since(earlier);
        let first = running.first_token.unwrap_or(now);
        let timings = Timings {
            queued: since(running.submitted, running.admitted),
            first_token: since(running.submitted, first),
            prompt: since(running.admitted, first),
            generation: since(first, now),
            total: since(running.submitted, now),
        };
        let mut figures = self.shared.figures();
        figures.1.count_finish(finish, &timings, stats.generated_tokens);
        figures.1.stats.add(&stats);
        drop(figures);
        running.channel.send(Update::Finished { finish, stats: Box::new(stats), timings });
    }

    fn fail(&mut self, at: usize, kind: FailKind, message: String) {
        self.shared.figures().1.count_failure(kind);
        self.remove(at).send(Update::Failed { message, kind });
    }

    fn remove(&mut self, at: usize) -> Arc<Channel> {
        let running = self.running.swap_remove(at);
        self.shared.ends(&running.channel);
        if let Some(stats) = self.engine.cancel(running.id) {
            self.shared.figures().1.stats.add(&stats);
        }
        running.channel
    }

    fn publish(&self) {
        let (pages_used, pages) = self.engine.pages();
        let (slots_used, slots) = self.engine.slots();
        let cached_blocks = self.engine.cached_blocks();
        self.shared.figures().0 =
            Gauges { pages_used, pages, slots_used, slots, cached_blocks, ..Default::default() };
    }
}

fn token_out(event: &Event) -> TokenOut {
    let (logprob, top) = match &event.logprobs {
        Some(logprobs) => (Some(logprobs.chosen), logprobs.top.clone()),
        None => (None, Vec::new()),
    };
    TokenOut { id: event.token, text: event.text.clone(), origin: event.origin, logprob, top }
}

/// How long a request that is refused now should wait: as long as the queue takes at the rate of late.
pub(crate) fn retry_after(waiting: usize, streams: usize, request_seconds: Option<f64>) -> Duration {
    let seconds = request_seconds.unwrap_or(1.0) * (waiting + 1) as f64 / streams.max(1) as f64;
    Duration::from_secs_f64(seconds.clamp(1.0, 120.0))
}
