//! Tokens a second of many streams at once, speculation auto against off, in turn within one process:
//! `cargo run --release -p overdraft-engine --example streams -- STREAMS TOKENS ROUNDS THREADS`
//!
//! Seconds are of the process's own CPU time over its threads, so that other work on the machine does not count. With
//! more than one thread waiting for each other counts as work: use 1 on a busy machine.

use std::path::Path;
use std::sync::Arc;

use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineConfig, Events, Options, Request, Sampling, Speculative, Stats};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder, Draft};

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<f64> = after_name.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    // User and system time in hundredths, the 14th and 15th field; the state before them is no number.
    fields.get(10).copied().unwrap_or(0.0) / 100.0 + fields.get(11).copied().unwrap_or(0.0) / 100.0
}

/// Writes all of `requests`, so many at once: where one ends the next begins, as on a server with clients that wait.
fn run(engine: &mut Engine, requests: &[Request], streams: usize, speculative: Speculative) -> (f64, Stats) {
    let mut waiting = requests.iter();
    let (mut events, mut sum, mut running) = (Events::default(), Stats::default(), 0);
    let from = cpu_seconds();
    loop {
        while running < streams
            && let Some(request) = waiting.next()
        {
            let options = Options { speculative, ..Default::default() };
            engine.admit_as(request.clone(), options).expect("there is room for so many");
            running += 1;
        }
        if engine.is_idle() {
            return (cpu_seconds() - from, sum);
        }
        engine.step_into(&mut events).expect("a step");
        for (_, stats) in events.iter().filter_map(|e| e.finish) {
            sum.add(&stats);
            running -= 1;
        }
    }
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [streams, tokens, rounds, threads] = args.as_slice() else {
        eprintln!("give streams, tokens, rounds and threads");
        std::process::exit(2);
    };
    let target = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).expect("the demo model");
    let mut decoder = Decoder::load(&target, |_, _| {}).expect("the demo model");
    let draft = Checkpoint::open(&repository("models/pycoder-dflash-q8_0.gguf")).expect("the demo draft");
    let draft = Draft::load(&draft, &mut decoder).expect("the demo draft");
    let config = EngineConfig {
        context: 1024,
        max_seqs: *streams,
        draft_mode: Mode::Auto,
        lookup: true,
        ..Default::default()
    };
    let tokenizer = Arc::new(target.tokenizer().expect("its tokenizer"));
    let mut engine = Engine::new(decoder, Some(draft), tokenizer, Box::new(Cpu::new(*threads)), config)
        .expect("an engine");
    let text = std::fs::read_to_string(repository("bench/prompts/humaneval.jsonl")).expect("prompts");
    let prompts: Vec<String> = text.lines().filter_map(prompt).collect();
    // Enough that the end, when streams run out, does not count for much.
    let requests: Vec<Request> = (0..4 * streams)
        .map(|i| Request {
            prompt: engine.tokenizer().encode(&prompts[i * 7 % prompts.len()], Specials::Parse),
            max_tokens: *tokens,
            sampling: Sampling::default(),
            stop_ids: vec![],
            stop_strings: vec![],
        })
        .collect();
    for round in 0..*rounds {
        let (off, plain) = run(&mut engine, &requests, *streams, Speculative::Off);
        let (auto, stats) = run(&mut engine, &requests, *streams, Speculative::Auto);
        let rate = |stats: &Stats, seconds: f64| stats.generated_tokens as f64 / seconds;
        eprintln!(
            "round {round}: off {:.1} tok/s, auto {:.1} tok/s, {:.3}; {:.2} tokens a round, {} chains, {} trees, plain {:?}",
            rate(&plain, off),
            rate(&stats, auto),
            off / auto,
            stats.tokens_per_round(),
            stats.chains,
            stats.trees,
            stats.plain,
        );
    }
}

/// The prompt of one line of JSON.
fn prompt(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(value.get("prompt")?.as_str()?.to_owned())
}
