//! With a draft the engine writes what it writes without one, to the last bit of every logit.

mod common;

use std::sync::Arc;

use common::repository;
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, EngineConfig, Request, Sampling, Stats, Witness};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder, Draft};

/// The demo pair; `None` leaves the draft out.
fn demo(draft: Option<&str>, config: EngineConfig) -> Engine {
    demo_with(draft, config, |_| {})
}

fn demo_with(draft: Option<&str>, config: EngineConfig, change: impl Fn(&mut Draft)) -> Engine {
    let checkpoint = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(checkpoint.tokenizer().unwrap());
    let mut decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let draft = draft.map(|file| {
        let draft = Checkpoint::open(&repository(file)).unwrap();
        let mut draft = Draft::load(&draft, &mut decoder).unwrap();
        change(&mut draft);
        draft
    });
    let config = EngineConfig { witness: Witness::Fingerprints, ..config };
    Engine::new(decoder, draft, tokenizer, Box::new(Cpu::new(2)), config).unwrap()
}

const DRAFT: Option<&str> = Some("models/pycoder-dflash-q8_0.gguf");
const CONFIG: EngineConfig = EngineConfig {
    context: 512,
    max_seqs: 5,
    kv: overdraft_plan::KvType::F16,
    step_rows: 512,
    kv_bytes: None,
    token_gap: None,
    cache_bytes: 0,
    memory: None,
    draft_mode: Mode::Off,
    budget: None,
    lookup: false,
    exact: false,
    witness: Witness::Fingerprints,
};

const PROMPTS: [&str; 5] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "<|im_start|>user\nWrite a Python function `read_json`. Read a JSON file and return its contents as a dict.<|im_end|>\n<|im_start|>assistant\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "x",
    "<|im_start|>user\nImplement `is_prime` in Python: Return True if n is a prime number, False otherwise.<|im_end|>\n<|im_start|>assistant\n",
];

fn samplings() -> [Sampling; 2] {
    let hot = Drawing { temperature: 0.8, top_p: 0.9, seed: 11, ..Drawing::GREEDY };
    [Drawing::GREEDY, hot].map(Sampling::from)
}

type Trace = Vec<(u32, Option<u64>)>;

/// Runs the prompts together to their ends; each arrives a step after the one before.
fn run(engine: &mut Engine, prompts: &[&str], n: usize, sampling: &Sampling) -> Vec<(Trace, Stats)> {
    let mut ids = Vec::new();
    let mut out = vec![(Trace::new(), Stats::default()); prompts.len()];
    let mut waiting = prompts.iter();
    loop {
        if let Some(prompt) = waiting.next() {
            let request = Request {
                prompt: engine.tokenizer().encode(prompt, Specials::Parse),
                max_tokens: n,
                sampling: sampling.clone(),
                stop_ids: vec![],
                stop_strings: vec![],
            };
            ids.push(engine.admit(request).unwrap());
        } else if engine.is_idle() {
            return out;
        }
        for event in engine.step().unwrap() {
            let i = ids.iter().position(|id| *id == event.seq).unwrap();
            out[i].0.push((event.token, event.fingerprint));
            if let Some((_, stats)) = event.finish {
                out[i].1 = stats;
            }
        }
    }
}

/// Each prompt written plainly, alone.
fn plain(prompts: &[&str], n: usize, sampling: &Sampling) -> Vec<Trace> {
    let mut engine = demo(None, CONFIG);
    prompts.iter().map(|p| run(&mut engine, &[p], n, sampling).remove(0).0).collect()
}

#[track_caller]
fn assert_same(got: &Trace, want: &Trace, what: &str) {
    let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    assert_eq!(same, want.len(), "{what}: parts from plain decoding at token {same}");
    assert_eq!(got.len(), want.len(), "{what}: length");
}

#[test]
fn chains_trees_and_lookup_change_no_bit() {
    let fixed = |mode, drafts| (mode, Some(drafts), false, DRAFT);
    let grid = [
        fixed(Mode::Chain, 3),
        fixed(Mode::Chain, 7),
        fixed(Mode::Chain, 15),
        fixed(Mode::Tree, 8),
        fixed(Mode::Tree, 22),
        fixed(Mode::Tree, 48),
        (Mode::Chain, Some(15), true, None),
        (Mode::Tree, Some(48), true, DRAFT),
        (Mode::Auto, None, true, DRAFT),
    ];
    for (sampling, prompt) in samplings().into_iter().zip(PROMPTS) {
        let want = plain(&[prompt], 200, &sampling);
        for (mode, budget, lookup, draft) in grid {
            let mut engine = demo(draft, EngineConfig { draft_mode: mode, budget, lookup, ..CONFIG });
            let what =
                format!("T = {}, {mode:?} of {budget:?}, lookup {lookup}", sampling.drawing.temperature);
            let (got, stats) = run(&mut engine, &[prompt], 200, &sampling).remove(0);
            assert_same(&got, &want[0], &what);
            eprintln!("{what}: {:.2} tokens a round", stats.tokens_per_round());
            assert!(stats.accepted > 0, "{what}: nothing was ever accepted");
        }
    }
}

#[test]
fn a_bounded_draft_window_takes_less_memory_and_changes_no_bit() {
    let sampling = Sampling::default();
    let prompt = PROMPTS[2].repeat(12);
    let want = plain(&[&prompt], 40, &sampling);
    let config = EngineConfig { draft_mode: Mode::Tree, budget: Some(15), context: 2048, ..CONFIG };
    let mut seen = Vec::new();
    // The prompt alone is longer than the first two windows; the last one bounds nothing.
    for window in [None, Some(64), Some(128), Some(4096)] {
        let mut engine =
            demo_with(DRAFT, config, |draft| window.into_iter().for_each(|w| draft.limit_window(w)));
        let (got, stats) = run(&mut engine, &[&prompt], 40, &sampling).remove(0);
        assert_same(&got, &want[0], &format!("{window:?}"));
        assert!(stats.accepted > 0, "{window:?}");
        seen.push((engine.ledger().total(), stats.accepted, stats.rounds));
    }
    assert!(seen[1].0 < seen[2].0 && seen[2].0 < seen[0].0, "{seen:?}");
    assert_eq!((seen[3].1, seen[3].2), (seen[0].1, seen[0].2), "a window past the context's end");
}

#[test]
fn two_and_five_at_once_with_a_draft_write_what_each_writes_alone() {
    for sampling in samplings() {
        let want = plain(&PROMPTS, 200, &sampling);
        for (mode, budget, lookup) in [(Mode::Tree, Some(22), false), (Mode::Auto, None, true)] {
            let mut engine = demo(DRAFT, EngineConfig { draft_mode: mode, budget, lookup, ..CONFIG });
            for n in [2, 5] {
                let what = format!("T = {}, {mode:?}, {n} at once", sampling.drawing.temperature);
                let got = run(&mut engine, &PROMPTS[..n], 200, &sampling);
                for (i, ((got, _), want)) in got.iter().zip(&want).enumerate() {
                    assert_same(got, want, &format!("{what}, sequence {i}"));
                }
                assert!(mode == Mode::Auto || got.iter().all(|(_, s)| s.accepted > 0), "{what}");
            }
        }
    }
}
