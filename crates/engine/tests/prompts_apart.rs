//! A backend may compute rows of prompts by kernels of their own, with other bits than written rows have. Which of the two a row is
//! must then follow from its request alone: not from chunks, company, drafts or the prefix cache.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{DemoPair, demo_pair, demo_pair_on, passes_on};
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, EngineConfig, Request, Sampling, Witness};
use overdraft_plan::{Backend, BackendError, Plan, PlanId, StateId, StateSpec, Step};

/// The CPU with another arithmetic for prompts, as far from that for writing as can be: it reads each token as the one beside it.
struct Apart {
    cpu: Cpu,
    /// [`Plan::written_before_prompts`] and [`Plan::logits_apart`] of each plan.
    plans: Vec<(Option<usize>, bool)>,
    n_classes: usize,
    /// As a device is, whose steps have room for more trees.
    is_far: bool,
    /// Blocks of a draft that were computed as prompts are.
    blocks: Arc<AtomicUsize>,
}

impl Apart {
    fn new() -> Self {
        Self { cpu: Cpu::new(2), plans: Vec::new(), n_classes: 0, is_far: false, blocks: Arc::default() }
    }

    fn boxed() -> Box<dyn Backend> {
        Box::new(Self::new())
    }

    /// The same step, but for the tokens of prompts.
    fn read_as(&self, step: &Step) -> Step {
        let mut made = Step::default();
        let seqs: Vec<u32> = (0..step.n_seqs())
            .map(|s| {
                let seq = step.seq(s);
                let tables = (0..self.n_classes).map(|c| seq.table(c));
                let s = made.add_seq(seq.slot as u32, seq.committed, seq.n_sure, seq.stored_grid, tables);
                made.draw(s, seq.drawing, seq.listed());
                s
            })
            .collect();
        for (i, row) in step.rows().iter().enumerate() {
            if i == step.n_written() {
                made.begin_prompts();
            }
            let token = if i < step.n_written() { row.token } else { row.token ^ 1 };
            made.push(seqs[row.seq as usize], token, row.parent);
        }
        step.logit_rows().iter().for_each(|row| made.want_logits(*row));
        made
    }
}

impl Backend for Apart {
    passes_on!(cpu: describe, load, slots, commit, read, read_choices);
    fn reads_apart(&self) -> bool {
        true
    }
    fn is_far(&self) -> bool {
        self.is_far
    }
    fn allocate(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.n_classes = spec.classes.len();
        self.cpu.allocate(spec)
    }
    fn prepare(&mut self, plan: Plan) -> Result<PlanId, BackendError> {
        self.plans.push((plan.written_before_prompts, plan.logits_apart));
        self.cpu.prepare(plan)
    }
    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError> {
        match self.plans[plan.0 as usize] {
            (None, _) => self.cpu.run(plan, state, step),
            (Some(_), true) => {
                assert_eq!(step.n_written(), 0, "a draft's rows are of one kind");
                self.blocks.fetch_add(step.n_seqs(), Ordering::Relaxed);
                self.cpu.run(plan, state, &self.read_as(step))
            }
            (Some(_), false) => self.cpu.run(plan, state, &self.read_as(step)),
        }
    }
}

const N_TOKENS: usize = 20;

fn config() -> EngineConfig {
    EngineConfig { context: 1024, witness: Witness::Fingerprints, ..Default::default() }
}

fn apart(config: EngineConfig) -> Engine {
    demo_pair_on(Apart::boxed(), DemoPair::WithDraft, config)
}

fn request(prompt: &[u32], seed: u64) -> Request {
    let sampling = Sampling::from(Drawing { temperature: 0.7, seed, ..Default::default() });
    Request {
        prompt: prompt.to_vec(),
        max_tokens: N_TOKENS,
        sampling,
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

type Trace = Vec<(u32, Option<u64>)>;

/// All together, each admitted so many steps after the one before.
fn run(engine: &mut Engine, requests: &[Request], apart: usize) -> Vec<Trace> {
    let (mut ids, mut traces) = (Vec::new(), vec![Trace::new(); requests.len()]);
    let mut step = 0;
    while ids.len() < requests.len() || !engine.is_idle() {
        while ids.len() < requests.len() && step >= ids.len() * apart {
            ids.push(engine.admit(requests[ids.len()].clone()).unwrap());
        }
        for event in engine.step().unwrap() {
            traces[ids.iter().position(|id| *id == event.seq).unwrap()]
                .push((event.token, event.fingerprint));
        }
        step += 1;
    }
    traces
}

/// Prompts of a token, of less than a page, of pages and more.
fn prompts() -> Vec<Vec<u32>> {
    let token = |i: u32| 300 + i.wrapping_mul(2654435761) % 4000;
    [1, 30, 64, 130, 200].map(|n: u32| (0..n).map(|i| token(i + 7 * n)).collect()).into()
}

fn requests() -> Vec<Request> {
    prompts().iter().zip(1..).map(|(prompt, seed)| request(prompt, seed)).collect()
}

fn alone(config: EngineConfig) -> Vec<Trace> {
    requests().iter().map(|r| run(&mut apart(config), std::slice::from_ref(r), 0).remove(0)).collect()
}

#[test]
fn a_row_is_read_or_written_by_its_request_alone() {
    let want = alone(config());
    let many = EngineConfig { max_seqs: 5, ..config() };
    let gap = Some(std::time::Duration::ZERO);
    let cases = [
        ("together", many, 0),
        ("one after another", many, 3),
        ("in small chunks", EngineConfig { step_rows: 64, ..many }, 2),
        ("page by page", EngineConfig { token_gap: gap, ..many }, 2),
        ("with trees", EngineConfig { draft_mode: Mode::Tree, budget: Some(9), ..many }, 2),
        (
            "with trees beside prompts",
            EngineConfig { draft_mode: Mode::Tree, budget: Some(9), token_gap: gap, ..many },
            2,
        ),
    ];
    for (case, config, apart_by) in cases {
        let got = run(&mut apart(config), &requests(), apart_by);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got, want, "{case}: prompt {i}");
        }
    }
}

#[test]
fn a_draft_for_many_is_computed_as_prompts_are_and_changes_no_text() {
    let want = alone(config());
    let many = EngineConfig { max_seqs: 10, draft_mode: Mode::Chain, budget: Some(5), ..config() };
    let backend = Apart { is_far: true, ..Apart::new() };
    let blocks = backend.blocks.clone();
    let mut engine = demo_pair_on(Box::new(backend), DemoPair::WithDraft, many);
    let twice = [requests(), requests()].concat();
    let got = run(&mut engine, &twice, 0);
    for (i, (got, want)) in got.iter().zip(want.iter().cycle()).enumerate() {
        assert_eq!(got, want, "text {i}");
    }
    assert!(blocks.load(Ordering::Relaxed) >= 8, "{blocks:?}");
}

#[test]
fn what_was_written_is_never_found_in_the_cache_as_read() {
    let cached = EngineConfig { cache_bytes: 64 << 20, ..config() };
    let mut warm = apart(cached);
    let mut prompt = prompts()[3].clone();
    for turn in 0..4 {
        let next = request(&prompt, turn);
        let want = run(&mut apart(config()), std::slice::from_ref(&next), 0).remove(0);
        let got = run(&mut warm, std::slice::from_ref(&next), 0).remove(0);
        assert_eq!(got, want, "turn {turn}");
        // The answer becomes part of the next prompt, and with it whole pages.
        prompt.extend(got.iter().map(|t| t.0));
        prompt.extend(&prompts()[4][..60]);
    }
}

#[test]
fn exact_reads_prompts_as_it_writes() {
    let on_cpu = |config| run(&mut demo_pair(DemoPair::WithDraft, config), &requests()[3..4], 0);
    let on_apart = |config| run(&mut apart(config), &requests()[3..4], 0);
    let exact = EngineConfig { exact: true, ..config() };
    assert_eq!(on_apart(exact), on_cpu(config()));
    assert_eq!(on_cpu(exact), on_cpu(config()), "one arithmetic: nothing to change");
    assert_ne!(on_apart(config()), on_cpu(config()), "or this backend could show nothing");
}
