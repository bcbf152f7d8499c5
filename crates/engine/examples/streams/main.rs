//! Tokens a second of many streams at once, speculation auto against off, in turn within one process:
//! `cargo run --release -p overdraft-engine --example streams -- STREAMS TOKENS ROUNDS THREADS [DRIFT]`
//!
//! Seconds are of the thread's own CPU time, so that other work on the machine does not count, save by the caches and
//! memory it takes: use one thread. With DRIFT (percent) time is not measured at all: every pass takes what its rows and
//! sequences took on a quiet machine, and all passes together grow slower and faster by so much. That is what the policy
//! is worth apart from the machine, the same in every run.

mod priced;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Clock, Engine, EngineConfig, Events, Options, Request, Sampling, Speculative, Stats};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_plan::Backend;

use priced::{Priced, PricedClock};

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// CPU time of this thread.
struct ThreadClock(Instant);

impl Clock for ThreadClock {
    fn now(&self) -> Instant {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        self.0 + Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }
}

/// One engine and what it has done so far.
struct Runner {
    engine: Engine,
    clock: Arc<dyn Clock>,
    speculative: Speculative,
    seconds: f64,
    sum: Stats,
    waiting: Vec<Request>,
    running: usize,
    streams: usize,
}

impl Runner {
    /// One step; false when all is written. Where a text ends the next begins, as on a server with clients that wait.
    fn step(&mut self, events: &mut Events) -> bool {
        while self.running < self.streams
            && let Some(request) = self.waiting.pop()
        {
            let options = Options { speculative: self.speculative, ..Default::default() };
            self.engine.admit_as(request, options).expect("there is room for so many");
            self.running += 1;
        }
        if self.engine.is_idle() {
            return false;
        }
        let from = self.clock.now();
        self.engine.step_into(events).expect("a step");
        self.seconds += (self.clock.now() - from).as_secs_f64();
        for (_, stats) in events.iter().filter_map(|e| e.finish) {
            self.sum.add(&stats);
            self.running -= 1;
        }
        true
    }

    fn rate(&self) -> f64 {
        self.sum.generated_tokens as f64 / self.seconds
    }
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [streams, tokens, rounds, threads, drift @ ..] = args.as_slice() else {
        eprintln!("give streams, tokens, rounds, threads, and percent of drift for priced time");
        std::process::exit(2);
    };
    let drift = drift.first().copied();
    let mut off = runner(*streams, *threads, drift, Speculative::Off);
    let mut auto = runner(*streams, *threads, drift, Speculative::Auto);
    let text = std::fs::read_to_string(repository("bench/prompts/humaneval.jsonl")).expect("prompts");
    let prompts: Vec<String> = text.lines().filter_map(prompt).collect();
    let (mut events, mut ratios) = (Events::default(), Vec::new());
    for round in 0..*rounds {
        // Enough that the end, when streams run out, does not count for much.
        let n = (3 * streams).max(8);
        for runner in [&mut off, &mut auto] {
            let request = |i: usize| Request {
                prompt: runner.engine.tokenizer().encode(&prompts[i * 7 % prompts.len()], Specials::Parse),
                max_tokens: *tokens,
                sampling: Sampling::default(),
                stop_ids: vec![],
                stop_strings: vec![],
            };
            runner.waiting = (round * n..(round + 1) * n).map(request).collect();
            (runner.seconds, runner.sum) = (0.0, Stats::default());
        }
        // Whoever has had less time has the next step: whatever slows the machine slows both.
        while if auto.seconds < off.seconds { auto.step(&mut events) } else { off.step(&mut events) } {}
        while auto.step(&mut events) || off.step(&mut events) {}
        let ratio = auto.rate() / off.rate();
        ratios.push(ratio);
        eprintln!(
            "round {round}: off {:.1} tok/s, auto {:.1} tok/s, {ratio:.3}; {:.2} tokens a round, {} chains, {} trees, plain {:?}",
            off.rate(),
            auto.rate(),
            auto.sum.tokens_per_round(),
            auto.sum.chains,
            auto.sum.trees,
            auto.sum.plain,
        );
    }
    ratios.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (ratios.first(), ratios.last()) {
        eprintln!(
            "{streams} streams, auto over off: {:.3}, {least:.3} to {most:.3}",
            ratios[ratios.len() / 2]
        );
    }
}

fn runner(streams: usize, threads: usize, drift: Option<usize>, speculative: Speculative) -> Runner {
    let target = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).expect("the demo model");
    let mut decoder = Decoder::load(&target, |_, _| {}).expect("the demo model");
    let draft = Checkpoint::open(&repository("models/pycoder-dflash-q8_0.gguf")).expect("the demo draft");
    let draft = Draft::load(&draft, &mut decoder).expect("the demo draft");
    let config = EngineConfig {
        context: 1024,
        max_seqs: streams,
        draft_mode: Mode::Auto,
        lookup: true,
        ..Default::default()
    };
    let tokenizer = Arc::new(target.tokenizer().expect("its tokenizer"));
    let cpu = Box::new(Cpu::new(threads));
    let (backend, clock): (Box<dyn Backend>, Arc<dyn Clock>) = match drift {
        None => (cpu, Arc::new(ThreadClock(Instant::now()))),
        Some(drift) => {
            let clock = Arc::new(PricedClock::new(drift));
            (Box::new(Priced::new(cpu, clock.clone())), clock)
        }
    };
    let mut engine = Engine::new(decoder, Some(draft), tokenizer, backend, config).expect("an engine");
    engine.set_clock(clock.clone());
    let (sum, waiting) = (Stats::default(), Vec::new());
    Runner { engine, clock, speculative, seconds: 0.0, sum, waiting, running: 0, streams }
}

/// The prompt of one line of JSON.
fn prompt(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(value.get("prompt")?.as_str()?.to_owned())
}
