//! Sequences of one case on one backend.

use overdraft_plan::{
    ActSpec, Backend, BackendError, NO_PAGE, NO_PARENT, PAGE, Plan, PlanId, Retention, RowSet, StateId,
    StateSpec, Step, bucket_for, grid_of,
};

use super::case::{Case, Observed};

/// Rows of one sequence in a step: a chain of sure rows, then drafts below the last of them.
#[derive(Clone, Copy)]
pub struct Part<'t> {
    pub seq: usize,
    pub tokens: &'t [u32],
    /// For each row past the sure ones its parent, as an index into `tokens`.
    pub draft_parents: &'t [usize],
}

impl<'t> Part<'t> {
    pub fn chain(seq: usize, tokens: &'t [u32]) -> Self {
        Self { seq, tokens, draft_parents: &[] }
    }

    fn n_sure(&self) -> usize {
        self.tokens.len() - self.draft_parents.len()
    }
}

/// How the rows of several parts stand in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Apart,
    Interleaved,
}

/// What one row left in the compared buffers, one after another; empty where logits were not asked for.
pub type RowOutput = Vec<f32>;

/// What a wrong expert or token weighs among the outputs: more than any tolerance, less than would hide what else is
/// compared.
const INDEX_STEP: f32 = 1.0 / 64.0;

struct Sequence {
    committed: u32,
    stored_grid: u32,
}

struct Prepared {
    bucket: usize,
    written_room: Option<usize>,
    id: PlanId,
    plan: Plan,
    observed: Observed,
}

pub struct Session<'c> {
    case: &'c Case,
    backend: Box<dyn Backend>,
    state: StateId,
    plans: Vec<Prepared>,
    seqs: Vec<Sequence>,
    pages_per_seq: usize,
    step: Step,
    /// Parts of a step before those of prompts; `None`: no rows are of prompts.
    written_parts: Option<usize>,
}

impl<'c> Session<'c> {
    pub fn new(
        case: &'c Case,
        mut backend: Box<dyn Backend>,
        n_seqs: usize,
        context: usize,
    ) -> Result<Self, BackendError> {
        let pages_per_seq = context.div_ceil(PAGE);
        backend.load(case.weights.clone())?;
        let state = backend.allocate(&StateSpec {
            layers: case.layers.clone(),
            classes: case.classes.clone(),
            pages: vec![n_seqs * pages_per_seq; case.classes.len()],
            slots: n_seqs,
            kv: case.kv,
            tap_width: case.tap_width,
        })?;
        let seqs = (0..n_seqs).map(|_| Sequence { committed: 0, stored_grid: 0 }).collect();
        let written_parts = case.is_prompt.then_some(0);
        let (plans, step) = (Vec::new(), Step::default());
        Ok(Self { case, backend, state, plans, seqs, pages_per_seq, step, written_parts })
    }

    /// From now on so many parts of each step are written, before prompts; with `None` all are, as of a case without
    /// prompts.
    pub fn write_parts(&mut self, n: Option<usize>) {
        self.written_parts = n;
    }

    /// Forgets a sequence, so that its slot and pages serve another.
    pub fn restart(&mut self, seq: usize) {
        let slot = self.slot(seq);
        self.backend.reset_slot(self.state, slot);
        self.seqs[seq] = Sequence { committed: 0, stored_grid: 0 };
    }

    /// Not the sequence's own number: a backend that confuses them is found.
    fn slot(&self, seq: usize) -> usize {
        self.seqs.len() - 1 - seq
    }

    /// Pages of the sequences alternate and run backwards; what a window has left behind is not held.
    fn page_table(&self, seq: usize, class: Retention) -> Vec<u32> {
        let committed = self.seqs[seq].committed;
        let first_held = match class {
            Retention::Full => 0,
            Retention::Sliding(window) => (committed + 1).saturating_sub(window) as usize / PAGE,
        };
        let page = |p: usize| ((self.pages_per_seq - 1 - p) * self.seqs.len() + seq) as u32;
        (0..self.pages_per_seq).map(|p| if p < first_held { NO_PAGE } else { page(p) }).collect()
    }

    /// Runs one step and returns, per part, each row's output. The sure rows are committed, drafts are forgotten.
    pub fn feed(&mut self, parts: &[Part<'_>], order: Order) -> Result<Vec<Vec<RowOutput>>, BackendError> {
        let plan = self.run(parts, order)?;
        self.accept(plan, parts, &vec![Vec::new(); parts.len()]);
        Ok(self.outputs(plan, parts, order))
    }

    /// Like [`Self::feed`] with one part, but commits nothing: the step can be made again.
    pub fn feed_and_forget(&mut self, part: Part<'_>) -> Result<Vec<RowOutput>, BackendError> {
        let plan = self.run(&[part], Order::Apart)?;
        // S has moved to the grid of the last sure row and stays there: that is a function of committed rows only.
        let seq = &mut self.seqs[part.seq];
        seq.stored_grid = grid_of(seq.committed + part.n_sure() as u32 - 1);
        Ok(self.outputs(plan, &[part], Order::Apart).remove(0))
    }

    /// Runs one part and commits, with its sure rows, the drafts of `path` (indices into its tokens).
    pub fn feed_and_commit(&mut self, part: Part<'_>, path: &[usize]) -> Result<(), BackendError> {
        let plan = self.run(&[part], Order::Apart)?;
        // One part alone: its rows are the step's.
        let path = path.iter().map(|row| *row as u32).collect();
        self.accept(plan, &[part], &[path]);
        Ok(())
    }

    /// Runs the step; returns the index of its plan.
    fn run(&mut self, parts: &[Part<'_>], order: Order) -> Result<usize, BackendError> {
        self.fill_step(parts, order);
        let plan = self.plan_for(self.step.n_rows())?;
        self.backend.run(self.plans[plan].id, self.state, &self.step)?;
        Ok(plan)
    }

    fn accept(&mut self, plan: usize, parts: &[Part<'_>], paths: &[Vec<u32>]) {
        self.backend.commit(self.plans[plan].id, self.state, &self.step, paths);
        for (part, path) in parts.iter().zip(paths) {
            let seq = &mut self.seqs[part.seq];
            let sure_end = seq.committed + part.n_sure() as u32;
            seq.committed = sure_end + path.len() as u32;
            seq.stored_grid = grid_of(sure_end - 1);
        }
    }

    fn outputs(&self, plan: usize, parts: &[Part<'_>], order: Order) -> Vec<Vec<RowOutput>> {
        let mut outputs: Vec<Vec<RowOutput>> =
            parts.iter().map(|p| vec![RowOutput::new(); p.tokens.len()]).collect();
        let places = places(parts, order);
        let Prepared { id, plan, observed, .. } = &self.plans[plan];
        let mut deal = |spec: ActSpec, data: &[f32]| {
            let asked = self.step.logit_rows();
            let n_rows = if spec.rows == RowSet::Step { self.step.n_rows() } else { asked.len() };
            assert_eq!(data.len(), n_rows * spec.width, "{}: rows times width of a buffer", self.case);
            for (i, values) in data.chunks_exact(spec.width).enumerate() {
                let row = if spec.rows == RowSet::Step { i } else { asked[i] as usize };
                let (part, local) = places[row];
                outputs[part][local].extend_from_slice(values);
            }
        };
        for act in &observed.acts {
            deal(plan.act(*act), self.backend.read(*id, *act));
        }
        for choice in &observed.choices {
            let spec = plan.choices[choice.0 as usize];
            let chosen = self.backend.read_choices(*id, *choice);
            // Infinities would hide all else in a distance.
            let weight = |w: f32| if w.is_infinite() { f32::copysign(64.0, w) } else { w };
            let chosen: Vec<f32> =
                chosen.iter().flat_map(|c| [c.0 as i32 as f32 * INDEX_STEP, weight(c.1)]).collect();
            deal(ActSpec { width: 2 * spec.width, ..spec }, &chosen);
        }
        outputs
    }

    fn fill_step(&mut self, parts: &[Part<'_>], order: Order) {
        let mut step = std::mem::take(&mut self.step);
        step.clear();
        let mut seqs = Vec::new();
        for part in parts {
            let tables: Vec<Vec<u32>> =
                self.case.classes.iter().map(|class| self.page_table(part.seq, *class)).collect();
            let seq = &self.seqs[part.seq];
            let (slot, n_sure) = (self.slot(part.seq) as u32, part.n_sure() as u32);
            let tables = tables.iter().map(Vec::as_slice);
            seqs.push(step.add_seq(slot, seq.committed, n_sure, seq.stored_grid, tables));
            if let Some((drawing, listed)) = self.case.draws.iter().cycle().nth(part.seq) {
                step.draw(seqs[seqs.len() - 1], *drawing, listed);
            }
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); parts.len()];
        let written_rows = |n: usize| parts[..n].iter().map(|p| p.tokens.len()).sum::<usize>();
        let prompts_at = self.written_parts.map(written_rows);
        for (row, (p, i)) in places(parts, order).into_iter().enumerate() {
            if prompts_at == Some(row) {
                step.begin_prompts();
            }
            let part = &parts[p];
            let parent = match i.checked_sub(part.n_sure()) {
                Some(draft) => rows[p][part.draft_parents[draft]],
                None if i == 0 => NO_PARENT,
                None => rows[p][i - 1],
            };
            rows[p].push(step.push(seqs[p], part.tokens[i], parent));
        }
        // Backwards, so that an op that takes the first rows instead of those asked for is found.
        for row in (0..step.n_rows()).rev() {
            if step.rows()[row].pos.is_multiple_of(self.case.logits_every) {
                step.want_logits(row as u32);
            }
        }
        self.step = step;
    }

    fn plan_for(&mut self, n_rows: usize) -> Result<usize, BackendError> {
        let bucket = bucket_for(n_rows).expect("the table feeds at most the largest bucket");
        let written_room = self.written_parts.map(|_| self.step.n_written());
        let is_it = |p: &Prepared| p.bucket == bucket && p.written_room == written_room;
        if let Some(at) = self.plans.iter().position(is_it) {
            return Ok(at);
        }
        let (mut plan, observed) = self.case.record(bucket);
        plan.written_before_prompts = written_room;
        let id = self.backend.prepare(plan.clone())?;
        self.plans.push(Prepared { bucket, written_room, id, plan, observed });
        Ok(self.plans.len() - 1)
    }
}

/// Which (part, row of the part) each row of the step is.
fn places(parts: &[Part<'_>], order: Order) -> Vec<(usize, usize)> {
    let mut places: Vec<(usize, usize)> =
        (0..parts.len()).flat_map(|p| (0..parts[p].tokens.len()).map(move |i| (p, i))).collect();
    if order == Order::Interleaved {
        places.sort_by_key(|(p, i)| (*i, *p));
    }
    places
}
