//! A device that keeps tokens where a real one keeps keys, values and states, in the same places. A row sees what its
//! page tables, parents and slot show it, so a page given to two, a row committed to the wrong place or a state from
//! another prefix writes another text.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use overdraft_plan::{
    Act, Backend, BackendError, Choice, LayerState, NO_PARENT, NO_TOKEN, Op, PAGE, Plan, PlanId, Retention,
    StateId, StateSpec, Step, TAP_ROWS, WINDOW_ROWS, Weights, grid_of,
};

use super::VirtualClock;
use super::random::Random;
use super::text::{VOCAB, fold, guess, logits};

/// What nobody wrote.
const POISON: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Cell {
    target: u32,
    draft: u32,
}

#[derive(Clone)]
struct Slot {
    /// Hash of the tokens before `grid`.
    s: u64,
    grid: u32,
    window: [u32; WINDOW_ROWS],
    /// Positions whose taps wait, by position mod [`TAP_ROWS`].
    taps: [u32; TAP_ROWS],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A pass of the target; whether its rows enter the draft's context.
    Target {
        reads: bool,
    },
    Inject,
    Block,
}

/// What a pass takes: (rows, microseconds), ascending; in between and beyond on straight lines.
pub(crate) type Micros = &'static [(u64, u64)];

#[derive(Clone, Copy)]
pub(crate) struct Costs {
    pub(crate) target: Micros,
    pub(crate) draft: Micros,
    /// Of a device whose logits are far to read: it draws tokens itself, and steps have room for more trees.
    pub(crate) is_far: bool,
}

impl Default for Costs {
    fn default() -> Self {
        Self { target: &[(0, 1000), (1, 1100)], draft: &[(0, 300), (1, 400)], is_far: false }
    }
}

fn micros_of(table: Micros, rows: u64) -> u64 {
    let at = table.partition_point(|p| p.0 < rows).clamp(1, table.len() - 1);
    let ((low, from), (high, to)) = (table[at - 1], table[at]);
    from + (to - from) * rows.saturating_sub(low) / (high - low)
}

/// What is wrong with it.
#[derive(Default)]
pub(crate) struct Faults {
    /// The draft is always wrong.
    pub(crate) misguesses: bool,
    /// Steps take what their rows take, nothing else has the machine, and something always comes next.
    pub(crate) is_even: bool,
    /// The first run waits for this.
    pub(crate) hangs: Option<Receiver<()>>,
    /// The run that fails for good.
    pub(crate) dies_at: Option<u64>,
}

pub(crate) struct Device {
    clock: Arc<VirtualClock>,
    random: Random,
    faults: Faults,
    costs: Costs,
    runs: u64,
    classes: Vec<Retention>,
    is_recurrent: bool,
    /// `[class][page * PAGE + place]`
    cells: Vec<Vec<Cell>>,
    slots: Vec<Slot>,
    plans: Vec<(Plan, Kind)>,
    logits: Vec<f32>,
    choices: Vec<(u32, f32)>,
}

impl Device {
    pub(crate) fn new(clock: Arc<VirtualClock>, seed: u64, faults: Faults) -> Self {
        Self {
            clock,
            random: Random::new(seed),
            faults,
            costs: Costs::default(),
            runs: 0,
            classes: Vec::new(),
            is_recurrent: false,
            cells: Vec::new(),
            slots: Vec::new(),
            plans: Vec::new(),
            logits: Vec::new(),
            choices: Vec::new(),
        }
    }

    pub(crate) fn with_costs(self, costs: Costs) -> Self {
        Self { costs, ..self }
    }

    fn place(&self, step: &Step, seq: usize, class: usize, at: u32) -> usize {
        step.seq(seq).page(class, at) * PAGE + at as usize % PAGE
    }

    /// Writes each row's token where its key and value would go.
    fn write(&mut self, step: &Step, kind: Kind) {
        for index in 0..step.n_rows() {
            let view = step.view(index);
            for class in 0..self.classes.len() {
                let at = self.place(step, view.row.seq as usize, class, view.kv_slot());
                let cell = &mut self.cells[class][at];
                if let Kind::Target { .. } = kind {
                    cell.target = view.row.token;
                }
                if matches!(kind, Kind::Inject | Kind::Target { reads: true }) {
                    cell.draft = view.row.token;
                }
            }
        }
    }

    /// What row `index` sees: by class, then by the recurrent state.
    fn seen(&self, step: &Step, index: usize) -> Vec<u64> {
        let view = step.view(index);
        let seq = view.row.seq as usize;
        let mut all: Vec<u64> = Vec::with_capacity(self.classes.len() + 1);
        for (class, retention) in self.classes.iter().enumerate() {
            let first = match retention {
                Retention::Full => 0,
                Retention::Sliding(window) => (view.row.pos + 1).saturating_sub(*window),
            };
            let tokens = (first..=view.row.pos)
                .map(|p| self.cells[class][self.place(step, seq, class, view.slot_of(p))].target);
            all.push(tokens.fold(0, fold));
        }
        if self.is_recurrent {
            let slot = &self.slots[view.seq.slot];
            assert_eq!(slot.grid, view.seq.stored_grid, "the state stands where the engine thinks");
            let mut path = Vec::new();
            let mut at = index as u32;
            while at != NO_PARENT {
                path.push(step.rows()[at as usize].token);
                at = step.rows()[at as usize].parent;
            }
            let kept = (slot.grid..view.seq.committed).map(|p| slot.window[p as usize % WINDOW_ROWS]);
            all.push(kept.chain(path.into_iter().rev()).fold(slot.s, fold));
        }
        all
    }

    /// Moves every sequence's state to the root's grid, and its sure rows into the window.
    fn keep_sure_rows(&mut self, step: &Step) {
        for s in 0..step.n_seqs() {
            let seq = step.seq(s);
            let sure: Vec<u32> =
                seq.rows[..seq.n_sure as usize].iter().map(|r| step.rows()[*r as usize].token).collect();
            let slot = &mut self.slots[seq.slot];
            let token = |slot: &Slot, p: u32| match p.checked_sub(seq.committed) {
                None => slot.window[p as usize % WINDOW_ROWS],
                Some(i) => sure[i as usize],
            };
            let grid = grid_of(seq.committed + seq.n_sure - 1);
            slot.s = (slot.grid..grid).fold(slot.s, |h, p| fold(h, token(slot, p)));
            slot.grid = slot.grid.max(grid);
            for (p, token) in (seq.committed..).zip(sure) {
                slot.window[p as usize % WINDOW_ROWS] = token;
            }
        }
    }

    /// The draft must have every token of the text that its layers can see.
    fn check_draft_context(&self, step: &Step) {
        for s in 0..step.n_seqs() {
            let committed = step.seq(s).committed;
            for (class, retention) in self.classes.iter().enumerate() {
                let first = match retention {
                    Retention::Full => 0,
                    Retention::Sliding(window) => (committed + 1).saturating_sub(*window),
                };
                for p in first..committed {
                    let cell = self.cells[class][self.place(step, s, class, p)];
                    assert_eq!(cell.draft, cell.target, "the draft's context at {p} of {committed}");
                    assert_ne!(cell.draft, POISON, "nothing is read that was not written");
                }
            }
        }
    }

    /// What the draft says at depth j: the guess j times over, then others.
    fn draft(&mut self, plan: &Plan, step: &Step) {
        let k = plan.choices[0].width;
        self.choices.clear();
        for row in step.logit_rows() {
            let row = step.rows()[*row as usize];
            let seq = step.seq(row.seq as usize);
            let mut token = step.rows()[seq.rows[0] as usize].token;
            (0..row.local).for_each(|_| token = guess(token));
            token += if self.faults.misguesses { 100 } else { 0 };
            let others = (0..k as u32).map(|i| ((token + i) % VOCAB as u32, -0.2 - 1.3 * i as f32));
            self.choices.extend(others);
        }
    }
}

/// What a text that always takes the best token draws.
fn best(logits: &[f32]) -> (u32, f32) {
    let best = (0..).zip(logits).reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.filter(|(_, logit)| logit.is_finite()).map_or((NO_TOKEN, 0.0), |(token, _)| (token, 0.0))
}

impl Backend for Device {
    fn describe(&self) -> String {
        "simulated".into()
    }

    fn computes_whole_buckets(&self) -> bool {
        self.costs.is_far
    }

    fn is_far(&self) -> bool {
        self.costs.is_far
    }

    fn load(&mut self, _: Arc<Weights>) -> Result<(), BackendError> {
        Ok(())
    }

    fn allocate(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.classes = spec.classes.clone();
        self.is_recurrent = spec.layers.iter().any(|l| matches!(l, LayerState::Recurrent(_)));
        let empty = Cell { target: POISON, draft: POISON };
        self.cells = spec.pages.iter().map(|n| vec![empty; n * PAGE]).collect();
        let slot = Slot { s: 1, grid: 0, window: [POISON; WINDOW_ROWS], taps: [POISON; TAP_ROWS] };
        self.slots = vec![slot; spec.slots];
        Ok(StateId(0))
    }

    fn reset_slot(&mut self, _: StateId, slot: usize) {
        (self.slots[slot].s, self.slots[slot].grid) = (0, 0);
    }

    fn copy_slot(&mut self, _: StateId, from: usize, to: usize) {
        self.slots[to] = self.slots[from].clone();
    }

    fn prepare(&mut self, plan: Plan) -> Result<PlanId, BackendError> {
        let has = |is: fn(&Op) -> bool| plan.ops.iter().any(is);
        let kind = if has(|op| matches!(op, Op::LoadTaps { .. })) {
            Kind::Inject
        } else if has(|op| matches!(op, Op::TopTokens { .. })) {
            Kind::Block
        } else {
            Kind::Target { reads: has(|op| matches!(op, Op::Concat { .. })) }
        };
        self.plans.push((plan, kind));
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn run(&mut self, plan: PlanId, _: StateId, step: &Step) -> Result<(), BackendError> {
        let (plan, kind) = self.plans[plan.0 as usize].clone();
        let pages: Vec<usize> = self.cells.iter().map(|c| c.len() / PAGE).collect();
        step.validate(&plan, VOCAB, self.slots.len(), &pages)?;
        self.runs += 1;
        if self.faults.dies_at.is_some_and(|at| self.runs >= at) {
            return Err(BackendError::Device("the device fell off the bus".into()));
        }
        let table = if kind == Kind::Block { self.costs.draft } else { self.costs.target };
        let rows = if self.costs.is_far { plan.bucket } else { step.n_rows() };
        let micros = if kind == Kind::Inject { 0 } else { micros_of(table, rows as u64) };
        // Now and then something else has the machine.
        let slow = if self.random.one_in(40) { 10 } else { 1 };
        let percent = if self.faults.is_even { 100 } else { slow * (95 + self.random.below(10)) };
        self.clock.advance(Duration::from_micros(micros * percent / 100));
        if let Some(held) = self.faults.hangs.take() {
            let _ = held.recv();
        }
        match kind {
            Kind::Block => {
                self.check_draft_context(step);
                self.draft(&plan, step);
            }
            Kind::Inject => {
                for row in step.rows() {
                    let slot = &self.slots[step.seq(row.seq as usize).slot];
                    assert_eq!(slot.taps[row.pos as usize % TAP_ROWS], row.token, "the tap of {}", row.pos);
                }
                self.write(step, kind);
            }
            Kind::Target { .. } => {
                self.write(step, kind);
                self.logits.resize(step.logit_rows().len() * VOCAB, 0.0);
                for (i, row) in step.logit_rows().iter().enumerate() {
                    let seen = self.seen(step, *row as usize);
                    let last = step.rows()[*row as usize].token;
                    logits(last, &seen, &mut self.logits[i * VOCAB..(i + 1) * VOCAB]);
                }
                if self.faults.is_even {
                    self.logits.iter_mut().filter(|l| l.is_nan()).for_each(|l| *l = 0.0);
                }
                if self.costs.is_far {
                    self.choices.clear();
                    self.choices.extend(self.logits.chunks(VOCAB).map(best));
                }
                if self.is_recurrent {
                    self.keep_sure_rows(step);
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, plan: PlanId, _: StateId, step: &Step, paths: &[Vec<u32>]) {
        let is_speculative = !self.plans[plan.0 as usize].0.kept.is_empty();
        for (s, path) in paths.iter().enumerate() {
            let seq = step.seq(s);
            assert!(
                path.is_empty() || is_speculative || !self.is_recurrent,
                "the plan kept nothing to commit"
            );
            for row in path {
                let row = step.rows()[*row as usize];
                for class in 0..self.classes.len() {
                    let from = self.place(step, s, class, seq.committed + row.local);
                    let to = self.place(step, s, class, row.pos);
                    self.cells[class][to] = self.cells[class][from];
                }
                self.slots[seq.slot].window[row.pos as usize % WINDOW_ROWS] = row.token;
            }
            let sure = &seq.rows[..seq.n_sure as usize];
            for row in sure[sure.len().saturating_sub(TAP_ROWS)..].iter().chain(path) {
                let row = step.rows()[*row as usize];
                self.slots[seq.slot].taps[row.pos as usize % TAP_ROWS] = row.token;
            }
        }
    }

    fn read(&self, _: PlanId, _: Act) -> &[f32] {
        &self.logits
    }

    fn read_choices(&self, _: PlanId, _: Choice) -> &[(u32, f32)] {
        &self.choices
    }
}
