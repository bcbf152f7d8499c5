//! With a draft the engine writes what it writes without one, to the last bit of every logit.

mod common;

use std::sync::Arc;

use common::repository;
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineConfig, Request, Sampling, Stats, Witness};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder, Draft};

fn demo(config: EngineConfig) -> Engine {
    let checkpoint = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(checkpoint.tokenizer().unwrap());
    let mut decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let draft = Checkpoint::open(&repository("models/pycoder-dflash-q8_0.gguf")).unwrap();
    let draft = Draft::load(&draft, &mut decoder).unwrap();
    let config = EngineConfig { witness: Witness::Fingerprints, ..config };
    Engine::new(decoder, Some(draft), tokenizer, Box::new(Cpu::new(2)), config).unwrap()
}

const PROMPTS: [&str; 4] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "<|im_start|>user\nWrite a Python function `read_json`. Read a JSON file and return its contents as a dict.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nImplement `is_prime` in Python: Return True if n is a prime number, False otherwise.<|im_end|>\n<|im_start|>assistant\n",
];

type Trace = Vec<(u32, Option<u64>)>;

fn run(engine: &mut Engine, prompts: &[&str], n: usize, sampling: &Sampling) -> Vec<(Trace, Stats)> {
    let ids: Vec<_> = prompts
        .iter()
        .map(|p| {
            let prompt = engine.tokenizer().encode(p, Specials::Parse);
            let request = Request {
                prompt,
                max_tokens: n,
                sampling: sampling.clone(),
                stop_ids: vec![],
                stop_strings: vec![],
            };
            engine.admit(request).unwrap()
        })
        .collect();
    let mut out = vec![(Trace::new(), Stats::default()); ids.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let i = ids.iter().position(|id| *id == event.seq).unwrap();
            out[i].0.push((event.token, event.fingerprint));
            if let Some((_, stats)) = event.finish {
                out[i].1 = stats;
            }
        }
    }
    out
}

#[test]
fn chains_and_trees_change_no_bit() {
    let samplings =
        [Sampling::default(), Sampling { temperature: 0.8, top_p: 0.9, seed: 11, ..Default::default() }];
    let config = EngineConfig { context: 512, ..Default::default() };
    for sampling in &samplings {
        let mut plain = demo(config);
        let want: Vec<Trace> =
            PROMPTS.iter().map(|p| run(&mut plain, &[p], 100, sampling).remove(0).0).collect();
        for (drafts, chain) in [(3, true), (7, true), (15, true), (8, false), (22, false), (48, false)] {
            let mut engine = demo(EngineConfig {
                draft_mode: if chain { Mode::Chain } else { Mode::Tree },
                budget: Some(drafts),
                ..config
            });
            let (mut accepted, mut rounds) = (0, 0);
            for (prompt, want) in PROMPTS.iter().zip(&want) {
                let (got, stats) = run(&mut engine, &[prompt], 100, sampling).remove(0);
                accepted += stats.accepted;
                rounds += stats.rounds;
                let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
                assert_eq!(
                    same,
                    want.len(),
                    "{drafts} drafts, chain {chain}: differs at {same} of {prompt:?}"
                );
            }
            eprintln!(
                "temperature {}: {drafts} drafts, chain {chain}: {:.2} tokens a round",
                sampling.temperature,
                1.0 + accepted as f64 / rounds as f64
            );
            assert!(accepted > 0, "{drafts} drafts, chain {chain}: nothing was ever accepted");
        }
    }
}
