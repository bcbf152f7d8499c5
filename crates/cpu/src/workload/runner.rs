//! Runs a workload's plan step by step, with and without the op, so that what surrounds it can be taken off.

use std::time::Instant;

use overdraft_plan::{
    Act, Backend, BackendError, NO_PARENT, PAGE, PlanId, Recorder, StateId, StateSpec, Step, bucket_for,
    grid_of,
};

use super::Workload;
use crate::conformance::Case;

/// Rows up to here are a root and a chain of guesses below it, as a draft has them checked; more are a chunk of a prompt.
const DRAFTED_ROWS: usize = 16;
/// Positions a sequence moves on before it starts anew.
const SPAN: usize = 1024;

pub struct Runner<'w> {
    workload: &'w Workload,
    backend: Box<dyn Backend>,
    state: StateId,
    with: PlanId,
    without: PlanId,
    step: Step,
    rows: usize,
    pages: Vec<u32>,
    committed: u32,
    stored_grid: u32,
}

impl<'w> Runner<'w> {
    /// `rows` is at most the largest bucket's.
    pub fn new(
        workload: &'w Workload,
        mut backend: Box<dyn Backend>,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let bucket = bucket_for(rows).ok_or_else(|| BackendError::Unsupported {
            what: format!("a step of {rows} rows"),
            why: "no plan is so large".into(),
        })?;
        let n_pages = (workload.depth + SPAN + rows).div_ceil(PAGE) + 1;
        backend.load(workload.weights.clone())?;
        let state = backend.allocate(&StateSpec {
            layers: workload.layers.clone(),
            classes: workload.classes.clone(),
            pages: vec![n_pages; workload.classes.len()],
            slots: 1,
            kv: workload.kv,
            tap_width: workload.tap_width,
        })?;
        let mut plan = |copies: usize| {
            let mut recorder = Recorder::new(bucket, bucket);
            (workload.record)(&mut recorder, copies);
            backend.prepare(recorder.finish(Act(0)))
        };
        let (with, without) = (plan(workload.copies)?, plan(0)?);
        let mut runner = Self {
            workload,
            backend,
            state,
            with,
            without,
            step: Step::default(),
            rows,
            pages: (0..n_pages as u32).collect(),
            committed: 0,
            stored_grid: 0,
        };
        runner.restart();
        Ok(runner)
    }

    fn restart(&mut self) {
        self.backend.reset_slot(self.state, 0);
        self.committed = self.workload.depth as u32;
        self.stored_grid = grid_of(self.committed);
    }

    fn fill_step(&mut self) {
        let sure = if self.rows <= DRAFTED_ROWS { 1 } else { self.rows };
        if self.committed as usize + self.rows > self.workload.depth + SPAN {
            self.restart();
        }
        self.step.clear();
        let tables = self.workload.classes.iter().map(|_| self.pages.as_slice());
        let seq = self.step.add_seq(0, self.committed, sure as u32, self.stored_grid, tables);
        if let Some(drawing) = self.workload.drawing {
            self.step.draw(seq, drawing, &[]);
        }
        let mut parent = NO_PARENT;
        for i in 0..self.rows as u32 {
            // Not token 0, whose inputs are zeros.
            let token = 1 + (self.committed + i) % (Case::N_TOKENS - 1);
            parent = self.step.push(seq, token, parent);
            self.step.want_logits(parent);
        }
        self.stored_grid = grid_of(self.committed + sure as u32 - 1);
        self.committed += sure as u32;
    }

    /// Runs the plan of all copies over the next step.
    pub fn run(&mut self) -> Result<(), BackendError> {
        self.fill_step();
        self.backend.run(self.with, self.state, &self.step)
    }

    /// Seconds of one copy of the op in the next step.
    pub fn seconds(&mut self) -> Result<f64, BackendError> {
        self.fill_step();
        let started = Instant::now();
        self.backend.run(self.without, self.state, &self.step)?;
        let surroundings = started.elapsed();
        let started = Instant::now();
        self.backend.run(self.with, self.state, &self.step)?;
        let all = started.elapsed();
        Ok(all.saturating_sub(surroundings).as_secs_f64() / self.workload.copies as f64)
    }
}

#[cfg(test)]
mod tests {
    use overdraft_formats::DType;
    use overdraft_plan::KvType;

    use super::*;
    use crate::Cpu;
    use crate::workload::{OPS, Size};

    #[test]
    fn every_op_runs_at_every_number_of_rows() {
        for op in &OPS {
            let dims = op.dims.iter().map(|(what, _)| match *what {
                "chosen" => 2,
                "heads" | "key-heads" | "value-heads" | "kv-heads" | "experts" | "taps" | "parts" => 4,
                _ => 64,
            });
            let size = Size {
                dims: dims.collect(),
                dtype: DType::Q8_0,
                kv: KvType::F16,
                depth: 100,
                working_set: 50_000,
                most_copies: usize::MAX,
            };
            let workload = Workload::new(op, &size).unwrap();
            for rows in [1, 4, 16, 17, 32] {
                let mut runner = Runner::new(&workload, Box::new(Cpu::new(2)), rows).unwrap();
                for _ in 0..40 {
                    let seconds = runner.seconds().unwrap_or_else(|e| panic!("{} {rows}: {e}", op.name));
                    assert!(seconds.is_finite(), "{}", op.name);
                }
            }
            let cost = workload.cost(4);
            assert!(cost.bytes > 0.0 && cost.multiply_adds >= 0.0, "{}", op.name);
        }
    }
}
