//! The engine behind its handle, on the demo model.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overdraft_cpu::Cpu;
use overdraft_engine::{Engine, EngineConfig, Finish, Options, Request, Sampling};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder};
use overdraft_server::handle::{
    About, EngineHandle, FailKind, Health, Job, Limits, Refused, Stream, TokenOut, Update,
};

const CONFIG: EngineConfig = EngineConfig {
    context: 512,
    max_seqs: 3,
    kv: overdraft_plan::KvType::F16,
    step_rows: 512,
    kv_bytes: None,
    token_gap: None,
    cache_bytes: 0,
    memory: None,
    draft_mode: overdraft_engine::spec::policy::Mode::Off,
    budget: None,
    lookup: false,
    exact: false,
    witness: overdraft_engine::Witness::None,
};

fn engine() -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pycoder-q4_k_m.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tokenizer = Arc::new(checkpoint.tokenizer().unwrap());
    let decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    Engine::new(decoder, None, tokenizer, Box::new(Cpu::new(2)), CONFIG).unwrap()
}

fn start(limits: Limits) -> (EngineHandle, std::thread::JoinHandle<()>) {
    EngineHandle::start(engine(), About { name: "demo".into(), ..Default::default() }, limits).unwrap()
}

fn request(handle: &EngineHandle, prompt: &str, max_tokens: usize) -> Request {
    Request {
        prompt: handle.facts().tokenizer.encode(prompt, Specials::Parse),
        max_tokens,
        sampling: Sampling::default(),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

/// Reads to the end: the text, and how it ended.
fn read(stream: &mut Stream) -> (String, Update) {
    let mut text = String::new();
    while let Some(update) = stream.blocking_next() {
        match update {
            Update::Started { .. } => assert!(text.is_empty(), "it starts once, before its text"),
            Update::Tokens(tokens) => tokens.iter().for_each(|t: &TokenOut| text.push_str(&t.text)),
            end => {
                assert!(stream.blocking_next().is_none(), "nothing comes after the end");
                return (text, end);
            }
        }
    }
    panic!("a stream ended without saying how");
}

fn finished(end: &Update) -> Option<Finish> {
    match end {
        Update::Finished { finish, .. } => Some(*finish),
        _ => None,
    }
}

const PROMPTS: [&str; 5] =
    ["def fibonacci(n):\n", "import os\n", "class Stack:\n", "x = ", "def is_prime(n):\n"];

#[test]
fn more_requests_than_streams_all_finish_with_the_text_of_a_lone_one() {
    let (handle, thread) = start(Limits::default());
    let alone = PROMPTS.map(|p| read(&mut handle.submit(request(&handle, p, 24).into()).unwrap()).0);
    let mut streams = PROMPTS.map(|p| handle.submit(request(&handle, p, 24).into()).unwrap());
    for (stream, alone) in streams.iter_mut().zip(&alone) {
        let (text, end) = read(stream);
        assert_eq!((&text, finished(&end)), (alone, Some(Finish::MaxTokens)));
    }
    let totals = handle.totals();
    assert_eq!((totals.finished.max_tokens, totals.generated_tokens), (10, 240));
    assert_eq!(totals.first_token_seconds.count(), 10);
    assert_eq!(totals.inter_token_seconds.count(), 230);
    handle.drain();
    assert_eq!(handle.health(), Health::Draining);
    thread.join().unwrap();
    let gauges = handle.gauges();
    assert_eq!((gauges.running, gauges.waiting, gauges.pages_used, gauges.slots_used), (0, 0, 0, 0));
}

#[test]
fn a_dropped_stream_gives_everything_back() {
    let (handle, thread) = start(Limits::default());
    let mut doomed = handle.submit(request(&handle, PROMPTS[0], 400).into()).unwrap();
    while !matches!(doomed.blocking_next(), Some(Update::Tokens(_))) {}
    assert_eq!(handle.gauges().slots_used, 1);
    drop(doomed);
    // Whatever runs now does so with what was given back.
    let mut all = PROMPTS[..3].iter().map(|p| handle.submit(request(&handle, p, 400).into()).unwrap());
    let streams: Vec<Stream> = all.by_ref().collect();
    drop(streams);
    drop(all);
    drop(handle.clone());
    handle.drain();
    thread.join().unwrap();
    let (gauges, totals) = (handle.gauges(), handle.totals());
    assert_eq!((gauges.running, gauges.pages_used, gauges.slots_used), (0, 0, 0));
    assert_eq!(totals.failed.cancelled, 4);
}

#[test]
fn a_full_queue_says_when_to_come_back_and_recovers() {
    let (handle, _thread) = start(Limits { queue: 1, max_streams: 1, ..Default::default() });
    let mut running = handle.submit(request(&handle, PROMPTS[0], 100).into()).unwrap();
    while !matches!(running.blocking_next(), Some(Update::Started { .. })) {}
    let mut waiting = handle.submit(request(&handle, PROMPTS[1], 8).into()).unwrap();
    let refused = handle.submit(request(&handle, PROMPTS[2], 8).into()).map(|_| ()).unwrap_err();
    let Refused::Busy { waiting: 1, retry_after } = refused else { panic!("{refused}") };
    assert!(retry_after >= Duration::from_secs(1));
    drop(running);
    assert_eq!(finished(&read(&mut waiting).1), Some(Finish::MaxTokens));
    let mut again = handle.submit(request(&handle, PROMPTS[2], 8).into()).unwrap();
    assert_eq!(finished(&read(&mut again).1), Some(Finish::MaxTokens));
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let (handle, thread) = start(Limits::default());
    let good = request(&handle, PROMPTS[0], 8);
    let long = Request { prompt: vec![5; 600], ..good.clone() };
    let refused = handle.submit(long.into()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Refused::TooLong { prompt: 600, limit: 511, .. }), "{refused}");
    let refused = handle.submit(Request { prompt: vec![], ..good.clone() }.into()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Refused::Invalid(_)), "{refused}");
    let options = Options { logprobs: Some(21), ..Default::default() };
    let refused = handle.submit(Job { options, ..Job::from(good.clone()) }).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Refused::Invalid(_)), "{refused}");
    handle.drain();
    let refused = handle.submit(good.into()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Refused::Draining), "{refused}");
    thread.join().unwrap();
}

#[test]
fn a_request_past_its_deadline_ends_with_what_it_has() {
    let (handle, _thread) = start(Limits::default());
    let job = Job { deadline: Some(Instant::now()), ..Job::from(request(&handle, PROMPTS[0], 8)) };
    let (_, end) = read(&mut handle.submit(job).unwrap());
    assert!(matches!(end, Update::Failed { kind: FailKind::Deadline, .. }), "{end:?}");
}

#[test]
fn a_reader_that_is_behind_holds_up_itself_alone() {
    // Room for about four tokens.
    let limits = Limits { stream_buffer_bytes: 4 * size_of::<TokenOut>(), ..Default::default() };
    let (handle, _thread) = start(limits);
    let mut slow = handle.submit(request(&handle, PROMPTS[0], 64).into()).unwrap();
    let (_, end) = read(&mut handle.submit(request(&handle, PROMPTS[1], 64).into()).unwrap());
    assert_eq!(finished(&end), Some(Finish::MaxTokens), "the other one was not held up");
    assert!(handle.totals().generated_tokens < 64 + 16, "nobody wrote on for the slow reader");
    let (text, end) = read(&mut slow);
    assert_eq!(finished(&end), Some(Finish::MaxTokens));
    let alone = read(&mut handle.submit(request(&handle, PROMPTS[0], 64).into()).unwrap()).0;
    assert_eq!(text, alone);
}

#[test]
fn a_reader_that_never_reads_is_given_up() {
    let limits = Limits { stream_buffer_bytes: 1, reader_patience: Duration::ZERO, ..Default::default() };
    let (handle, thread) = start(limits);
    let mut unread = handle.submit(request(&handle, PROMPTS[0], 500).into()).unwrap();
    handle.drain();
    thread.join().unwrap();
    let (_, end) = read(&mut unread);
    assert!(matches!(end, Update::Failed { kind: FailKind::SlowReader, .. }), "{end:?}");
    assert_eq!(handle.gauges().pages_used, 0);
}
