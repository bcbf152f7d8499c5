//! A backend whose passes take what passes of the demo pair took on a quiet machine, by a clock that only they move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overdraft_engine::Clock;
use overdraft_plan::{
    Act, Backend, BackendError, Choice, Op, Plan, PlanId, StateId, StateSpec, Step, Weights,
};

/// Milliseconds of the demo pair's passes, one thread of a Xeon at 2.8 GHz: least of many steps of one row a sequence
/// and of trees of one sequence. What is read of prompts costs less a row, for its linears run in larger tiles.
const PASS: f64 = 2.5;
const A_ROW: f64 = 0.58;
const A_SEQUENCE: f64 = 0.33;
const A_PROMPT_ROW: f64 = 0.55;
const DRAFT_PASS: f64 = 0.4;
const A_DRAFT_ROW: f64 = 0.18;
const AN_INJECTED_ROW: f64 = 0.025;

/// Time by prices.
pub(crate) struct PricedClock {
    from: Instant,
    nanoseconds: AtomicU64,
    drift: f64,
    noise: Mutex<u64>,
}

impl PricedClock {
    pub(crate) fn new(drift_percent: usize) -> Self {
        let drift = drift_percent as f64 / 100.0;
        Self { from: Instant::now(), nanoseconds: AtomicU64::new(0), drift, noise: Mutex::new(7) }
    }

    /// Slower and faster in waves of some seconds, and a few percent from pass to pass.
    fn spend(&self, milliseconds: f64) {
        let now = self.nanoseconds.load(Ordering::Relaxed) as f64 * 1e-9;
        let wave = 0.5 + 0.3 * (now * 2.1).sin() + 0.2 * (now * 5.3).sin();
        let mut noise = self.noise.lock().unwrap_or_else(|held| held.into_inner());
        *noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let even = (*noise >> 40) as f64 / (1u64 << 24) as f64;
        let slower = 1.0 + self.drift * wave + 0.1 * self.drift.min(1.0) * even;
        self.nanoseconds.fetch_add((milliseconds * slower * 1e6) as u64, Ordering::Relaxed);
    }
}

impl Clock for PricedClock {
    fn now(&self) -> Instant {
        self.from + Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Inject,
    Draft,
}

pub(crate) struct Priced {
    inner: Box<dyn Backend>,
    clock: Arc<PricedClock>,
    kinds: Vec<Kind>,
}

impl Priced {
    pub(crate) fn new(inner: Box<dyn Backend>, clock: Arc<PricedClock>) -> Self {
        Self { inner, clock, kinds: Vec::new() }
    }
}

impl Backend for Priced {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn computes_whole_buckets(&self) -> bool {
        self.inner.computes_whole_buckets()
    }

    fn load(&mut self, weights: Arc<Weights>) -> Result<(), BackendError> {
        self.inner.load(weights)
    }

    fn allocate(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.inner.allocate(spec)
    }

    fn reset_slot(&mut self, state: StateId, slot: usize) {
        self.inner.reset_slot(state, slot);
    }

    fn copy_slot(&mut self, state: StateId, from: usize, to: usize) {
        self.inner.copy_slot(state, from, to);
    }

    fn prepare(&mut self, plan: Plan) -> Result<PlanId, BackendError> {
        let has = |is: fn(&Op) -> bool| plan.ops.iter().any(is);
        let kind = if has(|op| matches!(op, Op::LoadTaps { .. })) {
            Kind::Inject
        } else if has(|op| matches!(op, Op::TopTokens { .. })) {
            Kind::Draft
        } else if has(|op| matches!(op, Op::Concat { .. })) {
            Kind::Read
        } else {
            Kind::Write
        };
        let id = self.inner.prepare(plan)?;
        self.kinds.resize(id.0 as usize + 1, kind);
        self.kinds[id.0 as usize] = kind;
        Ok(id)
    }

    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError> {
        let (rows, seqs) = (step.n_rows() as f64, step.n_seqs() as f64);
        self.clock.spend(match self.kinds[plan.0 as usize] {
            Kind::Read => PASS + A_SEQUENCE * seqs + A_PROMPT_ROW * rows,
            Kind::Write => PASS + A_SEQUENCE * seqs + A_ROW * rows,
            Kind::Inject => AN_INJECTED_ROW * rows,
            Kind::Draft => DRAFT_PASS + A_DRAFT_ROW * rows,
        });
        self.inner.run(plan, state, step)
    }

    fn commit(&mut self, plan: PlanId, state: StateId, step: &Step, paths: &[Vec<u32>]) {
        self.inner.commit(plan, state, step, paths);
    }

    fn read(&self, plan: PlanId, act: Act) -> &[f32] {
        self.inner.read(plan, act)
    }

    fn read_choices(&self, plan: PlanId, choice: Choice) -> &[(u32, f32)] {
        self.inner.read_choices(plan, choice)
    }
}
