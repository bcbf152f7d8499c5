//! How long a step takes: a model from a file, one sequence at given contexts, steps of every bucket up to 64 rows, whole
//! and of one kind of op at a time; those also for a prompt's rows, and for rows of each of several sequences, up to 128. Or steps of
//! some sizes on and on, with the power they take.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use overdraft_cuda::{Cuda, Device};
use overdraft_models::{Checkpoint, Decoder, RecordOptions};
use overdraft_plan::draw::Drawing;
use overdraft_plan::{BUCKETS, Backend, KvType, NO_PARENT, Op, PAGE, Plan, StateId, Step, grid_of};

use super::card::{Card, median};
use super::options::{numbers, value};

const REPEATS: usize = 30;
/// Rows of a prompt's steps, unless others are asked for.
const PROMPT: usize = 512;
/// Steps that are queued behind one another where they run on and on.
const QUEUED: usize = 8;

type Belongs = fn(&Op) -> bool;

/// With the norms between them, which linear ops may make themselves.
fn is_linear(op: &Op) -> bool {
    matches!(op, Op::Linear { .. } | Op::LinearAdd { .. } | Op::LinearGlu { .. } | Op::Norm { .. })
}

/// What a step is made of, each captured as a graph of its own. The first says what a graph costs by itself.
const KINDS: [(&str, Belongs); 9] = [
    ("embed", |op| matches!(op, Op::Embed { .. })),
    ("all", |_| true),
    ("linear and norm", is_linear),
    ("not linear", |op| !is_linear(op)),
    ("norm", |op| matches!(op, Op::Norm { .. })),
    ("recurrent", |op| matches!(op, Op::RecurrentPrepare(_) | Op::Recurrent(_) | Op::GatedNorm { .. })),
    ("attention", |op| matches!(op, Op::AttentionPrepare(_) | Op::Attention(_))),
    ("its prepare", |op| matches!(op, Op::AttentionPrepare(_))),
    ("sample", |op| matches!(op, Op::Sample { .. })),
];

/// As the makers of Qwen models advise.
const DRAWING: Drawing = Drawing {
    temperature: 0.7,
    top_k: 20,
    top_p: 0.8,
    min_p: 0.0,
    repetition_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    seed: 1,
    choice: 0,
};

struct Timed {
    cuda: Cuda,
    decoder: Decoder,
    state: StateId,
    table: Vec<u32>,
    n_classes: usize,
    n_slots: usize,
    prompt: usize,
    /// Of drafts.
    rows: Vec<usize>,
}

impl Timed {
    fn record(&self, bucket: usize) -> Plan {
        let options = RecordOptions {
            bucket,
            logit_rows: bucket.min(128),
            taps: &[],
            speculative: bucket > 1 && bucket <= 128,
        };
        let mut plan = self.decoder.record(options);
        plan.sample();
        plan
    }

    /// Milliseconds of a replayed step, sorted, and the nodes of its graph.
    fn time(&mut self, plan: Plan, step: &Step) -> (Vec<f64>, usize) {
        let id = self.cuda.prepare(plan).unwrap();
        let mut times: Vec<f64> = (0..REPEATS + 2)
            .map(|_| {
                let begun = Instant::now();
                self.cuda.run(id, self.state, step).unwrap();
                self.cuda.wait().unwrap();
                1e3 * begun.elapsed().as_secs_f64()
            })
            .skip(2)
            .collect();
        times.sort_by(f64::total_cmp);
        (times, self.cuda.graph_nodes(id).unwrap_or(0))
    }

    /// The plan of a chunk of a prompt, alone in its step.
    fn record_prompt(&self) -> Plan {
        Plan { written_before_prompts: Some(0), ..self.record(self.prompt) }
    }

    /// A root and a chain of drafts below it, at `committed`; all rows sure where `is_prompt`.
    fn step(&self, committed: usize, rows: usize, is_prompt: bool) -> Step {
        let mut step = Step::default();
        if is_prompt {
            step.begin_prompts();
        }
        let n_sure = if is_prompt { rows as u32 } else { 1 };
        let grid = if committed == 0 { 0 } else { grid_of(committed as u32 - 1) };
        let tables = (0..self.n_classes).map(|_| self.table.as_slice());
        let s = step.add_seq(0, committed as u32, n_sure, grid, tables);
        step.draw(s, DRAWING, &[]);
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

    /// Of every sequence a root and a chain of drafts below it, `rows` in all.
    fn streams(&self, committed: usize, rows: usize) -> Step {
        let mut step = Step::default();
        let n = self.table.len() as u32;
        for slot in 0..self.n_slots {
            let table: Vec<u32> = self.table.iter().map(|page| page + slot as u32 * n).collect();
            let tables = (0..self.n_classes).map(|_| table.as_slice());
            let s = step.add_seq(slot as u32, committed as u32, 1, grid_of(committed as u32 - 1), tables);
            step.draw(s, DRAWING, &[]);
            let mut last = NO_PARENT;
            for _ in 0..rows / self.n_slots {
                last = step.push(s, slot as u32, last);
                step.want_logits(last);
            }
        }
        step
    }

    /// Positions `from .. to` enter the pages: by whole steps, or with whatever keys the buffers hold, which a time does
    /// not depend on.
    fn read(&mut self, from: usize, to: usize, is_whole: bool) -> f64 {
        let mut plan = self.record_prompt();
        if !is_whole {
            plan.ops
                .retain(|op| matches!(op, Op::Embed { .. } | Op::Angles { .. } | Op::AttentionPrepare(_)));
        }
        let plan = self.cuda.prepare(plan).unwrap();
        let (mut at, mut last) = (from, 0.0);
        while at < to {
            let rows = (to - at).min(self.prompt);
            let step = self.step(at, rows, true);
            let begun = Instant::now();
            self.cuda.run(plan, self.state, &step).unwrap();
            last = 1e3 * begun.elapsed().as_secs_f64();
            at += rows;
        }
        last
    }

    fn whole_steps(&mut self, context: usize) {
        println!(
            "{:>6} {:>9} {:>9} {:>9} {:>6}   at {context}",
            "rows", "median ms", "least", "most", "nodes"
        );
        for bucket in BUCKETS.into_iter().filter(|b| *b <= 64) {
            let (times, nodes) = self.time(self.record(bucket), &self.step(context, bucket, false));
            let (median, least, most) = (times[REPEATS / 2], times[0], times[REPEATS - 1]);
            println!("{bucket:>6} {median:>9.3} {least:>9.3} {most:>9.3} {nodes:>6}");
        }
        let (times, nodes) = self.time(self.record_prompt(), &self.step(context, self.prompt, true));
        let (median, least, most) = (times[REPEATS / 2], times[0], times[REPEATS - 1]);
        println!("{:>6} {median:>9.3} {least:>9.3} {most:>9.3} {nodes:>6}   of a prompt", self.prompt);
        if self.n_slots == 1 {
            return;
        }
        let n = self.n_slots;
        for rows in BUCKETS.into_iter().filter(|b| (n..=128).contains(b)) {
            let (times, nodes) = self.time(self.record(rows), &self.streams(context, rows));
            let (median, least, most) = (times[REPEATS / 2], times[0], times[REPEATS - 1]);
            println!("{rows:>6} {median:>9.3} {least:>9.3} {most:>9.3} {nodes:>6}   of {n} sequences");
        }
    }

    /// Steps on and on: what a card that is warm and at its power limit does.
    fn steady(&mut self, context: usize, seconds: f64) {
        println!(
            "{:>6} {:>9} {:>7} {:>7} {:>7}   at {context}, {seconds} s each",
            "rows", "ms", "W", "MHz", "J"
        );
        for rows in self.rows.clone() {
            let step = self.step(context, rows, false);
            let id = self.cuda.prepare(self.record(rows)).unwrap();
            let card = Card::watch();
            let (begun, mut times) = (Instant::now(), Vec::new());
            while begun.elapsed().as_secs_f64() < seconds {
                let batch = Instant::now();
                (0..QUEUED).for_each(|_| self.cuda.run(id, self.state, &step).unwrap());
                self.cuda.wait().unwrap();
                times.push(1e3 * batch.elapsed().as_secs_f64() / QUEUED as f64);
            }
            let late = times.split_off(times.len() / 2);
            let ms = median(late.into_iter()).unwrap_or_default();
            print!("{rows:>6} {ms:>9.3}");
            match card.and_then(Card::end) {
                Some(drawn) => {
                    println!(" {:>7.0} {:>7.0} {:>7.2}", drawn.watts, drawn.mhz, 1e-3 * ms * drawn.watts)
                }
                None => println!("   no nvidia-smi to ask"),
            }
        }
    }

    fn kinds(&mut self, context: usize, only: &[&str]) {
        println!(
            "{:<12} {:>6} {:>9} {:>6} {:>12} {:>9}   at {context}",
            "kind", "rows", "median us", "nodes", "us a node", "sequences"
        );
        for (name, belongs) in KINDS.into_iter().filter(|k| only.is_empty() || only.contains(&k.0)) {
            let drafts: &[usize] = if self.prompt == PROMPT { &self.rows } else { &[] };
            let drafts = drafts.iter().map(|&rows| (rows, self.step(context, rows, false)));
            let prompt = (self.prompt, self.step(context, self.prompt, true));
            let streams = [self.n_slots, 128]
                .map(|rows| (self.n_slots > 1).then(|| (rows, self.streams(context, rows))))
                .into_iter()
                .flatten();
            // Alone a draw is of logits that nobody made, which 64 rows of it do not survive.
            let fits = |rows: usize| rows <= 32 || rows == self.prompt || name != "sample";
            let steps: Vec<_> =
                drafts.chain([prompt]).chain(streams).filter(|(rows, _)| fits(*rows)).collect();
            for (rows, step) in steps {
                let mut plan = if rows == self.prompt { self.record_prompt() } else { self.record(rows) };
                plan.ops.retain(belongs);
                let (times, nodes) = self.time(plan, &step);
                let us = 1e3 * times[REPEATS / 2];
                let n_seqs = step.n_seqs();
                println!(
                    "{name:<12} {rows:>6} {us:>9.1} {nodes:>6} {:>12.2} {n_seqs:>9}",
                    us / nodes.max(1) as f64
                );
            }
        }
    }
}

pub(crate) fn run(device: &Arc<Device>, args: &[String]) -> Result<bool, String> {
    let mut args = args.to_vec();
    let rows = value::<String>(&mut args, "--rows")?;
    let seconds: Option<f64> = value(&mut args, "--seconds")?;
    let keys = match value::<String>(&mut args, "--keys")?.as_deref() {
        None | Some("f16") => KvType::F16,
        Some("bf16") => KvType::Bf16,
        Some("f32") => KvType::F32,
        Some(other) => return Err(format!("--keys is f16, bf16 or f32, not `{other}`")),
    };
    let Some(file) = args.first() else {
        return Err("steps MODEL.gguf [contexts, with commas between them] [sequences] [kinds of op only, likewise] [rows of a prompt's step]\n\
             [--rows 1,16,32,64] [--keys f16|bf16|f32] [--seconds 4: those rows' whole steps on and on, and their power]"
            .into());
    };
    let rows = numbers(rows.as_deref().unwrap_or(if seconds.is_some() { "1,16,32" } else { "1,16,32,64" }))?;
    let buckets: Vec<usize> = BUCKETS.into_iter().filter(|b| *b <= 64).collect();
    if let Some(odd) = rows.iter().find(|n| !buckets.contains(n)) {
        return Err(format!("--rows: no bucket has {odd}; there are: {buckets:?}"));
    }
    let contexts = args.get(1).map_or("512", String::as_str);
    let contexts = numbers(contexts)?;
    let only: Vec<&str> =
        args.get(3).map_or(Vec::new(), |kinds| kinds.split(',').filter(|kind| !kind.is_empty()).collect());
    if let Some(unknown) = only.iter().find(|kind| KINDS.iter().all(|k| k.0 != **kind)) {
        return Err(format!("no kind of op is `{unknown}`; there are: {}", KINDS.map(|k| k.0).join(", ")));
    }
    let prompt = args.get(4).and_then(|n| n.parse().ok()).unwrap_or(PROMPT);
    let checkpoint = Checkpoint::open(Path::new(file)).unwrap();
    let started = Instant::now();
    let decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let mut cuda = Cuda::new(device.clone()).unwrap();
    let mut spec = decoder.state_spec(keys);
    let pages = (contexts.iter().max().unwrap_or(&0) + prompt).div_ceil(PAGE);
    let n_slots = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(1).max(1);
    spec.slots = n_slots;
    spec.pages = vec![pages * n_slots; spec.classes.len()];
    cuda.load(decoder.weights.clone()).unwrap();
    let state = cuda.allocate(&spec).unwrap();
    let n_classes = spec.classes.len();
    let mut timed =
        Timed { cuda, decoder, state, table: (0..pages as u32).collect(), n_classes, n_slots, prompt, rows };
    let mut at = 0;
    for (nth, context) in contexts.into_iter().enumerate() {
        let last = timed.read(at, context, nth == 0 && only.is_empty());
        at = context;
        println!(
            "{file}: {context} tokens after {:.1} s, the last step {last:.2} ms",
            started.elapsed().as_secs_f32()
        );
        if let Some(seconds) = seconds {
            timed.steady(context, seconds);
            continue;
        }
        if only.is_empty() {
            timed.whole_steps(context);
        }
        timed.kinds(context, &only);
    }
    Ok(true)
}
