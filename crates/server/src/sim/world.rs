//! Clients that come and go as a seed says, and what must be true whatever they do.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Clock, Drawing, Engine, EngineConfig, Options, Request, Sampling, Speculative};
use overdraft_formats::tokenizer::Tokenizer;
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_plan::{LayerState, Retention};

use super::VirtualClock;
use super::device::{Device, Faults};
use super::random::Random;
use super::text::{END, End, VOCAB, alone, no_twin};
use crate::handle::desk::{Desk, Next};
use crate::handle::{About, EngineHandle, FailKind, Health, Job, Limits, Refused, Stream, TokenOut, Update};

/// Families that keep different things: pages alone, windows, recurrent states; with and without a draft.
pub(super) const MODELS: [(&str, Option<&str>); 5] = [
    ("qwen3", None),
    ("qwen3", Some("qwen3_dflash")),
    ("qwen3_5", None),
    ("qwen3_5", Some("qwen3_5_dflash")),
    ("gpt_oss", None),
];

fn repository(path: &str) -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Any tokenizer serves to turn ids into text.
fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let load = || Arc::new(repository("models/pycoder-q4_k_m.gguf").tokenizer().unwrap());
    TOKENIZER.get_or_init(load).clone()
}

/// The engine on a simulated device, and what its sequences keep.
pub(super) struct Built {
    pub(super) engine: Engine,
    classes: Vec<Retention>,
    is_recurrent: bool,
}

/// `kv_percent`: how much of the context memory they could all have, between what one needs and all need.
pub(super) fn build(
    model: usize,
    mut config: EngineConfig,
    kv_percent: Option<usize>,
    device: Device,
    clock: Arc<VirtualClock>,
) -> Built {
    let (target, draft) = MODELS[model];
    let mut decoder = Decoder::load(&repository(&format!("tests/fixtures/{target}")), |_, _| {}).unwrap();
    let draft =
        draft.map(|name| Draft::load(&repository(&format!("tests/fixtures/{name}")), &mut decoder).unwrap());
    let plan = |config: &EngineConfig| overdraft_engine::plan_state(&decoder.hyper, draft.as_ref(), config);
    config.kv_bytes = kv_percent.map(|percent| {
        let bytes = |kv_bytes| {
            let spec = plan(&EngineConfig { kv_bytes, cache_bytes: 0, ..config });
            (0..spec.classes.len()).map(|c| spec.pages[c] * spec.page_bytes(c)).sum::<usize>()
        };
        let (least, most) = (bytes(Some(0)), bytes(None));
        least + (most - least) * percent / 100
    });
    let spec = plan(&config);
    let is_recurrent = spec.layers.iter().any(|l| matches!(l, LayerState::Recurrent(_)));
    let mut engine = Engine::new(decoder, draft, tokenizer(), Box::new(device), config).unwrap();
    engine.set_clock(clock);
    Built { engine, classes: spec.classes, is_recurrent }
}

/// How a client behaves.
struct Client {
    arrives: Instant,
    job: Option<Job>,
    request: Request,
    is_constrained: bool,
    /// Leaves after so many tokens.
    leaves_after: Option<usize>,
    /// Looks at its stream only so often; `None`: never.
    reads_every: Option<Duration>,
    next_read: Instant,
    stream: Option<Stream>,
    got: Vec<TokenOut>,
    is_started: bool,
    end: Option<Update>,
    was_refused: bool,
}

fn client(random: &mut Random, arrives: Instant, prefixes: &[Vec<u32>]) -> Client {
    let token = |random: &mut Random| random.below(VOCAB as u64 - 1) as u32;
    let mut prompt = Vec::new();
    if !random.one_in(4) {
        let prefix = &prefixes[random.below(prefixes.len() as u64) as usize];
        prompt.extend_from_slice(&prefix[..prefix.len() - random.below(prefix.len() as u64 / 2) as usize]);
    }
    if random.one_in(8) {
        prompt = prefixes[0][..64].to_vec();
    }
    // A prompt may be a prefix and nothing else, to its last page.
    let least = u64::from(prompt.len() % 64 != 0 || prompt.is_empty());
    let more = match random.below(6) {
        0 => random.below(300),
        1 => 0,
        _ => random.below(40),
    };
    let more = more.max(least);
    (0..more).for_each(|_| prompt.push(token(random)));
    let temperature = if random.one_in(2) { 0.0 } else { 0.8 };
    let sampling = Sampling::from(Drawing {
        temperature,
        seed: random.next(),
        frequency_penalty: if random.one_in(5) { 0.3 } else { 0.0 },
        ..Default::default()
    });
    let request = Request {
        prompt,
        max_tokens: 1 + random.below(60) as usize,
        sampling,
        stop_ids: if random.one_in(2) { vec![END] } else { vec![] },
        stop_strings: vec![],
    };
    let is_constrained = random.one_in(5);
    let constraint = is_constrained.then(no_twin);
    let speculative = match random.below(6) {
        0 => Speculative::Off,
        1 => Speculative::Limited { max_depth: 2, max_nodes: 3 },
        _ => Speculative::Auto,
    };
    let options = Options {
        logprobs: random.one_in(3).then_some(2),
        prompt_logprobs: random.one_in(8).then_some(1),
        speculative,
        constraint,
        cache_salt: random.below(2),
        ..Default::default()
    };
    let deadline = random.one_in(12).then(|| arrives + Duration::from_millis(random.below(200)));
    let leaves_after = random.one_in(3).then(|| random.below(30) as usize);
    let reads_every = match random.below(12) {
        0 => None,
        1..4 => Some(Duration::from_millis(random.below(80))),
        _ => Some(Duration::ZERO),
    };
    Client {
        arrives,
        job: Some(Job { request: request.clone(), options, caller: random.below(3), deadline }),
        request,
        is_constrained,
        leaves_after,
        reads_every,
        next_read: arrives,
        stream: None,
        got: Vec::new(),
        is_started: false,
        end: None,
        was_refused: false,
    }
}

impl Client {
    /// Does what is due; says when something will be.
    fn act(&mut self, handle: &EngineHandle, now: Instant) -> Option<Instant> {
        if now < self.arrives {
            return Some(self.arrives);
        }
        if let Some(job) = self.job.take() {
            match handle.submit(job) {
                Ok(stream) => self.stream = Some(stream),
                Err(Refused::Busy { retry_after, .. }) => {
                    assert!(retry_after >= Duration::from_secs(1));
                    self.was_refused = true;
                }
                Err(Refused::Draining | Refused::Dead { .. }) => self.was_refused = true,
                Err(other) => panic!("{other}"),
            }
        }
        let every = self.reads_every?;
        if now < self.next_read {
            return self.stream.is_some().then_some(self.next_read);
        }
        self.next_read = now + every;
        while let Some(update) = self.stream.as_mut().and_then(Stream::try_next) {
            assert!(self.end.is_none(), "nothing comes after the end");
            match update {
                Update::Started { .. } => {
                    assert!(!self.is_started && self.got.is_empty(), "it starts once, before its text");
                    self.is_started = true;
                }
                Update::Scored(scores) => {
                    assert!(self.is_started && self.got.is_empty(), "a prompt is told before its text");
                    assert_eq!(scores.len(), self.request.prompt.len() - 1);
                }
                Update::Tokens(tokens) => self.got.extend(tokens),
                end => self.end = Some(end),
            }
        }
        if self.end.is_some() || self.leaves_after.is_some_and(|n| self.got.len() >= n && self.is_started) {
            self.stream = None;
        }
        (self.stream.is_some() && !every.is_zero()).then_some(self.next_read)
    }

    /// What came is what a lone request writes, as far as it came.
    fn check(&self, context: usize, keeps: (&[Retention], bool), case: &str) {
        let constraint = self.is_constrained.then(no_twin);
        let (want, end) = alone(&self.request, constraint, context, keeps);
        let got: Vec<u32> = self.got.iter().map(|t| t.id).collect();
        assert!(want.starts_with(&got), "{case}: {got:?} for {want:?}");
        match &self.end {
            Some(Update::Finished { finish, stats, .. }) => {
                assert_eq!((got.len(), End::Finished(*finish)), (want.len(), end), "{case}");
                assert_eq!(stats.generated_tokens, want.len(), "{case}");
            }
            Some(Update::Failed { kind: FailKind::Request, message }) => {
                assert_eq!((got.len(), end), (want.len(), End::NoLogits), "{case}: {message}");
            }
            _ => {}
        }
    }
}

/// What happened over many seeds, to see that it happened at all.
#[derive(Default, Debug)]
struct Seen {
    finished: usize,
    left: usize,
    refused: usize,
    failed: [usize; 4],
    cached_tokens: u64,
    drafted: usize,
    accepted: usize,
}

fn run_seed(seed: u64, seen: &mut Seen) {
    let case = format!("seed {seed}");
    let mut random = Random::new(seed);
    let clock = Arc::new(VirtualClock::new());
    let dies_at = random.one_in(12).then(|| 1 + random.below(150));
    let device = Device::new(clock.clone(), seed, Faults { dies_at, ..Default::default() });
    let draft_mode = [Mode::Auto, Mode::Tree, Mode::Chain, Mode::Off][random.below(4) as usize];
    let config = EngineConfig {
        context: 256 + 64 * random.below(6) as usize,
        max_seqs: 1 + random.below(6) as usize,
        step_rows: [64, 128, 512][random.below(3) as usize],
        token_gap: (!random.one_in(4)).then(|| Duration::from_millis(5 + random.below(40))),
        cache_bytes: [0, 1 << 20, 8 << 20][random.below(3) as usize],
        draft_mode,
        budget: (draft_mode != Mode::Auto && random.one_in(2)).then(|| random.below(60) as usize),
        lookup: random.one_in(2),
        ..Default::default()
    };
    let kv_percent = random.one_in(2).then(|| random.below(100) as usize);
    let Built { engine, classes, is_recurrent } =
        build(random.below(MODELS.len() as u64) as usize, config, kv_percent, device, clock.clone());
    let limits = Limits {
        queue: random.below(8) as usize,
        max_streams: 1 + random.below(8) as usize,
        stream_buffer_bytes: if random.one_in(3) { 600 } else { 1 << 20 },
        reader_patience: Duration::from_millis(100 + random.below(300)),
        ..Default::default()
    };
    let (handle, mut desk) = EngineHandle::detached(engine, About::default(), limits, clock.clone());
    let prefixes: Vec<Vec<u32>> = (0..2)
        .map(|_| (0..100 + random.below(100)).map(|_| random.below(VOCAB as u64 - 1) as u32).collect())
        .collect();
    let start = clock.now();
    let n = 4 + random.below(16);
    let spread = 1 + random.below(300);
    let mut clients: Vec<Client> = (0..n)
        .map(|_| {
            let mut at = start + Duration::from_millis(random.below(spread));
            if random.one_in(8) {
                at += Duration::from_secs(1);
            }
            client(&mut random, at, &prefixes)
        })
        // The shortest context is longer than most; what is too long is refused elsewhere.
        .filter(|c| c.request.prompt.len() < config.context)
        .collect();
    let drains_at = random.one_in(6).then(|| start + Duration::from_millis(random.below(spread)));
    let death = drive(&handle, &mut desk, &clock, &mut clients, drains_at);
    assert!(death.is_none() || dies_at.is_some(), "{case}: {death:?}");
    assert_eq!(
        death.is_some(),
        handle.health() == Health::Dead { reason: death.clone().unwrap_or_default() }
    );

    let over = handle.gauges();
    assert_eq!((over.running, over.waiting), (0, 0), "{case}");
    if death.is_none() {
        assert_eq!((over.pages_used, over.slots_used), (0, 0), "{case}: something was not given back");
    }
    let totals = handle.totals();
    for (i, client) in clients.iter_mut().enumerate() {
        // Whoever did not look so far looks now.
        client.reads_every = Some(Duration::ZERO);
        client.next_read = client.arrives;
        let had_left = client.stream.is_none() && !client.was_refused && client.end.is_none();
        client.act(&handle, clock.now().max(client.arrives));
        let case = format!("{case}, client {i}");
        client.check(config.context, (&classes, is_recurrent), &case);
        match &client.end {
            Some(Update::Finished { .. }) => seen.finished += 1,
            Some(Update::Failed { kind, .. }) => seen.failed[*kind as usize] += 1,
            None if client.was_refused => seen.refused += 1,
            _ => {
                let may_have_left = client.leaves_after.is_some_and(|n| client.got.len() >= n);
                assert!(had_left || may_have_left, "{case}: lost");
                seen.left += 1;
            }
        }
    }
    seen.cached_tokens += totals.cached_tokens;
    seen.drafted += totals.stats.drafted;
    seen.accepted += totals.stats.accepted;
}

/// Runs until everything is over; returns what the engine died of.
fn drive(
    handle: &EngineHandle,
    desk: &mut Desk,
    clock: &VirtualClock,
    clients: &mut [Client],
    drains_at: Option<Instant>,
) -> Option<String> {
    for _ in 0..200_000 {
        let now = clock.now();
        let due: Option<Instant> = clients.iter_mut().filter_map(|c| c.act(handle, now)).min();
        let all_came = clients.iter().all(|c| c.job.is_none());
        if all_came || drains_at.is_some_and(|at| now >= at) {
            handle.drain();
        }
        match desk.tick() {
            Ok(Next::Again) => {}
            Ok(Next::Stop) if all_came => return None,
            Ok(Next::Stop | Next::Wait(None)) => clock.advance_to(due.unwrap_or(now)),
            Ok(Next::Wait(Some(until))) => clock.advance_to(due.map_or(until, |d| d.min(until))),
            Err(fatal) => {
                handle.fail_all(&fatal.to_string());
                clients.iter_mut().for_each(|c| {
                    c.act(handle, clock.now().max(c.arrives));
                });
                return Some(fatal.to_string());
            }
        }
    }
    panic!("requests are still not over after 200 000 rounds");
}

#[test]
fn thousands_of_seeds_leak_nothing_lose_nobody_and_write_what_each_writes_alone() {
    let mut seen = Seen::default();
    let seeds = std::env::var("OVERDRAFT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    for seed in 0..seeds {
        run_seed(seed, &mut seen);
    }
    eprintln!("{seen:?}");
    let Seen { finished, left, refused, failed, cached_tokens, drafted, accepted } = seen;
    assert!(finished > 4 * seeds as usize && left > 0 && refused > 0, "{seeds} seeds saw too little");
    assert!(failed.iter().all(|n| *n > 0) && cached_tokens > 0 && drafted > accepted && accepted > 0);
}

/// Updates with the virtual time they came at.
fn read_all(stream: &mut Stream, now: Instant, into: &mut Vec<(Instant, Update)>) {
    while let Some(update) = stream.try_next() {
        into.push((now, update));
    }
}

pub(super) fn plain_request(prompt: usize, max_tokens: usize) -> Request {
    let prompt = (0..prompt as u32).map(|i| i * 7 % 300 + 20).collect();
    Request { prompt, max_tokens, sampling: Sampling::default(), stop_ids: vec![], stop_strings: vec![] }
}

#[test]
fn a_long_prompt_does_not_hold_up_those_who_write() {
    // A row takes 0.1 ms of virtual time: a step of 512 would take 52.
    for (gap, most) in [(Some(Duration::from_millis(30)), 30), (None, 52)] {
        let clock = Arc::new(VirtualClock::new());
        let device = Device::new(clock.clone(), 0, Faults { is_even: true, ..Default::default() });
        let config = EngineConfig { context: 4096, max_seqs: 2, token_gap: gap, ..Default::default() };
        let Built { engine, .. } = build(0, config, None, device, clock.clone());
        let (handle, mut desk) =
            EngineHandle::detached(engine, About::default(), Limits::default(), clock.clone());
        let mut writer = handle.submit(plain_request(40, 200).into()).unwrap();
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut reader = None;
        for round in 0..2000 {
            if round == 5 {
                reader = Some(handle.submit(plain_request(3900, 1).into()).unwrap());
            }
            if desk.tick().unwrap() != Next::Again {
                break;
            }
            read_all(&mut writer, clock.now(), &mut written);
            reader.iter_mut().for_each(|r| read_all(r, clock.now(), &mut read));
        }
        let times: Vec<Instant> =
            written.iter().filter(|u| matches!(u.1, Update::Tokens(_))).map(|u| u.0).collect();
        assert_eq!(times.len(), 200);
        let longest = times.windows(2).map(|w| w[1] - w[0]).max().unwrap();
        let most = Duration::from_millis(most);
        assert!(longest <= most + most / 20, "{longest:?} without a token, {gap:?} allowed");
        assert!(longest >= most / 2, "{longest:?}: what the gap allows is made use of");
        assert!(matches!(read.last(), Some((_, Update::Finished { .. }))), "the prompt was read meanwhile");
    }
}

#[test]
fn a_step_that_never_returns_is_reported_to_all_who_wait() {
    let (release, held) = std::sync::mpsc::channel();
    let device =
        Device::new(Arc::new(VirtualClock::new()), 0, Faults { hangs: Some(held), ..Default::default() });
    let config = EngineConfig { context: 256, max_seqs: 1, ..Default::default() };
    let Built { engine, .. } = build(0, config, None, device, Arc::new(VirtualClock::new()));
    let limits = Limits { watchdog: Duration::from_millis(20), ..Default::default() };
    let (handle, thread) = EngineHandle::start(engine, About::default(), limits).unwrap();
    // The second one waits for the first.
    let mut streams = [(); 2].map(|()| handle.submit(plain_request(10, 5).into()).unwrap());
    for stream in &mut streams {
        let end = std::iter::from_fn(|| stream.blocking_next()).last();
        assert!(matches!(end, Some(Update::Failed { kind: FailKind::Engine, .. })), "{end:?}");
    }
    assert!(matches!(handle.health(), Health::Stuck { .. }), "{:?}", handle.health());
    let refused = handle.submit(plain_request(10, 5).into()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Refused::Dead { .. }), "{refused}");
    release.send(()).unwrap();
    thread.join().unwrap();
    assert!(matches!(handle.health(), Health::Dead { .. }), "it is not trusted again");
}

#[test]
fn a_caller_with_a_hundred_requests_does_not_keep_another_from_its_turn() {
    let clock = Arc::new(VirtualClock::new());
    let device = Device::new(clock.clone(), 0, Faults { is_even: true, ..Default::default() });
    let config = EngineConfig { context: 256, max_seqs: 2, ..Default::default() };
    let Built { engine, .. } = build(0, config, None, device, clock.clone());
    let limits = Limits { queue: 128, max_streams: 2, ..Default::default() };
    let (handle, mut desk) = EngineHandle::detached(engine, About::default(), limits, clock.clone());
    let job = |caller| Job { caller, ..Job::from(plain_request(20, 10)) };
    let mut crowd: Vec<Stream> = (0..96).map(|_| handle.submit(job(1)).unwrap()).collect();
    let refused = handle.submit(job(1)).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Refused::Busy { .. }), "a quarter of the queue is for others: {refused}");
    desk.tick().unwrap();
    let mut single = handle.submit(job(2)).unwrap();
    let is_over = |stream: &mut Stream| {
        std::iter::from_fn(|| stream.try_next()).any(|u| matches!(u, Update::Finished { .. }))
    };
    let (mut crowd_over, mut single_over_after) = (0, None);
    while crowd_over < crowd.len() {
        assert_ne!(desk.tick().unwrap(), Next::Stop);
        crowd_over += crowd.iter_mut().map(is_over).filter(|over| *over).count();
        if single_over_after.is_none() && is_over(&mut single) {
            single_over_after = Some(crowd_over);
        }
    }
    // The two that ran when it came, and the one beside it.
    assert!(single_over_after.is_some_and(|n| n <= 3), "{single_over_after:?} of 96 were over before it");
}
