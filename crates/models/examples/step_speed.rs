//! How fast the CPU backend steps through a model:
//! `cargo run --release -p overdraft-models --example step_speed -- models/pycoder-q4_k_m.gguf [threads]`

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::Path;
use std::time::Instant;

use overdraft_cpu::Cpu;
use overdraft_models::{Checkpoint, Decoder, RecordOptions};
use overdraft_plan::{Backend, KvType, NO_PARENT, PAGE, PlanId, StateId, Step, grid_of};

const PROMPT: u32 = 512;
/// Rows of a step that writes: plain decoding, and what a draft has checked.
const ROWS: [u32; 9] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

struct Sequence {
    cpu: Cpu,
    state: StateId,
    step: Step,
    pages: Vec<u32>,
    n_classes: usize,
    committed: u32,
}

impl Sequence {
    /// Feeds `rows` sure rows.
    fn feed(&mut self, plan: PlanId, rows: u32, all_logits: bool) {
        self.step.clear();
        let grid = self.committed.checked_sub(1).map_or(0, grid_of);
        let tables = (0..self.n_classes).map(|_| self.pages.as_slice());
        let seq = self.step.add_seq(0, self.committed, rows, grid, tables);
        let mut parent = NO_PARENT;
        for i in 0..rows {
            parent = self.step.push(seq, 100 + (self.committed + i) * 37 % 400, parent);
            if all_logits || i + 1 == rows {
                self.step.want_logits(parent);
            }
        }
        self.cpu.run(plan, self.state, &self.step).expect("a step within its plan");
        self.committed += rows;
    }

    fn restart(&mut self) {
        self.cpu.reset_slot(self.state, 0);
        self.committed = 0;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give the path of a model")?;
    let threads = args.next().map_or(Ok(2), |t| t.parse())?;
    let decoder = Decoder::load(&Checkpoint::open(Path::new(&path))?, |_, _| {})?;
    let mut cpu = Cpu::new(threads);
    let mut spec = decoder.state_spec(KvType::F16);
    let n_pages = ((PROMPT + 64) as usize).div_ceil(PAGE);
    (spec.slots, spec.pages) = (1, vec![n_pages; spec.classes.len()]);
    cpu.load(decoder.weights.clone())?;
    let state = cpu.allocate(&spec)?;
    let options =
        |bucket: usize| RecordOptions { bucket, logit_rows: 64.min(bucket), taps: &[], speculative: false };
    let prefill = cpu.prepare(decoder.record(options(PROMPT as usize)))?;
    let mut writing = Vec::new();
    for rows in ROWS {
        writing.push((rows, cpu.prepare(decoder.record(options(rows as usize)))?, f64::INFINITY));
    }
    println!("{path} on {}", cpu.describe());
    let pages = (0..n_pages as u32).collect();
    let mut seq =
        Sequence { cpu, state, step: Step::default(), pages, n_classes: spec.classes.len(), committed: 0 };
    // The best of several: others may share the machine.
    let mut best_prefill = f64::INFINITY;
    for _ in 0..5 {
        seq.restart();
        let start = Instant::now();
        seq.feed(prefill, PROMPT, false);
        best_prefill = best_prefill.min(start.elapsed().as_secs_f64());
        for (rows, plan, best) in &mut writing {
            for _ in 0..10 {
                seq.committed = PROMPT;
                let start = Instant::now();
                seq.feed(*plan, *rows, true);
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
    }
    let rows = PROMPT as f64;
    println!("prefill of {PROMPT}: {:.1} ms, {:.0} tok/s", best_prefill * 1e3, rows / best_prefill);
    println!("rows with logits, ms, of one row's time");
    for (rows, _, best) in &writing {
        println!("{rows:4}  {:6.2}  {:.2}", best * 1e3, best / writing[0].2);
    }
    Ok(())
}
