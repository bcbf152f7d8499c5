//! Runs a model over token ids and collects every row's logits and hidden states.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of this")]

mod families;

use std::path::{Path, PathBuf};

use overdraft_formats::safetensors::SafeTensors;
use overdraft_models::{Checkpoint, Decoder, RecordOptions};
use overdraft_plan::{Backend, KvType, NO_PARENT, PAGE, Retention, Step, grid_of};

pub(crate) use families::FAMILIES;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

pub fn load(checkpoint: &Checkpoint) -> Decoder {
    Decoder::load(checkpoint, |_, _| {}).unwrap_or_else(|e| panic!("{}: {e}", checkpoint.name()))
}

/// The fixture as GGUF with the family's conventions, matrices in `dtype`.
pub fn as_gguf(name: &str, dtype: overdraft_formats::DType) -> Checkpoint {
    let hf = Checkpoint::open(&fixture(name)).unwrap();
    let writer = overdraft_models::convert::to_gguf(&hf, &|_| dtype).unwrap();
    let bytes = overdraft_formats::Bytes::from_vec(writer.to_bytes().unwrap());
    Checkpoint::from_gguf_bytes(name, bytes).unwrap()
}

pub struct Golden {
    pub ids: Vec<u32>,
    /// `[rows, vocab]`
    pub logits: Vec<f32>,
    /// `[layers + 1, rows, hidden]`, the embedding first.
    pub hidden: Vec<f32>,
}

pub fn golden(name: &str) -> Golden {
    let file = SafeTensors::open(&fixture(name).join("golden.safetensors")).unwrap();
    let ids = file.need_tensor("input_ids").unwrap();
    Golden {
        ids: ids.bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect(),
        logits: file.need_tensor("logits").unwrap().to_f32().unwrap(),
        hidden: file.need_tensor("hidden").unwrap().to_f32().unwrap(),
    }
}

/// Logits of every row, and the residual stream after every layer: `[layers][rows * hidden]`.
#[derive(PartialEq, Debug)]
pub struct Output {
    pub logits: Vec<f32>,
    pub hidden: Vec<Vec<f32>>,
}

/// Sequences of one model on one backend, all tables laid out page after page.
pub struct Runner {
    pub decoder: Decoder,
    backend: Box<dyn Backend>,
    state: overdraft_plan::StateId,
    plans: Vec<(usize, overdraft_plan::PlanId, overdraft_plan::Plan)>,
    seqs: Vec<Seq>,
    classes: Vec<Retention>,
    pages_per_seq: usize,
    /// Rows are those of prompts, on a backend that has kernels of their own for them.
    pub reads_apart: bool,
}

#[derive(Clone, Default)]
struct Seq {
    committed: u32,
    stored_grid: u32,
}

impl Runner {
    pub fn new(
        decoder: Decoder,
        mut backend: Box<dyn Backend>,
        kv: KvType,
        seqs: usize,
        context: usize,
    ) -> Self {
        let mut spec = decoder.state_spec(kv);
        let pages_per_seq = context.div_ceil(PAGE);
        spec.slots = seqs;
        spec.pages = vec![seqs * pages_per_seq; spec.classes.len()];
        backend.load(decoder.weights.clone()).unwrap();
        let state = backend.allocate(&spec).unwrap();
        for slot in 0..seqs {
            backend.reset_slot(state, slot);
        }
        let seqs = vec![Seq::default(); seqs];
        let (plans, classes) = (Vec::new(), spec.classes);
        Self { decoder, backend, state, plans, seqs, classes, pages_per_seq, reads_apart: false }
    }

    /// One step over rows given as (sequence, tokens); every row is sure. Rows of different sequences alternate
    /// where `interleave`. Output per sequence, in the order given.
    pub fn step(&mut self, parts: &[(usize, &[u32])], interleave: bool) -> Vec<Output> {
        let mut step = Step::default();
        let tables: Vec<Vec<u32>> = (0..self.seqs.len())
            .map(|s| (0..self.pages_per_seq as u32).map(|p| (s * self.pages_per_seq) as u32 + p).collect())
            .collect();
        let mut handles = Vec::new();
        for (slot, tokens) in parts {
            let seq = &self.seqs[*slot];
            let classes = self.classes.iter().map(|_| tables[*slot].as_slice());
            let n = tokens.len() as u32;
            handles.push((step.add_seq(*slot as u32, seq.committed, n, seq.stored_grid, classes), NO_PARENT));
        }
        if self.reads_apart {
            step.begin_prompts();
        }
        let mut owners = Vec::new();
        let longest = parts.iter().map(|p| p.1.len()).max().unwrap_or(0);
        let mut push = |step: &mut Step, part: usize, token: usize| {
            if let Some(t) = parts[part].1.get(token) {
                let (seq, parent) = handles[part];
                let row = step.push(seq, *t, parent);
                handles[part].1 = row;
                step.want_logits(row);
                owners.push(part);
            }
        };
        if interleave {
            (0..longest).for_each(|t| (0..parts.len()).for_each(|p| push(&mut step, p, t)));
        } else {
            (0..parts.len()).for_each(|p| (0..longest).for_each(|t| push(&mut step, p, t)));
        }
        let bucket = overdraft_plan::bucket_for(step.n_rows()).unwrap();
        let n_layers = self.decoder.hyper.layers.len();
        if !self.plans.iter().any(|p| p.0 == bucket) {
            let all: Vec<usize> = (0..n_layers).collect();
            let options = RecordOptions { bucket, logit_rows: bucket, taps: &all, speculative: false };
            let mut plan = self.decoder.record(options);
            plan.written_before_prompts = self.reads_apart.then_some(0);
            self.plans.push((bucket, self.backend.prepare(plan.clone()).unwrap(), plan));
        }
        let (_, id, plan) = self.plans.iter().find(|p| p.0 == bucket).unwrap();
        self.backend.run(*id, self.state, &step).unwrap();
        for (slot, tokens) in parts {
            let seq = &mut self.seqs[*slot];
            seq.committed += tokens.len() as u32;
            seq.stored_grid = grid_of(seq.committed - 1);
        }
        let (h, vocab) = (self.decoder.hyper.hidden, self.decoder.hyper.vocab);
        let rows_of = |data: &[f32], width: usize, part: usize| -> Vec<f32> {
            let rows = owners.iter().enumerate().filter(|(_, o)| **o == part);
            rows.flat_map(|(r, _)| data[r * width..(r + 1) * width].to_vec()).collect()
        };
        (0..parts.len())
            .map(|part| Output {
                logits: rows_of(self.backend.read(*id, plan.logits), vocab, part),
                hidden: plan.taps.iter().map(|t| rows_of(self.backend.read(*id, *t), h, part)).collect(),
            })
            .collect()
    }

    /// Feeds `ids` to sequence `seq` in chunks of `chunk` rows.
    pub fn prefill(&mut self, seq: usize, ids: &[u32], chunk: usize) -> Output {
        let mut all =
            Output { logits: Vec::new(), hidden: vec![Vec::new(); self.decoder.hyper.layers.len()] };
        for part in ids.chunks(chunk) {
            let out = self.step(&[(seq, part)], false).remove(0);
            all.logits.extend(out.logits);
            all.hidden.iter_mut().zip(out.hidden).for_each(|(a, o)| a.extend(o));
        }
        all
    }
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// How far the rows of `logits` are from those of `reference`, as distributions and as choices.
#[derive(Debug)]
pub struct Closeness {
    /// Median, mean and largest Kullback-Leibler divergence from the reference, in nats.
    pub median_kl: f64,
    pub mean_kl: f64,
    pub max_kl: f64,
    /// Root mean square of the logits' differences.
    pub rms: f64,
    /// Rows with another best token, and the largest margin between the reference's two best among those.
    pub flipped: usize,
    pub flipped_margin: f32,
}

pub fn closeness(logits: &[f32], reference: &[f32], vocab: usize) -> Closeness {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let total = row.iter().map(|x| (*x as f64 - max).exp()).sum::<f64>().ln();
        row.iter().map(|x| *x as f64 - max - total).collect()
    };
    let best = |row: &[f32]| (0..row.len()).fold(0, |b, i| if row[i] > row[b] { i } else { b });
    let mut c =
        Closeness { median_kl: 0.0, mean_kl: 0.0, max_kl: 0.0, rms: 0.0, flipped: 0, flipped_margin: 0.0 };
    let rows = logits.len() / vocab;
    let mut all = Vec::with_capacity(rows);
    for (q, p) in logits.chunks(vocab).zip(reference.chunks(vocab)) {
        let (lq, lp) = (log_softmax(q), log_softmax(p));
        let kl: f64 = lp.iter().zip(&lq).map(|(p, q)| p.exp() * (p - q)).sum();
        all.push(kl);
        c.mean_kl += kl / rows as f64;
        c.max_kl = c.max_kl.max(kl);
        let (mine, theirs) = (best(q), best(p));
        if mine != theirs {
            c.flipped += 1;
            c.flipped_margin = c.flipped_margin.max(p[theirs] - p[mine]);
        }
    }
    all.sort_by(f64::total_cmp);
    c.median_kl = all[rows / 2];
    let squares: f64 = logits.iter().zip(reference).map(|(a, b)| ((a - b) as f64).powi(2)).sum();
    c.rms = (squares / logits.len() as f64).sqrt();
    c
}

/// `|a - b| / |b|` over the whole slice, in the 2-norm.
pub fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(*a as f64 - *b as f64)).sum();
    let size: f64 = b.iter().map(|b| square(*b as f64)).sum();
    (difference / size).sqrt()
}
