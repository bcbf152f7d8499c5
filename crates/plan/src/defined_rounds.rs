//! Any backend with rounds as they are defined: what rounds of a device are compared with, and how the engine's are tested
//! where there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::{Backend, BackendError, DeviceUse, PlanId, StateId};
use crate::draw::Adjustment;
use crate::host_rounds::HostRounds;
use crate::plan::{Act, Choice, Plan};
use crate::round::{Outcome, Resident, RoundId, RoundSpec, Terms};
use crate::state::StateSpec;
use crate::step::Step;
use crate::weights::Weights;

pub struct DefinedRounds<B> {
    backend: B,
    rounds: HostRounds,
    run: Arc<AtomicUsize>,
    has_rounds: bool,
}

impl<B: Backend> DefinedRounds<B> {
    pub fn new(backend: B) -> Self {
        Self { backend, rounds: HostRounds::default(), run: Arc::default(), has_rounds: true }
    }

    /// No rounds at all: whoever asks makes them of steps.
    pub fn none(backend: B) -> Self {
        Self { has_rounds: false, ..Self::new(backend) }
    }

    /// With lists of so many tokens at most.
    pub fn with_listed_room(mut self, room: usize) -> Self {
        self.rounds.listed_room = Some(room);
        self
    }

    /// Rounds run so far.
    pub fn count(&self) -> Arc<AtomicUsize> {
        self.run.clone()
    }
}

impl<B: Backend> Backend for DefinedRounds<B> {
    fn describe(&self) -> String {
        self.backend.describe()
    }
    fn computes_whole_buckets(&self) -> bool {
        self.backend.computes_whole_buckets()
    }
    fn is_far(&self) -> bool {
        self.backend.is_far()
    }
    fn watch(&mut self) -> Result<Option<DeviceUse>, BackendError> {
        self.backend.watch()
    }
    fn reads_apart(&self) -> bool {
        self.backend.reads_apart()
    }
    fn load(&mut self, weights: Arc<Weights>) -> Result<(), BackendError> {
        self.backend.load(weights)
    }
    fn allocate(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.backend.allocate(spec)
    }
    fn reset_slot(&mut self, state: StateId, slot: usize) {
        self.backend.reset_slot(state, slot);
    }
    fn copy_slot(&mut self, state: StateId, from: usize, to: usize) {
        self.backend.copy_slot(state, from, to);
    }
    fn prepare(&mut self, plan: Plan) -> Result<PlanId, BackendError> {
        self.backend.prepare(plan)
    }
    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError> {
        self.backend.run(plan, state, step)
    }
    fn wait(&mut self) -> Result<(), BackendError> {
        self.backend.wait()
    }
    fn commit(&mut self, plan: PlanId, state: StateId, step: &Step, paths: &[Vec<u32>]) {
        self.backend.commit(plan, state, step, paths);
    }
    fn read(&self, plan: PlanId, act: Act) -> &[f32] {
        self.backend.read(plan, act)
    }
    fn read_choices(&self, plan: PlanId, choice: Choice) -> &[(u32, f32)] {
        self.backend.read_choices(plan, choice)
    }
    fn has_rounds(&self) -> bool {
        self.has_rounds
    }
    fn listed_room(&self) -> usize {
        self.rounds.listed_room()
    }
    fn prepare_round(&mut self, spec: RoundSpec, _: StateId) -> Result<RoundId, BackendError> {
        Ok(self.rounds.prepare(spec))
    }
    fn set_resident(
        &mut self,
        _: StateId,
        resident: &Resident,
        listed: &[Adjustment],
    ) -> Result<(), BackendError> {
        self.rounds.set_resident(resident, listed);
        Ok(())
    }
    fn set_tables(
        &mut self,
        _: StateId,
        slot: u32,
        tables: &mut dyn Iterator<Item = &[u32]>,
    ) -> Result<(), BackendError> {
        self.rounds.set_tables(slot, tables);
        Ok(())
    }
    fn run_round(&mut self, round: RoundId, state: StateId, terms: &Terms) -> Result<(), BackendError> {
        self.run.fetch_add(1, Ordering::Relaxed);
        self.rounds.run(&mut self.backend, round, state, terms)
    }
    fn take_outcome(&mut self, outcome: &mut Outcome) -> Result<(), BackendError> {
        self.rounds.take(outcome);
        Ok(())
    }
}
