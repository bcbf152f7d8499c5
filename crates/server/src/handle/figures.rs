//! What the engine is doing, and what it has done since it started.

use overdraft_engine::{Finish, Stats};

use super::histogram::{COUNTS, Histogram, SECONDS};
use super::update::{FailKind, Timings};

/// Of this moment; kept up to date with every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    pub running: usize,
    pub waiting: usize,
    /// KV pages of 64 positions, over all retention classes.
    pub pages_used: usize,
    pub pages: usize,
    /// Sequences that have a place, of how many.
    pub slots_used: usize,
    pub slots: usize,
    /// Blocks of 64 tokens in the prefix cache. Their pages are not among the used ones: they make way.
    pub cached_blocks: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinishCounts {
    pub end_token: u64,
    pub stop_string: u64,
    pub max_tokens: u64,
    pub context: u64,
    pub constraint: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailCounts {
    pub request: u64,
    pub deadline: u64,
    pub slow_reader: u64,
    pub engine: u64,
    /// Cancelled by the reader going away.
    pub cancelled: u64,
    /// Refused because the queue was full.
    pub refused_busy: u64,
}

/// Never decreasing.
#[derive(Clone, Debug, PartialEq)]
pub struct Totals {
    /// Of admitted requests: what the prefix cache was asked for, and what it had.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// Steps of the engine.
    pub steps: u64,
    /// Figures of all requests that are over, by whatever end: rounds, drafted, accepted, both by depth, times.
    pub stats: Stats,
    pub finished: FinishCounts,
    pub failed: FailCounts,
    pub first_token_seconds: Histogram,
    /// Between updates of one stream, by token of the later one.
    pub inter_token_seconds: Histogram,
    /// Generation time of a request by its tokens.
    pub per_token_seconds: Histogram,
    pub request_seconds: Histogram,
    pub queue_seconds: Histogram,
    pub prompt_seconds: Histogram,
    pub generation_seconds: Histogram,
    /// Tokens that a step brought, over all streams.
    pub step_tokens: Histogram,
}

impl Default for Totals {
    fn default() -> Self {
        let (seconds, counts) = (|| Histogram::new(SECONDS), || Histogram::new(COUNTS));
        Self {
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            steps: 0,
            stats: Stats::default(),
            finished: FinishCounts::default(),
            failed: FailCounts::default(),
            first_token_seconds: seconds(),
            inter_token_seconds: seconds(),
            per_token_seconds: seconds(),
            request_seconds: seconds(),
            queue_seconds: seconds(),
            prompt_seconds: seconds(),
            generation_seconds: seconds(),
            step_tokens: counts(),
        }
    }
}

impl Totals {
    pub(crate) fn count_finish(&mut self, finish: Finish, timings: &Timings, tokens: usize) {
        let counts = &mut self.finished;
        *match finish {
            Finish::EndToken => &mut counts.end_token,
            Finish::StopString => &mut counts.stop_string,
            Finish::MaxTokens => &mut counts.max_tokens,
            Finish::Context => &mut counts.context,
            Finish::Constraint => &mut counts.constraint,
        } += 1;
        self.request_seconds.add(timings.total.as_secs_f64());
        self.prompt_seconds.add(timings.prompt.as_secs_f64());
        self.generation_seconds.add(timings.generation.as_secs_f64());
        if tokens > 1 {
            self.per_token_seconds.add(timings.generation.as_secs_f64() / (tokens - 1) as f64);
        }
    }

    pub(crate) fn count_failure(&mut self, kind: FailKind) {
        let counts = &mut self.failed;
        *match kind {
            FailKind::Request => &mut counts.request,
            FailKind::Deadline => &mut counts.deadline,
            FailKind::SlowReader => &mut counts.slow_reader,
            FailKind::Engine => &mut counts.engine,
        } += 1;
    }
}
