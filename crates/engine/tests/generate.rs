//! The engine on the real demo model: text, limits, company and refusals.

mod common;

use std::sync::Arc;

use common::repository;
use overdraft_cpu::Cpu;
use overdraft_engine::{Drawing, Engine, EngineConfig, EngineError, Finish, Request, Sampling, SeqId, Stats};
use overdraft_formats::tokenizer::{Specials, Tokenizer};
use overdraft_models::{Checkpoint, Decoder};

fn demo(config: EngineConfig) -> Result<Engine, EngineError> {
    let checkpoint = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    model(&checkpoint, Arc::new(checkpoint.tokenizer().unwrap()), config)
}

fn model(
    checkpoint: &Checkpoint,
    tokenizer: Arc<Tokenizer>,
    config: EngineConfig,
) -> Result<Engine, EngineError> {
    let decoder = Decoder::load(checkpoint, |_, _| {}).unwrap();
    Engine::new(decoder, None, tokenizer, Box::new(Cpu::new(2)), config)
}

fn request(engine: &Engine, prompt: &str, max_tokens: usize) -> Request {
    Request {
        prompt: engine.tokenizer().encode(prompt, Specials::Parse),
        max_tokens,
        sampling: Sampling::default(),
        stop_ids: engine.tokenizer().end_ids().to_vec(),
        stop_strings: Vec::new(),
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    text: String,
    finish: Option<Finish>,
}

/// Takes what a step brought.
fn collect(answers: &mut [(SeqId, Answer, Stats)], engine: &mut Engine) {
    for event in engine.step().unwrap() {
        let (_, answer, stats) = answers.iter_mut().find(|a| a.0 == event.seq).unwrap();
        assert_eq!(answer.finish, None, "an event after the end");
        answer.tokens.push(event.token);
        answer.text.push_str(&event.text);
        if let Some((finish, figures)) = event.finish {
            (answer.finish, *stats) = (Some(finish), figures);
        }
    }
}

/// Runs requests to their ends. They arrive one after another, a step apart, so that prompts are read beside
/// sequences that already write.
fn run(engine: &mut Engine, requests: &[Request]) -> Vec<(Answer, Stats)> {
    let mut answers = Vec::new();
    for r in requests {
        let id = engine.admit(r.clone()).unwrap();
        let empty = Answer { tokens: vec![], text: String::new(), finish: None };
        answers.push((id, empty, Stats::default()));
        collect(&mut answers, engine);
    }
    while !engine.is_idle() {
        collect(&mut answers, engine);
    }
    answers.into_iter().map(|(_, a, s)| (a, s)).collect()
}

fn answer(engine: &mut Engine, request: Request) -> Answer {
    run(engine, &[request]).remove(0).0
}

const PROMPTS: [&str; 5] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "<|im_start|>user\nWrite a Python function `read_json`. Read a JSON file.<|im_end|>\n<|im_start|>assistant\n",
    "x",
    "def is_prime(n):\n",
];

#[test]
fn the_demo_model_writes_python_the_same_way_every_time() {
    let mut engine = demo(EngineConfig::default()).unwrap();
    let r = request(&engine, PROMPTS[1], 48);
    let first = answer(&mut engine, r.clone());
    assert_eq!(first.finish, Some(Finish::MaxTokens));
    assert_eq!(first.tokens.len(), 48);
    assert!(first.text.contains("self.path = path"), "{}", first.text);
    assert_eq!(first.text, engine.tokenizer().decode(&first.tokens, true));
    assert_eq!(answer(&mut engine, r), first, "a second run in a used slot");
}

#[test]
fn five_at_once_write_what_each_writes_alone() {
    for temperature in [0.0, 0.8] {
        let mut engine = demo(EngineConfig { max_seqs: 5, context: 512, ..Default::default() }).unwrap();
        let requests: Vec<Request> = PROMPTS
            .iter()
            .enumerate()
            .map(|(i, p)| {
                let sampling =
                    Sampling::from(Drawing { temperature, top_p: 0.9, seed: i as u64, ..Default::default() });
                Request { sampling, ..request(&engine, p, 16 + 5 * i) }
            })
            .collect();
        let alone: Vec<Answer> = requests.iter().map(|r| answer(&mut engine, r.clone())).collect();
        let together: Vec<Answer> = run(&mut engine, &requests).into_iter().map(|(a, _)| a).collect();
        assert_eq!(together, alone, "temperature {temperature}");
    }
}

#[test]
fn a_sampled_text_depends_on_its_seed_alone() {
    let mut engine = demo(EngineConfig::default()).unwrap();
    let mut r = request(&engine, PROMPTS[1], 32);
    r.sampling = Sampling::from(Drawing { temperature: 1.0, top_k: 40, seed: 1, ..Default::default() });
    let first = answer(&mut engine, r.clone());
    assert_eq!(answer(&mut engine, r.clone()), first);
    r.sampling.drawing.seed = 2;
    assert_ne!(answer(&mut engine, r.clone()), first);
    r.sampling.drawing.seed = 1;
    r.sampling.drawing.choice = 1;
    assert_ne!(answer(&mut engine, r), first);
}

#[test]
fn a_text_ends_where_it_was_told_to() {
    let mut engine = demo(EngineConfig::default()).unwrap();
    let r = request(&engine, PROMPTS[0], 64);
    let free = answer(&mut engine, r.clone());
    // A stop string that begins inside one token and ends inside another.
    let at = free.text.find("return").unwrap() + 3;
    let stop: String = free.text[at..].chars().take(8).collect();
    let stopped = answer(&mut engine, Request { stop_strings: vec![stop], ..r.clone() });
    assert_eq!(stopped.finish, Some(Finish::StopString));
    assert_eq!(stopped.text, free.text[..at]);
    // A stop id.
    let stopped = answer(&mut engine, Request { stop_ids: vec![free.tokens[10]], ..r.clone() });
    assert_eq!(stopped.finish, Some(Finish::EndToken));
    let end = free.tokens.iter().position(|t| *t == free.tokens[10]).unwrap();
    assert_eq!(stopped.tokens, free.tokens[..=end]);
    assert_eq!(stopped.text, engine.tokenizer().decode(&free.tokens[..end], true));
    // One token.
    assert_eq!(answer(&mut engine, Request { max_tokens: 1, ..r }).tokens, free.tokens[..1]);
}

#[test]
fn the_context_ends_a_text_and_long_prompts_are_read_in_chunks() {
    let mut engine = demo(EngineConfig { context: 1500, ..Default::default() }).unwrap();
    let mut r = request(&engine, &PROMPTS[1].repeat(90), usize::MAX);
    r.prompt.truncate(1480);
    r.stop_ids.clear();
    let (whole, stats) = run(&mut engine, std::slice::from_ref(&r)).remove(0);
    assert_eq!((whole.finish, whole.tokens.len()), (Some(Finish::Context), 20));
    assert_eq!((stats.prompt_tokens, stats.generated_tokens, stats.rounds), (1480, 20, 19));
    let mut small = demo(EngineConfig { context: 1500, step_rows: 64, ..Default::default() }).unwrap();
    assert_eq!(answer(&mut small, r), whole, "smaller steps change nothing");
}

#[test]
fn what_cannot_be_served_is_refused_and_leaves_nothing_behind() {
    let mut engine = demo(EngineConfig { context: 128, ..Default::default() }).unwrap();
    let good = request(&engine, PROMPTS[0], 8);
    let vocab = engine.decoder().hyper.vocab as u32;
    let sampled = |sampling| Request { sampling, ..good.clone() };
    let bad = [
        ("prompt is empty", Request { prompt: vec![], ..good.clone() }),
        ("128 tokens and the context holds 128", Request { prompt: vec![5; 128], ..good.clone() }),
        ("token id 8192 is outside", Request { prompt: vec![5, vocab], ..good.clone() }),
        ("max_tokens = 0", Request { max_tokens: 0, ..good.clone() }),
        (
            "temperature = NaN",
            sampled(Sampling::from(Drawing { temperature: f32::NAN, ..Default::default() })),
        ),
        ("token id 9000 is outside", sampled(Sampling { bias: vec![(9000, 1.0)], ..Default::default() })),
    ];
    for (fragment, request) in bad {
        let message = engine.admit(request).unwrap_err().to_string();
        assert!(message.contains(fragment), "{message:?} does not say {fragment:?}");
    }
    let first = engine.admit(good.clone()).unwrap();
    assert!(matches!(engine.admit(good.clone()), Err(EngineError::NoSlot { slots: 1 })));
    assert!(engine.cancel(first).is_some());
    assert!(engine.cancel(first).is_none());
    assert!(engine.is_idle() && engine.step().unwrap().is_empty());
    answer(&mut engine, good);
}

#[test]
fn a_sequence_without_usable_logits_fails_alone() {
    let mut engine = demo(EngineConfig { context: 128, max_seqs: 4, ..Default::default() }).unwrap();
    let good = request(&engine, PROMPTS[0], 12);
    let alone = answer(&mut engine, good.clone());
    let bias = (0..engine.decoder().hyper.vocab as u32).map(|t| (t, f32::NEG_INFINITY)).collect();
    let doomed = Request { sampling: Sampling { bias, ..Default::default() }, ..good.clone() };
    let ids: Vec<SeqId> =
        [&doomed, &good, &doomed, &good].iter().map(|r| engine.admit((*r).clone()).unwrap()).collect();
    let mut tokens = vec![Vec::new(); 4];
    let mut failed = Vec::new();
    while !engine.is_idle() {
        match engine.step() {
            Ok(events) => {
                for event in events {
                    tokens[ids.iter().position(|id| *id == event.seq).unwrap()].push(event.token);
                }
            }
            Err(EngineError::Logits { seq, position }) => failed.push((seq, position as usize)),
            Err(other) => panic!("{other}"),
        }
    }
    let n = good.prompt.len();
    assert_eq!(failed, [(ids[0], n), (ids[2], n)]);
    assert_eq!(tokens, [vec![], alone.tokens.clone(), vec![], alone.tokens.clone()]);
    assert_eq!(answer(&mut engine, good), alone, "their slots are free again");
}

#[test]
fn memory_that_is_not_there_is_named_with_what_would_fit() {
    let config = EngineConfig { context: 32_768, max_seqs: 4, memory: Some(200 << 20), ..Default::default() };
    let Err(error) = demo(config) else { panic!("200 MiB cannot hold four full contexts") };
    let message = error.to_string();
    assert!(message.contains("are needed") && message.contains("200.0 MiB are available"), "{message}");
    let fits: usize = message.split("--ctx ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(demo(EngineConfig { context: fits, ..config }).is_ok(), "--ctx {fits} was promised");
    assert!(demo(EngineConfig { context: fits + 128, ..config }).is_err());
    let Err(error) = demo(EngineConfig { memory: Some(1 << 20), ..config }) else { panic!("1 MiB") };
    assert!(error.to_string().contains("no context would fit"), "{error}");
}

#[test]
fn sequences_share_the_context_memory_they_were_given() {
    let whole = EngineConfig { context: 512, max_seqs: 8, ..Default::default() };
    let line = |e: &Engine| e.ledger().lines.iter().find(|l| l.0 == "context pages").unwrap().1;
    let bytes = line(&demo(whole).unwrap()) / 4;
    let mut engine = demo(EngineConfig { kv_bytes: Some(bytes), ..whole }).unwrap();
    assert!(line(&engine) <= bytes);
    let long = Request { prompt: vec![5; 400], ..request(&engine, PROMPTS[0], 100) };
    let admitted = (0..8).map_while(|_| engine.admit(long.clone()).ok()).count();
    assert_eq!(admitted, 2, "two whole contexts fit");
    assert!(matches!(engine.admit(long), Err(EngineError::NoPages { .. })));
    let Err(error) = demo(EngineConfig { kv_bytes: Some(bytes / 3), ..whole }) else {
        panic!("less than one fits")
    };
    assert!(error.to_string().contains("--kv-memory"), "{error}");
}

#[test]
fn pages_that_a_window_gives_back_and_takes_again_hold_the_right_rows() {
    let checkpoint = Checkpoint::open(&repository("tests/fixtures/gpt_oss")).unwrap();
    // The fixture has no tokenizer; any serves to turn ids below its 384 into text.
    let demo = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(demo.tokenizer().unwrap());
    let run = |step_rows: usize| {
        let config = EngineConfig { context: 2048, step_rows, ..Default::default() };
        let mut engine = model(&checkpoint, tokenizer.clone(), config).unwrap();
        let prompt: Vec<u32> = (0..1200).map(|i| i * 37 % 384).collect();
        let sampling = Sampling::default();
        answer(
            &mut engine,
            Request { prompt, max_tokens: 300, sampling, stop_ids: vec![], stop_strings: vec![] },
        )
    };
    assert_eq!(run(64), run(512));
}
