//! Replays plans on the CPU.

use std::sync::Arc;

use overdraft_plan::{
    Act, Backend, BackendError, Choice, LayerState, Plan, PlanId, StateId, StateSpec, Step, Weights,
};

use crate::linear::{Isa, Packed, WeightView, pack};
use crate::memory::{Arena, PlanMemory, StateMemory};
use crate::ops::commit::commit;
use crate::ops::{Cx, Mode, OpScratch, execute, multiplied, recurrent, thread_buffer};
use crate::pool::Pool;

/// Weights, state and plans of one model on the CPU.
pub struct Cpu {
    mode: Mode,
    weights: Arc<Weights>,
    /// Quantised matrices that a plan multiplies with, by id: packed when the first such plan is prepared.
    packed: Vec<Option<Packed>>,
    states: Vec<StateMemory>,
    plans: Vec<PlanMemory>,
    arena: Arena,
    /// Whose buffers the arena holds.
    last_run: Option<PlanId>,
    scratch: OpScratch,
}

impl Cpu {
    /// The fast backend on `threads` threads, with the best instruction set this CPU has.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self::with_mode(Mode::Fast { pool: Pool::new(threads), isa })
    }

    /// The definitions: slow, exact, one thread. Quantised weights meet `f32` activations.
    pub fn reference() -> Self {
        Self::with_mode(Mode::Definition)
    }

    fn with_mode(mode: Mode) -> Self {
        Self {
            mode,
            weights: Arc::default(),
            packed: Vec::new(),
            states: Vec::new(),
            plans: Vec::new(),
            arena: Arena::default(),
            last_run: None,
            scratch: OpScratch::default(),
        }
    }
}

impl Cpu {
    /// Packs what a plan multiplies with and is not packed yet. Only then is it known: an embedding table that no head
    /// shares stays in the file, where a step reads a few rows of it. A table that is both is read from here alone.
    fn pack(&mut self, plan: &Plan) -> Result<(), BackendError> {
        let Mode::Fast { pool, isa } = &self.mode else { return Ok(()) };
        let mut ids: Vec<u32> = plan.ops.iter().flat_map(multiplied).map(|id| id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        let matrices = self.weights.matrices();
        ids.retain(|id| self.packed[*id as usize].is_none() && matrices[*id as usize].dtype.is_quantised());
        let views = |id: &u32| {
            let m = &matrices[*id as usize];
            let view = |bytes| WeightView::new(m.dtype, m.cols, bytes).expect("a matrix is whole rows");
            m.parts().iter().map(|p| view(p)).collect()
        };
        if ids.is_empty() {
            return Ok(());
        }
        let packed = pack(*isa, pool, &ids.iter().map(views).collect::<Vec<_>>()).map_err(|e| {
            BackendError::Unsupported {
                what: "this model".into(),
                why: format!("memory for its weights, rearranged: {e}"),
            }
        })?;
        for (id, packed) in ids.into_iter().zip(packed) {
            matrices[id as usize].parts().iter().for_each(|p| p.release());
            self.packed[id as usize] = Some(packed);
        }
        Ok(())
    }
}

impl Backend for Cpu {
    fn describe(&self) -> String {
        match &self.mode {
            Mode::Definition => "cpu reference".into(),
            Mode::Fast { pool, isa } => {
                let n = pool.threads();
                format!("cpu, {}, {n} thread{}", isa.name(), if n == 1 { "" } else { "s" })
            }
        }
    }

    fn computes_whole_buckets(&self) -> bool {
        false
    }

    fn load(&mut self, weights: Arc<Weights>) -> Result<(), BackendError> {
        self.packed = vec![None; weights.matrices().len()];
        self.weights = weights;
        Ok(())
    }

    fn allocate(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        let buffers = spec.layers.iter().map(|layer| match layer {
            LayerState::Recurrent(shape) => recurrent::buffer_len(shape),
            LayerState::Attention(_) => 0,
        });
        thread_buffer::reserve(&self.mode, buffers.max().unwrap_or(0));
        self.states.push(StateMemory::new(spec));
        Ok(StateId(self.states.len() as u32 - 1))
    }

    fn reset_slot(&mut self, state: StateId, slot: usize) {
        self.states[state.0 as usize].reset_slot(slot);
    }

    fn copy_slot(&mut self, state: StateId, from: usize, to: usize) {
        self.states[state.0 as usize].copy_slot(from, to);
    }

    fn prepare(&mut self, plan: Plan) -> Result<PlanId, BackendError> {
        self.pack(&plan)?;
        self.scratch.reserve(&self.mode, &plan);
        self.plans.push(PlanMemory::new(plan, &self.weights, &mut self.arena));
        self.last_run = None;
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError> {
        let memory = &mut self.plans[plan.0 as usize];
        let state = &mut self.states[state.0 as usize];
        step.validate(&memory.plan, memory.vocab, state.slots, &state.pages)?;
        memory.n_rows = step.n_rows();
        memory.n_logits = step.logit_rows().len();
        self.last_run = Some(plan);
        let (plan, acts) = memory.split(&mut self.arena);
        let cx = Cx { mode: &self.mode, weights: &self.weights, packed: &self.packed, step, acts };
        for op in &plan.ops {
            execute(op, &cx, &mut self.scratch, state);
        }
        Ok(())
    }

    fn commit(&mut self, plan: PlanId, state: StateId, step: &Step, paths: &[Vec<u32>]) {
        assert_eq!(self.last_run, Some(plan), "only the last run's rows can be committed");
        let (plan, acts) = self.plans[plan.0 as usize].split(&mut self.arena);
        commit(plan, &acts, step, paths, &mut self.states[state.0 as usize]);
    }

    fn read_choices(&self, plan: PlanId, choice: Choice) -> &[(u32, f32)] {
        assert_eq!(self.last_run, Some(plan), "only the last run's buffers can be read");
        self.plans[plan.0 as usize].read_choices(&self.arena, choice)
    }

    fn read(&self, plan: PlanId, act: Act) -> &[f32] {
        assert_eq!(self.last_run, Some(plan), "only the last run's buffers can be read");
        self.plans[plan.0 as usize].read(&self.arena, act)
    }
}
