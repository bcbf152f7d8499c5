//! Whole rounds on the device: their texts are those of plain steps, their trees those of the definition over the same plans,
//! and how long they take.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use overdraft_cuda::{Cuda, Device};
use overdraft_engine::spec::forced::Forced;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{
    Drawing, Engine, EngineConfig, Options, Request, Sampling, Speculative, Stats, Witness,
};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_plan::{Backend, DefinedRounds};

const TOKENS: usize = 160;
/// Texts at once.
const MOST: usize = 16;
const REPEATS: usize = 3;
const PROMPTS: [&str; 5] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "<|im_start|>user\nWrite a Python function `read_json`.<|im_end|>\n<|im_start|>assistant\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "x",
    "def is_prime(n):\n",
];
const MODES: [(Mode, Option<usize>); 5] = [
    (Mode::Chain, Some(7)),
    (Mode::Tree, Some(15)),
    (Mode::Tree, Some(31)),
    (Mode::Tree, None),
    (Mode::Auto, None),
];

const PLAIN: (Mode, Option<usize>) = (Mode::Off, None);

/// Who makes rounds of a device's plans.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The engine, of steps.
    Steps,
    Device,
    Definition,
}

struct Pair<'a> {
    device: &'a Arc<Device>,
    target: &'a str,
    draft: &'a str,
}

impl Pair<'_> {
    /// And how many rounds the definition has made. In plain rounds of their own there is no draft.
    fn engine(
        &self,
        (draft_mode, budget): (Mode, Option<usize>),
        witness: Witness,
        by: By,
        has_draft: bool,
    ) -> (Engine, Arc<AtomicUsize>) {
        let target = Checkpoint::open(Path::new(self.target)).unwrap();
        let tokenizer = Arc::new(target.tokenizer().unwrap());
        let mut decoder = Decoder::load(&target, |_, _| {}).unwrap();
        let draft = has_draft.then(|| {
            let draft = Checkpoint::open(Path::new(self.draft)).unwrap();
            Draft::load(&draft, &mut decoder).unwrap()
        });
        let cuda = Cuda::new(self.device.clone()).unwrap();
        let mut count = Arc::default();
        let backend: Box<dyn Backend> = match by {
            By::Device => Box::new(cuda),
            By::Steps => Box::new(DefinedRounds::none(cuda)),
            By::Definition => {
                let rounds = DefinedRounds::new(cuda);
                count = rounds.count();
                Box::new(rounds)
            }
        };
        // As the program has it: `auto` looks in the text too, and without a draft that is all there is.
        let lookup = draft_mode == Mode::Auto || !has_draft && draft_mode != Mode::Off;
        let config = EngineConfig {
            context: 1024,
            max_seqs: MOST,
            draft_mode,
            budget,
            lookup,
            witness,
            ..Default::default()
        };
        let mut engine = Engine::new(decoder, draft, tokenizer, backend, config).unwrap();
        // The definition's rounds are counted.
        if by == By::Device {
            engine.warm_up(Duration::from_millis(300)).unwrap();
        }
        (engine, count)
    }
}

/// Tokens of each text with what they were drawn from, and the figures of all.
type Written = (Vec<Vec<(u32, Option<u64>)>>, Stats);

/// Texts at once, and how their tokens are chosen.
#[derive(Clone, Copy)]
struct Crowd<'a> {
    n: usize,
    sampling: &'a Sampling,
    /// Every second never drafts, whatever the mode.
    is_mixed: bool,
}

/// The prompts together to their ends; each comes a step after the one before.
fn write(engine: &mut Engine, Crowd { n, sampling, is_mixed }: Crowd<'_>) -> Written {
    let mut ids = Vec::new();
    let mut written: Written = (vec![Vec::new(); n], Stats::default());
    while ids.len() < n || !engine.is_idle() {
        if ids.len() < n {
            let prompt = PROMPTS[ids.len() % PROMPTS.len()];
            let request = Request {
                prompt: engine.tokenizer().encode(prompt, Specials::Parse),
                max_tokens: TOKENS,
                sampling: sampling.clone(),
                stop_ids: vec![],
                stop_strings: vec![],
            };
            let is_plain = is_mixed && ids.len() % 2 == 1;
            let speculative = if is_plain { Speculative::Off } else { Options::default().speculative };
            ids.push(engine.admit_as(request, Options { speculative, ..Default::default() }).unwrap());
        }
        for event in engine.step().unwrap() {
            let at = ids.iter().position(|id| *id == event.seq).unwrap();
            written.0[at].push((event.token, event.fingerprint));
            if let Some((_, stats)) = event.finish {
                written.1.add(&stats);
            }
        }
    }
    written
}

fn tokens(written: &Written) -> Vec<Vec<u32>> {
    written.0.iter().map(|text| text.iter().map(|t| t.0).collect()).collect()
}

/// `TARGET.gguf DRAFT.gguf [ONLY]`: those crowds alone whose name has `ONLY` in it, such as `16 hot` or `mixed`.
pub(crate) fn run(device: &Arc<Device>, args: &[String]) -> bool {
    let (target, draft, only) = match args {
        [target, draft] => (target, draft, ""),
        [target, draft, only] => (target, draft, only.as_str()),
        _ => {
            println!("rounds TARGET.gguf DRAFT.gguf [ONLY]");
            return false;
        }
    };
    let pair = Pair { device, target, draft };
    let mut passed = true;
    let greedy = Sampling::default();
    let drawn = Sampling::from(Drawing { temperature: 0.8, top_p: 0.9, seed: 11, ..Default::default() });
    // A list that grows with the text.
    let counted = Drawing { repetition_penalty: 1.2, presence_penalty: 0.4, ..Default::default() };
    let counted = Sampling::from(Drawing { frequency_penalty: 0.2, ..counted });
    // A long one, which moves far for each new token.
    let bias = (0..3000).map(|token| (token, if token % 7 == 0 { -1.0 } else { 0.125 })).collect();
    let biased = Sampling { drawing: Drawing { presence_penalty: 0.3, ..drawn.drawing }, bias };
    // What no draft foresees, so that `auto` writes plainly and asks now and then.
    let hot = Sampling::from(Drawing { temperature: 4.0, seed: 3, ..Default::default() });
    // Texts at once, how their tokens are chosen, and modes.
    let rows = [
        (1, "drawn", &drawn, &MODES[1..2]),
        (1, "greedy", &greedy, &MODES[..]),
        (1, "counted", &counted, &MODES[..2]),
        (1, "greedy", &greedy, &[PLAIN]),
        (1, "counted", &counted, &[PLAIN]),
        (5, "biased and drawn", &biased, &[PLAIN]),
        (1, "hot", &hot, &MODES[4..]),
        (5, "hot", &hot, &MODES[4..]),
        (MOST, "drawn", &drawn, &[PLAIN]),
        (1, "biased and drawn", &biased, &MODES[1..2]),
        (5, "drawn", &drawn, &MODES[1..2]),
        (5, "greedy", &greedy, &MODES[1..2]),
        (5, "counted", &counted, &MODES[1..2]),
        (5, "biased and drawn", &biased, &MODES[..1]),
        // 128 rows hold them all.
        (MOST, "drawn", &drawn, &MODES[..1]),
        (MOST, "counted", &counted, &MODES[..1]),
        (MOST, "greedy", &greedy, &MODES[3..]),
        (MOST, "hot", &hot, &MODES[4..]),
        // What is found in the text is all that is guessed.
        (1, "found", &greedy, &MODES[..1]),
        (5, "found and counted", &counted, &MODES[..1]),
        (MOST, "found", &greedy, &MODES[..1]),
        (5, "mixed", &greedy, &MODES[..2]),
        (5, "mixed and drawn", &drawn, &MODES[4..]),
        (MOST, "mixed", &counted, &MODES[..1]),
        (MOST, "mixed and hot", &hot, &MODES[3..]),
    ];
    for (n, kind, sampling, modes) in rows {
        if !format!("{n} {kind}").contains(only) {
            continue;
        }
        let crowd = Crowd { n, sampling, is_mixed: kind.starts_with("mixed") };
        let has_draft = modes[0] != PLAIN && !kind.starts_with("found");
        let engine = |mode, witness, by| pair.engine(mode, witness, by, has_draft);
        let plain = write(&mut engine(PLAIN, Witness::Fingerprints, By::Steps).0, crowd);
        if modes[0] == PLAIN {
            let (mut steps, _) = engine(PLAIN, Witness::None, By::Steps);
            write(&mut steps, crowd);
            println!("{PLAIN:?}, {n} {kind}, as steps:");
            time(&mut steps, crowd);
        }
        for mode in modes {
            let mode = *mode;
            let seen = write(&mut engine(mode, Witness::Fingerprints, By::Device).0, crowd);
            let (mut device, _) = engine(mode, Witness::None, By::Device);
            let ahead = write(&mut device, crowd);
            let (mut definition, rounds) = engine(mode, Witness::None, By::Definition);
            let defined = write(&mut definition, crowd);
            let rounds = rounds.load(Ordering::Relaxed);
            let counts = |w: &Written| (w.1.rounds, w.1.drafted, w.1.accepted);
            let same =
                seen.0 == plain.0 && tokens(&ahead) == tokens(&plain) && tokens(&defined) == tokens(&plain);
            // What a fixed count of nodes brings does not depend on what rows cost.
            let is_fixed = mode.1.is_some() || mode == PLAIN;
            // Whether there was anything to compare.
            let any = rounds > 0 || !is_fixed;
            let alike = any && (n > 1 || !is_fixed || counts(&ahead) == counts(&defined));
            passed &= same && alike;
            let verdict = if same && alike { "ok" } else { "FAILED" };
            println!(
                "{mode:?}, {n} {kind}: {verdict}; {:?}, as defined {:?} with {rounds} whole rounds",
                counts(&ahead),
                counts(&defined)
            );
            if same {
                time(&mut device, crowd);
            }
        }
    }
    passed & (!"forced".contains(only) || forced(&pair))
}

/// What is forced upon rounds of the device is what the definition forces upon its own: the tokens, and how many a round.
fn forced(pair: &Pair<'_>) -> bool {
    let mut passed = true;
    for (mode, tokens_a_round) in [(MODES[0], 1.0), (MODES[0], 5.0), (MODES[1], 2.5)] {
        let [device, defined] = [By::Device, By::Definition].map(|by| {
            let (mut engine, _) = pair.engine(mode, Witness::None, by, true);
            engine.force_acceptance(Forced::new(tokens_a_round));
            let sampling = &Sampling::default();
            write(&mut engine, Crowd { n: 1, sampling, is_mixed: false })
        });
        let same = tokens(&device) == tokens(&defined) && device.1.drafted == defined.1.drafted;
        let rounds = (TOKENS as f64 - 1.0) / tokens_a_round;
        let is_paced = (device.1.rounds as f64 - rounds).abs() <= 4.0;
        passed &= same && is_paced;
        let verdict = if same && is_paced { "ok" } else { "FAILED" };
        println!("{mode:?}, forced {tokens_a_round}: {verdict}; {} rounds", device.1.rounds);
    }
    passed
}

fn time(engine: &mut Engine, crowd: Crowd<'_>) {
    let mut runs: Vec<(f64, f64, f64, f64)> = (0..REPEATS)
        .map(|_| {
            engine.watch_device().unwrap();
            let started = Instant::now();
            let stats = write(engine, crowd).1;
            let seconds = started.elapsed().as_secs_f64();
            let used = engine.watch_device().unwrap().unwrap_or_default();
            let us = |d: Duration| d.as_secs_f64() * 1e6 / stats.rounds as f64;
            let idle = used.idle.as_secs_f64() / (used.idle + used.busy).as_secs_f64();
            (
                us(stats.generation_time),
                us(stats.phases.propose),
                idle,
                stats.generated_tokens as f64 / seconds,
            )
        })
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (round, propose, idle, rate) = runs[REPEATS / 2];
    let (least, most) = (runs[0].0, runs[REPEATS - 1].0);
    println!(
        "  a round {round:.0} us ({least:.0} to {most:.0}), the draft's part {propose:.0}; idle {:.1} %; {rate:.0} tok/s",
        100.0 * idle
    );
}
