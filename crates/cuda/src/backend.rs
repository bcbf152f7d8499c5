//! Replays plans on a CUDA device: the first run of a plan launch by launch, every later one as one graph.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use overdraft_plan::draw::Adjustment;
use overdraft_plan::{
    Act, ActSpec, Backend, BackendError, Choice, DeviceUse, Footprint, Outcome, Plan, PlanId, Resident,
    RoundId, RoundSpec, RowSet, StateId, StateSpec, Step, Terms, Weights,
};

use crate::driver::{
    CudaError, Device, DeviceBuffer, Event, Graph, PinnedBuffer, Queue, Result, device_bytes,
};
use crate::linear::Gpu;
use crate::mirror::Mirror;
use crate::ops::{self, Cx, commit};
use crate::outbox::Outbox;
use crate::plan_memory::{CHOICE_BYTES, PlanMemory};
use crate::rounds::Rounds;
use crate::state::StateMemory;
use crate::step_data::StepLayout;
use crate::watch::{Span, Watch};
use crate::weights::{DeviceWeights, fast_kernels};

/// Kernels, graphs, the shares of linear ops and what steps send. A guess: no device was asked yet what they take.
const PLANS_BYTES: usize = 256 << 20;

/// A plan, and what was made of it for one state and one place of the buffers.
pub(crate) struct Prepared {
    pub(crate) memory: PlanMemory,
    /// The state it last ran with; a graph and tables are made for one.
    state: Option<StateId>,
    graph: Option<Graph>,
    /// The graph's events, where the device is watched.
    span: Option<Arc<Span>>,
    tables: Option<commit::CommitTables>,
    /// Choices by rows of logits, as every run leaves them in host memory: the only ones that are read each time.
    choices: Vec<Option<PinnedBuffer>>,
}

impl Prepared {
    /// Buffers have moved, or another state takes its turn.
    fn forget(&mut self) {
        (self.state, self.graph, self.tables) = (None, None, None);
    }
}

/// Weights, state and plans of one model on one device. Fields are dropped in order: graphs before what they use.
pub struct Cuda {
    pub(crate) rounds: Rounds,
    pub(crate) plans: Vec<Prepared>,
    pub(crate) states: Vec<StateMemory>,
    weights: DeviceWeights,
    /// The buffers all plans take turns with.
    arena: DeviceBuffer,
    counters: DeviceBuffer,
    /// The last step's data.
    pub(crate) step: DeviceBuffer,
    pub(crate) outbox: Outbox,
    pub(crate) mirror: Mirror,
    pub(crate) watch: Option<Watch>,
    pub(crate) last_run: Option<PlanId>,
    /// The device may still be at work.
    pub(crate) is_busy: bool,
    /// What went wrong where no result could be returned; the next run returns it.
    pub(crate) failure: Cell<Option<CudaError>>,
    pub(crate) queue: Queue,
    /// Of the device's memory, when there was nothing yet.
    free_at_first: usize,
    pub(crate) device: Arc<Device>,
}

impl Drop for Cuda {
    /// Before anything of it is given back, which the driver may keep waiting for a kernel without anybody watching.
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            let _ = self.queue.wait();
        }
    }
}

impl Cuda {
    pub fn new(device: Arc<Device>) -> std::result::Result<Self, CudaError> {
        let (free_at_first, _) = device.memory()?;
        let queue = Queue::new(&device)?;
        Ok(Self {
            rounds: Rounds::default(),
            plans: Vec::new(),
            states: Vec::new(),
            weights: DeviceWeights::default(),
            arena: DeviceBuffer::new(&device, "activations", 0)?,
            counters: DeviceBuffer::new(&device, "counters", 0)?,
            step: DeviceBuffer::new(&device, "step data", 64 * 1024)?,
            outbox: Outbox::default(),
            mirror: Mirror::default(),
            watch: None,
            last_run: None,
            is_busy: false,
            failure: Cell::new(None),
            queue,
            free_at_first,
            device,
        })
    }

    /// Kernels and copies of a replayed step of the plan, once it has been captured.
    pub fn graph_nodes(&self, plan: PlanId) -> Option<usize> {
        self.plans[plan.0 as usize].graph.as_ref().map(|g| g.n_nodes)
    }

    pub(crate) fn forget_graphs(&mut self) -> Result<()> {
        self.drain()?;
        self.rounds.forget();
        self.plans.iter_mut().for_each(Prepared::forget);
        Ok(())
    }

    /// Makes room for so many bytes of step data. Graphs know its place, so it grows seldom.
    fn hold_step(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.step.len() {
            self.forget_graphs()?;
            self.step = DeviceBuffer::new(&self.device, "step data", 2 * bytes)?;
            // Rounds of nobody leave it as it is.
            self.queue.clear(&self.step, 0, 2 * bytes)?;
        }
        Ok(())
    }

    fn wait_until_idle(&mut self) -> Result<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.is_busy { self.drain() } else { Ok(()) }
    }

    /// Until everything launched so far is done.
    pub(crate) fn drain(&mut self) -> Result<()> {
        self.queue.wait()?;
        self.is_busy = false;
        self.outbox.clear();
        self.watch.as_mut().map_or(Ok(()), |watch| watch.collect(&self.queue))
    }

    fn watch_device(&mut self) -> Result<Option<DeviceUse>> {
        self.device.make_current()?;
        if !Event::are_there() {
            return Ok(None);
        }
        self.drain()?;
        if let Some(watch) = &mut self.watch {
            return watch.take(&self.queue).map(Some);
        }
        // Graphs of steps made so far have no events in them; rounds tell the time themselves.
        self.plans.iter_mut().for_each(Prepared::forget);
        self.watch = Some(Watch::new(&self.device, &self.queue)?);
        Ok(Some(DeviceUse::default()))
    }

    fn prepare_plan(&mut self, plan: Plan) -> Result<PlanId> {
        self.device.make_current()?;
        for op in &plan.ops {
            ops::check(&plan, op)?;
            let gpu = Gpu { device: &self.device, queue: &self.queue };
            self.weights.need(gpu, &plan, op)?;
        }
        let memory = PlanMemory::new(plan, self.weights.fast());
        if memory.n_bytes > self.arena.len() {
            self.forget_graphs()?;
            // The old one goes first, so that both need never fit.
            self.arena = DeviceBuffer::new(&self.device, "activations", 0)?;
            self.arena = DeviceBuffer::new(&self.device, "activations", memory.n_bytes)?;
        }
        if 4 * memory.n_counters > self.counters.len() {
            self.forget_graphs()?;
            self.counters = DeviceBuffer::new(&self.device, "counters", 4 * memory.n_counters)?;
            self.queue.clear(&self.counters, 0, 4 * memory.n_counters)?;
        }
        // Of rounds all, of steps all but page tables and lists.
        let n_classes = self.states.iter().map(|state| state.pages.len()).max().unwrap_or(0);
        self.hold_step(4 * StepLayout::new(memory.plan.bucket, n_classes).len_without_tables())?;
        self.last_run = None;
        let is_read = |c: &ActSpec| c.rows == RowSet::Logits;
        let bytes = |c: &ActSpec| CHOICE_BYTES * c.width * memory.plan.capacity(c.rows);
        let choices = memory.plan.choices.iter();
        let choices =
            choices.map(|c| is_read(c).then(|| PinnedBuffer::new(&self.device, bytes(c))).transpose());
        let choices = choices.collect::<Result<_>>()?;
        self.plans.push(Prepared { memory, state: None, graph: None, span: None, tables: None, choices });
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    /// Launches the step and returns while the device is at work on it.
    fn run_step(&mut self, id: PlanId, state_id: StateId, step: &Step) -> Result<()> {
        self.device.make_current()?;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let state = &self.states[state_id.0 as usize];
        let layout = StepLayout::new(self.plans[id.0 as usize].memory.plan.bucket, state.pages.len());
        let bytes = 4 * layout.len(step);
        self.hold_step(bytes)?;
        let is_unread =
            |watch: &Watch| self.plans[id.0 as usize].span.as_ref().is_some_and(|s| watch.holds(s));
        if self.outbox.is_full() || self.watch.as_ref().is_some_and(is_unread) {
            self.drain()?;
        }
        if let Some(watch) = &mut self.watch {
            watch.leave_rounds(&self.queue)?;
        }
        let block = self.outbox.take(&self.device, bytes)?;
        // SAFETY: the outbox gives out no block that the device may be reading.
        layout.pack(step, unsafe { block.words_mut() });
        self.mirror.clear();
        let prepared = &mut self.plans[id.0 as usize];
        prepared.memory.n_rows = step.n_rows();
        prepared.memory.n_logits = step.logit_rows().len();
        if self.watch.is_some() && prepared.span.is_none() {
            prepared.span = Some(Span::new(&self.device)?);
        }
        let is_first = prepared.state != Some(state_id);
        if is_first {
            prepared.forget();
        }
        self.last_run = Some(id);
        self.is_busy = true;
        self.queue.send(block, &self.step, bytes)?;
        let (cx, prepared) = (self.cx(id, state_id), &self.plans[id.0 as usize]);
        let launch = || {
            Span::around(prepared.span.as_ref(), &self.queue, || {
                ops::launch_all(&cx)?;
                commit::keep_sure_taps(&cx)?;
                prepared.choices.iter().enumerate().try_for_each(|(i, here)| {
                    let to = here.as_ref().map(|here| here.ptr() as u64);
                    // Pinned memory has one address for both sides, and `read_choices` waits for the queue.
                    to.map_or(Ok(()), |to| commit::to_host(&cx, Choice(i as u32), to))
                })
            })
        };
        if is_first {
            // The first run loads kernels, which a capture may not, and a plan that runs once needs no graph.
            launch()?;
            self.plans[id.0 as usize].state = Some(state_id);
        } else if prepared.graph.is_none() {
            let graph = self.queue.capture(launch)?;
            self.plans[id.0 as usize].graph = Some(graph);
        }
        let prepared = &self.plans[id.0 as usize];
        if let Some(graph) = &prepared.graph {
            self.queue.replay(graph)?;
        }
        if let (Some(watch), Some(span)) = (&mut self.watch, &prepared.span) {
            watch.launched(span);
        }
        Ok(())
    }

    /// What a plan's ops are launched with.
    pub(crate) fn cx(&self, id: PlanId, state: StateId) -> Cx<'_> {
        let (memory, state) = (&self.plans[id.0 as usize].memory, &self.states[state.0 as usize]);
        let layout = StepLayout::new(memory.plan.bucket, state.pages.len());
        Cx {
            gpu: Gpu { device: &self.device, queue: &self.queue },
            weights: &self.weights,
            memory,
            state,
            n_seqs: state.slots,
            step: layout.view(self.step.ptr()),
            base: self.arena.ptr(),
            counters: self.counters.ptr(),
            imaged: RefCell::default(),
            prompt_image: Cell::default(),
        }
    }

    fn commit_rows(&mut self, id: PlanId, state_id: StateId, step: &Step, paths: &[Vec<u32>]) -> Result<()> {
        let longest = paths.iter().map(Vec::len).max().unwrap_or(0);
        if longest == 0 {
            return Ok(());
        }
        self.device.make_current()?;
        if self.watch.as_ref().is_some_and(|watch| watch.holds(&watch.commit)) {
            self.drain()?;
        }
        if self.plans[id.0 as usize].tables.is_none() {
            let tables = commit::CommitTables::new(&self.cx(id, state_id))?;
            self.plans[id.0 as usize].tables = Some(tables);
        }
        self.is_busy = true;
        let cx = self.cx(id, state_id);
        let tables = self.plans[id.0 as usize].tables.as_ref().expect("made above");
        // What the step left is still on the device: sequences, rows and page tables are not sent again.
        let paths = &paths[..step.n_seqs().min(paths.len())];
        let span = self.watch.as_ref().map(|watch| watch.commit.clone());
        Span::around(span.as_ref(), &self.queue, || commit::commit(&cx, tables, paths, longest))?;
        if let (Some(watch), Some(span)) = (&mut self.watch, &span) {
            watch.launched(span);
        }
        Ok(())
    }

    /// Keeps the first failure for the next run to return.
    fn note(&self, result: Result<()>) {
        if let Err(e) = result {
            let first = self.failure.take().unwrap_or(e);
            self.failure.set(Some(first));
        }
    }
}

impl Backend for Cuda {
    fn describe(&self) -> String {
        format!("CUDA, {}", self.device.name)
    }

    fn reads_apart(&self) -> bool {
        true
    }

    fn is_far(&self) -> bool {
        true
    }

    fn watch(&mut self) -> std::result::Result<Option<DeviceUse>, BackendError> {
        Ok(self.watch_device()?)
    }

    fn taken(&self) -> Option<usize> {
        let (free, _) = self.device.memory().ok()?;
        Some(self.free_at_first.saturating_sub(free))
    }

    fn footprint(&self, weights: &Weights, plans: &[Plan]) -> Footprint {
        let fast = fast_kernels(&self.device);
        let scratch = plans.iter().map(|plan| {
            let memory = PlanMemory::new(plan.clone(), fast.as_deref());
            device_bytes(memory.n_bytes) + device_bytes(4 * memory.n_counters)
        });
        Footprint {
            weights: DeviceWeights::bytes_for(weights, fast.as_deref(), plans),
            scratch: scratch.max().unwrap_or(0),
            plans: PLANS_BYTES,
        }
    }

    fn load(&mut self, weights: Arc<Weights>) -> std::result::Result<(), BackendError> {
        self.device.make_current()?;
        self.weights = DeviceWeights::load(&self.device, &self.queue, weights)?;
        Ok(())
    }

    fn allocate(&mut self, spec: &StateSpec) -> std::result::Result<StateId, BackendError> {
        self.device.make_current()?;
        self.states.push(StateMemory::new(&self.device, &self.queue, spec)?);
        Ok(StateId(self.states.len() as u32 - 1))
    }

    fn reset_slot(&mut self, state: StateId, slot: usize) {
        let result = self.device.make_current().and_then(|()| {
            self.is_busy = true;
            self.states[state.0 as usize].reset_slot(&self.queue, slot)
        });
        self.note(result);
    }

    fn copy_slot(&mut self, state: StateId, from: usize, to: usize) {
        let result = self.device.make_current().and_then(|()| {
            self.is_busy = true;
            self.states[state.0 as usize].copy_slot(&self.queue, from, to)
        });
        self.note(result);
    }

    fn prepare(&mut self, plan: Plan) -> std::result::Result<PlanId, BackendError> {
        Ok(self.prepare_plan(plan)?)
    }

    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> std::result::Result<(), BackendError> {
        let memory = &self.plans[plan.0 as usize].memory;
        let kept = &self.states[state.0 as usize];
        step.validate(&memory.plan, memory.vocab(self.weights.host()), kept.slots, &kept.pages)?;
        Ok(self.run_step(plan, state, step)?)
    }

    fn wait(&mut self) -> std::result::Result<(), BackendError> {
        self.device.make_current()?;
        Ok(self.wait_until_idle()?)
    }

    fn commit(&mut self, plan: PlanId, state: StateId, step: &Step, paths: &[Vec<u32>]) {
        assert_eq!(self.last_run, Some(plan), "only the last run's rows can be committed");
        let result = self.commit_rows(plan, state, step, paths);
        self.note(result);
    }

    fn read(&self, plan: PlanId, act: Act) -> &[f32] {
        assert_eq!(self.last_run, Some(plan), "only the last run's buffers can be read");
        let memory = &self.plans[plan.0 as usize].memory;
        let spec = memory.plan.act(act);
        let from = self.arena.ptr() + memory.act(act) as u64;
        let n = memory.rows(spec) * spec.width;
        // SAFETY: inside the arena, which the last run was the last to write.
        let read = unsafe { self.mirror.floats(&self.device, &self.queue, from, n) };
        read.unwrap_or_else(|e| {
            self.note(Err(e));
            self.mirror.blank(n)
        })
    }

    fn read_choices(&self, plan: PlanId, choice: Choice) -> &[(u32, f32)] {
        assert_eq!(self.last_run, Some(plan), "only the last run's buffers can be read");
        let Prepared { memory, choices, .. } = &self.plans[plan.0 as usize];
        let spec = memory.plan.choices[choice.0 as usize];
        let from = self.arena.ptr() + memory.choice(choice) as u64;
        let n = memory.rows(spec) * spec.width;
        let here = choices[choice.0 as usize].as_ref();
        let waited = if here.is_some() && self.is_busy { self.queue.wait() } else { Ok(()) };
        // SAFETY: as above; what the run left here is complete.
        let read =
            waited.and_then(|()| unsafe { self.mirror.choices(&self.device, &self.queue, from, n, here) });
        read.unwrap_or_else(|e| {
            self.note(Err(e));
            self.mirror.blank_choices(n)
        })
    }

    fn has_rounds(&self) -> bool {
        true
    }

    fn prepare_round(
        &mut self,
        spec: RoundSpec,
        state: StateId,
    ) -> std::result::Result<RoundId, BackendError> {
        Ok(self.make_round(spec, state)?)
    }

    fn set_resident(
        &mut self,
        _: StateId,
        resident: &Resident,
        listed: &[Adjustment],
    ) -> std::result::Result<(), BackendError> {
        Ok(self.tell_resident(resident, listed)?)
    }

    fn set_tables(
        &mut self,
        state: StateId,
        slot: u32,
        tables: &mut dyn Iterator<Item = &[u32]>,
    ) -> std::result::Result<(), BackendError> {
        Ok(self.tell_tables(state, slot, tables)?)
    }

    fn run_round(
        &mut self,
        round: RoundId,
        _: StateId,
        terms: &Terms,
    ) -> std::result::Result<(), BackendError> {
        Ok(self.ask_for_round(round, terms)?)
    }

    fn take_outcome(&mut self, outcome: &mut Outcome) -> std::result::Result<(), BackendError> {
        Ok(self.take_round(outcome)?)
    }
}
