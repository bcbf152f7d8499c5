//! Where logits lie in another memory, tokens are drawn there: the logits are never copied, and the text is the same.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{DemoPair, demo_pair_on, passes_on};
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, EngineConfig, Options, Request, Sampling};
use overdraft_formats::tokenizer::Specials;
use overdraft_plan::{Act, Backend, BackendError, Footprint, Plan, PlanId, StateId, Step, Weights};

/// The CPU as if it were a device, counting what is read of it.
struct Far {
    cpu: Cpu,
    is_far: bool,
    reads: Arc<AtomicUsize>,
    /// Of a step that verified trees.
    most_rows: Arc<AtomicUsize>,
}

impl Backend for Far {
    passes_on!(cpu: describe, load, allocate, slots, prepare, commit, read_choices);
    fn computes_whole_buckets(&self) -> bool {
        self.cpu.computes_whole_buckets()
    }
    fn is_far(&self) -> bool {
        self.is_far
    }
    fn footprint(&self, weights: &Weights, plans: &[Plan]) -> Footprint {
        let near = self.cpu.footprint(weights, plans);
        // Tables that are there twice, and kernels.
        if self.is_far { Footprint { weights: 2 * near.weights, plans: 100 << 20, ..near } } else { near }
    }
    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError> {
        // The draft's blocks and prompts are sure to the last row.
        if (0..step.n_seqs()).all(|s| step.seq(s).n_sure == 1) {
            self.most_rows.fetch_max(step.n_rows(), Ordering::Relaxed);
        }
        self.cpu.run(plan, state, step)
    }
    fn read(&self, plan: PlanId, act: Act) -> &[f32] {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.cpu.read(plan, act)
    }
}

fn texts(engine: &mut Engine, jobs: &[(Request, Option<usize>)]) -> Vec<Vec<u32>> {
    let admit = |(request, logprobs): &(Request, Option<usize>)| {
        engine.admit_as(request.clone(), Options { logprobs: *logprobs, ..Default::default() }).unwrap()
    };
    let ids: Vec<_> = jobs.iter().map(admit).collect();
    let mut tokens = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            tokens[ids.iter().position(|id| *id == event.seq).unwrap()].push(event.token);
        }
    }
    tokens
}

#[test]
fn tokens_are_drawn_where_logits_lie_and_are_those_that_the_host_would_draw() {
    let hot = Drawing { temperature: 0.8, seed: 3, ..Default::default() };
    let (greedy, sampled) = (Sampling::default(), Sampling::from(hot));
    let strict = Drawing { repetition_penalty: 1.3, ..Default::default() };
    let penalised = Sampling { drawing: strict, bias: vec![(40, 1.5)] };
    let all = Sampling::from(Drawing {
        top_k: 30,
        top_p: 0.95,
        min_p: 0.01,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        choice: 2,
        ..hot
    });
    // What is asked for, and whether its logits must be seen.
    let rows = [
        ("greedy", vec![(&greedy, None), (&greedy, None)], false),
        ("greedy with log-probabilities", vec![(&greedy, Some(2))], true),
        ("penalised", vec![(&penalised, None), (&all, None)], false),
        ("sampled", vec![(&sampled, None)], false),
        ("sampled with log-probabilities", vec![(&sampled, None), (&all, Some(1))], true),
    ];
    for (draft_mode, rows) in [(Mode::Off, &rows[..3]), (Mode::Tree, &rows[..])] {
        for (what, wishes, is_seen) in rows {
            let [near, far] = [false, true].map(|is_far| {
                let reads = Arc::new(AtomicUsize::new(0));
                let backend =
                    Far { cpu: Cpu::new(2), is_far, reads: reads.clone(), most_rows: Arc::default() };
                let budget = (draft_mode == Mode::Tree).then_some(16);
                let config =
                    EngineConfig { context: 256, max_seqs: 2, draft_mode, budget, ..Default::default() };
                let mut engine = demo_pair_on(Box::new(backend), DemoPair::WithDraft, config);
                let prompts = ["def is_prime(n):\n", "class FileCache:\n    def __init__(self, path):\n"];
                let jobs: Vec<_> = wishes
                    .iter()
                    .zip(prompts)
                    .map(|((sampling, logprobs), prompt)| {
                        let request = Request {
                            prompt: engine.tokenizer().encode(prompt, Specials::Parse),
                            max_tokens: 40,
                            sampling: (*sampling).clone(),
                            stop_ids: vec![],
                            stop_strings: vec![],
                        };
                        (request, *logprobs)
                    })
                    .collect();
                (texts(&mut engine, &jobs), reads.load(Ordering::Relaxed))
            });
            assert_eq!(near.0, far.0, "{what}, {draft_mode:?}");
            assert!(near.1 > 0, "{what}, {draft_mode:?}: near logits are simply read");
            assert_eq!(far.1 > 0, *is_seen, "{what}, {draft_mode:?}: {} reads", far.1);
        }
    }
}

#[test]
fn many_that_draft_have_more_rows_where_rows_are_cheap_and_write_the_same() {
    let [(near, near_rows), (far, far_rows)] = [false, true].map(|is_far| {
        let most_rows = Arc::new(AtomicUsize::new(0));
        let backend = Far { cpu: Cpu::new(2), is_far, reads: Arc::default(), most_rows: most_rows.clone() };
        let (draft_mode, budget) = (Mode::Tree, Some(7));
        let config = EngineConfig { context: 128, max_seqs: 12, draft_mode, budget, ..Default::default() };
        let mut engine = demo_pair_on(Box::new(backend), DemoPair::WithDraft, config);
        let request = |i: usize| Request {
            prompt: engine.tokenizer().encode(&format!("def f{i}(x):\n"), Specials::Parse),
            max_tokens: 12,
            sampling: Sampling::default(),
            stop_ids: vec![],
            stop_strings: vec![],
        };
        let jobs: Vec<_> = (0..12).map(|i| (request(i), None)).collect();
        let texts = texts(&mut engine, &jobs);
        (texts, most_rows.load(Ordering::Relaxed))
    });
    assert_eq!(near, far);
    assert_eq!((near_rows, far_rows), (64, 96), "12 roots with what room there is, or 7 drafted nodes each");
}

#[test]
fn the_ledger_has_what_the_backend_says_it_will_hold() {
    let [near, far] = [false, true].map(|is_far| {
        let backend = Far { cpu: Cpu::new(1), is_far, reads: Arc::default(), most_rows: Arc::default() };
        let config = EngineConfig { context: 128, ..Default::default() };
        let engine = demo_pair_on(Box::new(backend), DemoPair::WithDraft, config);
        engine.ledger().lines.clone()
    });
    let line = |lines: &[(&str, usize)], what: &str| lines.iter().find(|l| l.0 == what).map(|l| l.1);
    assert_eq!(line(&far, "weights"), line(&near, "weights").map(|n| 2 * n));
    assert_eq!((line(&near, "kernels and plans"), line(&far, "kernels and plans")), (None, Some(100 << 20)));
    for what in ["context pages", "recurrent state", "waiting taps"] {
        assert_eq!(line(&near, what), line(&far, what), "{what} is the state's, wherever it lies");
    }
}
