//! How much of its time the device works: events at both ends of every run and commit, read while the queue is idle. Those
//! of a replayed graph are nodes of it, so that the time the host takes to launch it counts as idle.

use std::sync::Arc;
use std::time::Duration;

use overdraft_plan::DeviceUse;

use crate::driver::{Device, Event, Queue, Result};

/// Times are floats of milliseconds since the origin: beyond this they would be too coarse.
const FAR_MS: f32 = 2000.0;

/// From the first op of a run to its last.
pub(crate) struct Span {
    start: Event,
    end: Event,
}

impl Span {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { start: Event::new(device)?, end: Event::new(device)? }))
    }

    /// Launches `work` between the two events.
    pub(crate) fn around(
        span: Option<&Arc<Self>>,
        queue: &Queue,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(span) = span else { return work() };
        queue.mark(&span.start)?;
        work()?;
        queue.mark(&span.end)
    }
}

pub(crate) struct Watch {
    origin: Event,
    /// When the device was last at work, in milliseconds after the origin.
    last_end: f32,
    /// Launched and not yet read.
    under_way: Vec<Arc<Span>>,
    /// Of commits, which are not graphs.
    pub(crate) commit: Arc<Span>,
    sum: DeviceUse,
    /// When the last whole round ended, by the device's clock; what is launched by itself is measured apart.
    round_end: Option<u64>,
}

impl Watch {
    /// Begins now; the queue is idle.
    pub(crate) fn new(device: &Arc<Device>, queue: &Queue) -> Result<Self> {
        let mut watch = Self {
            origin: Event::new(device)?,
            last_end: 0.0,
            under_way: Vec::new(),
            commit: Span::new(device)?,
            sum: DeviceUse::default(),
            round_end: None,
        };
        watch.begin(queue)?;
        Ok(watch)
    }

    fn begin(&mut self, queue: &Queue) -> Result<()> {
        queue.mark(&self.origin)?;
        queue.wait()?;
        self.last_end = 0.0;
        Ok(())
    }

    /// A whole round, from the first of its kernels to the last but the commit, in nanoseconds.
    pub(crate) fn took_round(&mut self, begun: u64, ended: u64) {
        let idle = self.round_end.replace(ended).map_or(0, |last| begun.saturating_sub(last));
        self.sum.idle += Duration::from_nanos(idle);
        self.sum.busy += Duration::from_nanos(ended.saturating_sub(begun));
    }

    /// Steps follow on rounds: their time counts from now on. The queue is idle.
    pub(crate) fn leave_rounds(&mut self, queue: &Queue) -> Result<()> {
        if self.round_end.take().is_some() { self.begin(queue) } else { Ok(()) }
    }

    /// Whether the span's events are still to be read, so that it must not be launched again.
    pub(crate) fn holds(&self, span: &Arc<Span>) -> bool {
        self.under_way.iter().any(|s| Arc::ptr_eq(s, span))
    }

    pub(crate) fn launched(&mut self, span: &Arc<Span>) {
        self.under_way.push(span.clone());
    }

    /// Adds up what was launched; the queue is idle.
    pub(crate) fn collect(&mut self, queue: &Queue) -> Result<()> {
        for span in self.under_way.drain(..) {
            let (start, end) = (span.start.since(&self.origin)?, span.end.since(&self.origin)?);
            self.sum.idle += milliseconds(start - self.last_end);
            self.sum.busy += milliseconds(end - start);
            self.last_end = end;
        }
        if self.last_end > FAR_MS { self.begin(queue) } else { Ok(()) }
    }

    /// What was added up so far, and from now on anew; the queue is idle.
    pub(crate) fn take(&mut self, queue: &Queue) -> Result<DeviceUse> {
        self.collect(queue)?;
        self.begin(queue)?;
        Ok(std::mem::take(&mut self.sum))
    }
}

fn milliseconds(ms: f32) -> Duration {
    Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3)
}
