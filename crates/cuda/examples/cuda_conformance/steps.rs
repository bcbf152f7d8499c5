//! How long a step takes: a model from a file, one sequence at a given context, steps of every bucket up to 64 rows.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use overdraft_cuda::{Cuda, Device};
use overdraft_models::{Checkpoint, Decoder, RecordOptions};
use overdraft_plan::{BUCKETS, Backend, KvType, NO_PARENT, Op, PAGE, Plan, StateId, Step, grid_of};

const REPEATS: usize = 30;

struct Timed {
    cuda: Cuda,
    decoder: Decoder,
    table: Vec<u32>,
    n_classes: usize,
}

impl Timed {
    fn record(&self, bucket: usize) -> Plan {
        let options = RecordOptions {
            bucket,
            logit_rows: bucket.min(64),
            taps: &[],
            speculative: bucket > 1 && bucket <= 64,
        };
        self.decoder.record(options)
    }

    /// Milliseconds of a replayed step, sorted, and the nodes of its graph.
    fn time(&mut self, plan: Plan, state: StateId, step: &Step) -> (Vec<f64>, usize) {
        let id = self.cuda.prepare(plan).unwrap();
        let mut times: Vec<f64> = (0..REPEATS + 2)
            .map(|_| {
                let begun = Instant::now();
                self.cuda.run(id, state, step).unwrap();
                1e3 * begun.elapsed().as_secs_f64()
            })
            .skip(2)
            .collect();
        times.sort_by(f64::total_cmp);
        (times, self.cuda.graph_nodes(id).unwrap_or(0))
    }

    /// A root and a chain of drafts below it, at `committed`; all rows sure where `is_prompt`.
    fn step(&self, committed: usize, rows: usize, is_prompt: bool) -> Step {
        let mut step = Step::default();
        let n_sure = if is_prompt { rows as u32 } else { 1 };
        let grid = if committed == 0 { 0 } else { grid_of(committed as u32 - 1) };
        let tables = (0..self.n_classes).map(|_| self.table.as_slice());
        let s = step.add_seq(0, committed as u32, n_sure, grid, tables);
        let mut last = NO_PARENT;
        for r in 0..rows {
            // Drafts in rows of 16 below the root, so that no path is too deep.
            let parent = if is_prompt || r % 16 != 1 { last } else { 0 };
            last = step.push(s, (r * 37 % 1000) as u32, parent);
            if !is_prompt {
                step.want_logits(last);
            }
        }
        step
    }
}

pub(crate) fn run(device: &Arc<Device>, args: &[String]) -> bool {
    let Some(file) = args.first() else {
        println!("steps MODEL.gguf [context]");
        return false;
    };
    let context: usize = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(512);
    let checkpoint = Checkpoint::open(Path::new(file)).unwrap();
    let started = Instant::now();
    let decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let mut cuda = Cuda::new(device.clone()).unwrap();
    let mut spec = decoder.state_spec(KvType::F16);
    let pages = (context + 256).div_ceil(PAGE);
    spec.slots = 1;
    spec.pages = vec![pages; spec.classes.len()];
    cuda.load(decoder.weights.clone()).unwrap();
    let state = cuda.allocate(&spec).unwrap();
    let n_classes = spec.classes.len();
    let mut timed = Timed { cuda, decoder, table: (0..pages as u32).collect(), n_classes };
    let prompt = timed.record(512);
    let prompt = timed.cuda.prepare(prompt).unwrap();
    let (mut at, mut prompt_time) = (0, 0.0);
    while at < context {
        let rows = (context - at).min(512);
        let step = timed.step(at, rows, true);
        let begun = Instant::now();
        timed.cuda.run(prompt, state, &step).unwrap();
        prompt_time = begun.elapsed().as_secs_f64();
        at += rows;
    }
    println!("{file}: loaded and read {context} tokens in {:.1} s", started.elapsed().as_secs_f32());
    println!("last prompt step of {}: {:.2} ms", (context - 1) % 512 + 1, 1e3 * prompt_time);
    println!("{:>6} {:>9} {:>9} {:>6} {:>14}", "rows", "median ms", "least ms", "nodes", "without linear");
    for bucket in BUCKETS.into_iter().filter(|b| *b <= 64) {
        let step = timed.step(context, bucket, false);
        let plan = timed.record(bucket);
        let (all, nodes) = timed.time(plan.clone(), state, &step);
        // What is left when no weight is read.
        let mut rest = plan;
        rest.ops.retain(|op| !matches!(op, Op::Linear { .. } | Op::LinearAdd { .. } | Op::LinearGlu { .. }));
        let (rest, rest_nodes) = timed.time(rest, state, &step);
        let (median, least) = (all[REPEATS / 2], all[0]);
        println!(
            "{bucket:>6} {median:>9.3} {least:>9.3} {nodes:>6} {:>9.3} ({rest_nodes})",
            rest[REPEATS / 2]
        );
    }
    true
}
