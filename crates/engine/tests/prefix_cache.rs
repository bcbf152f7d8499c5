//! A prompt whose beginning was read before is answered with the bits of one that was not.

mod common;

use std::sync::Arc;

use common::{DemoPair, FAMILIES, demo_pair, repository};
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, EngineConfig, Options, Request, Sampling, SeqId, Stats, Witness};
use overdraft_models::{Checkpoint, Decoder, Draft};

const CONFIG: EngineConfig = EngineConfig {
    context: 1024,
    max_seqs: 4,
    kv: overdraft_plan::KvType::F16,
    step_rows: 512,
    kv_bytes: None,
    token_gap: None,
    cache_bytes: 64 << 20,
    memory: None,
    draft_mode: Mode::Off,
    budget: None,
    lookup: false,
    exact: false,
    witness: Witness::Fingerprints,
};

const COLD: EngineConfig = EngineConfig { cache_bytes: 0, ..CONFIG };

fn fixture(target: &str, draft: Option<&str>, config: EngineConfig) -> Engine {
    let checkpoint = Checkpoint::open(&repository("tests/fixtures").join(target)).unwrap();
    // Fixtures have no tokenizer; any serves to turn their ids into text.
    let demo = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let mut decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let draft = draft.map(|name| {
        Draft::load(&Checkpoint::open(&repository("tests/fixtures").join(name)).unwrap(), &mut decoder)
            .unwrap()
    });
    Engine::new(decoder, draft, Arc::new(demo.tokenizer().unwrap()), Box::new(Cpu::new(2)), config).unwrap()
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    let sampling = Sampling::from(Drawing { temperature: 0.7, seed: 2, ..Default::default() });
    Request { prompt: prompt.to_vec(), max_tokens, sampling, stop_ids: vec![], stop_strings: vec![] }
}

/// Tokens below `vocab`, the same for the same seed.
fn tokens(seed: u32, n: usize, vocab: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2654435761).wrapping_add(seed * 97) >> 7) % vocab).collect()
}

type Trace = Vec<(u32, Option<u64>)>;

/// Runs them together to their ends.
fn run_salted(engine: &mut Engine, requests: &[(Request, u64)]) -> Vec<(Trace, Stats)> {
    let admit = |engine: &mut Engine, (request, cache_salt): &(Request, u64)| -> SeqId {
        engine.admit_as(request.clone(), Options { cache_salt: *cache_salt, ..Default::default() }).unwrap()
    };
    let ids: Vec<SeqId> = requests.iter().map(|r| admit(engine, r)).collect();
    let mut out = vec![(Trace::new(), Stats::default()); requests.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let at = ids.iter().position(|id| *id == event.seq).unwrap();
            out[at].0.push((event.token, event.fingerprint));
            out[at].1 = event.finish.map_or(out[at].1, |f| f.1);
        }
    }
    out
}

fn run(engine: &mut Engine, requests: &[Request]) -> Vec<(Trace, Stats)> {
    run_salted(engine, &requests.iter().map(|r| (r.clone(), 0)).collect::<Vec<_>>())
}

fn one(engine: &mut Engine, request: &Request) -> (Trace, Stats) {
    run(engine, std::slice::from_ref(request)).remove(0)
}

/// Prompts that share beginnings of all kinds, answered cold and then from the cache, one after another.
#[track_caller]
fn hits_equal_cold_runs(what: &str, mut cold: Engine, mut warm: Engine) {
    let vocab = cold.decoder().hyper.vocab as u32;
    let base = tokens(1, 420, vocab);
    let with = |n: usize, more: usize| [&base[..n], &tokens(100 + more as u32, more, vocab)].concat();
    // (prompt, tokens that may come from the cache at most)
    let prompts = [
        (base.clone(), 0),
        (base.clone(), 384),
        (with(420, 100), 384),
        (with(300, 90), 256),
        (with(300, 60), 256),
        (with(300, 91), 256),
        (with(20, 100), 0),
        (base[..64].to_vec(), 0),
        (base[..385].to_vec(), 384),
    ];
    let mut saved = 0;
    for (prompt, most) in &prompts {
        let request = request(prompt, 24);
        let (want, _) = one(&mut cold, &request);
        let (got, stats) = one(&mut warm, &request);
        let n = prompt.len();
        assert!(got == want, "{what}: a prompt of {n} with {} from the cache", stats.cached_tokens);
        assert!(stats.cached_tokens <= *most && stats.cached_tokens % 64 == 0, "{what}, {n}: {stats:?}");
        saved += stats.cached_tokens;
    }
    assert!(saved >= 384 + 384 + 256 + 384, "{what}: only {saved} tokens were found");
    assert_eq!((warm.pages().0, warm.slots().0), (0, 0), "{what}: all of it can be given to others");
}

#[test]
fn every_family_answers_from_the_cache_with_the_bits_of_a_cold_run() {
    for family in FAMILIES {
        hits_equal_cold_runs(family, fixture(family, None, COLD), fixture(family, None, CONFIG));
    }
}

#[test]
fn a_draft_finds_its_own_context_in_the_cache_too() {
    for (target, draft) in [("qwen3", "qwen3_dflash"), ("qwen3_5", "qwen3_5_dflash")] {
        let drafting = EngineConfig { draft_mode: Mode::Tree, budget: Some(15), ..CONFIG };
        let cold = fixture(target, Some(draft), EngineConfig { cache_bytes: 0, ..drafting });
        hits_equal_cold_runs(target, cold, fixture(target, Some(draft), drafting));
    }
}

#[test]
fn the_demo_pair_drafts_after_a_hit_exactly_as_after_a_cold_run() {
    let drafting = EngineConfig { draft_mode: Mode::Tree, budget: Some(22), ..CONFIG };
    let mut cold = demo_pair(DemoPair::WithDraft, EngineConfig { cache_bytes: 0, ..drafting });
    let mut warm = demo_pair(DemoPair::WithDraft, drafting);
    let text = "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n".repeat(9);
    let prompt = cold.tokenizer().encode(&text, overdraft_formats::tokenizer::Specials::Parse);
    let request = Request { sampling: Sampling::default(), ..request(&prompt, 60) };
    let (want, cold_stats) = one(&mut cold, &request);
    for round in 0..2 {
        let (got, stats) = one(&mut warm, &request);
        assert!(got == want, "round {round}");
        assert_eq!(stats.cached_tokens, if round == 0 { 0 } else { (prompt.len() - 1) / 64 * 64 });
        // A draft whose context was wrong would write the same text with other guesses.
        assert_eq!((stats.rounds, stats.accepted), (cold_stats.rounds, cold_stats.accepted), "round {round}");
    }
    assert!(cold_stats.accepted > 0);
}

#[test]
fn requests_at_once_share_a_prefix_and_other_salts_do_not() {
    for family in ["qwen3", "qwen3_5", "gpt_oss"] {
        let mut cold = fixture(family, None, COLD);
        let mut warm = fixture(family, None, CONFIG);
        let base = tokens(3, 330, 384);
        let requests: Vec<Request> =
            (0..4).map(|i| request(&[&base[..], &tokens(50 + i, 40, 384)].concat(), 20)).collect();
        let want: Vec<Trace> = requests.iter().map(|r| one(&mut cold, r).0).collect();
        one(&mut warm, &request(&base, 1));
        let salts = [0, 0, 7, 0];
        let jobs: Vec<(Request, u64)> = requests.into_iter().zip(salts).collect();
        for (((got, stats), want), salt) in run_salted(&mut warm, &jobs).iter().zip(&want).zip(salts) {
            assert!(got == want, "{family}, salt {salt}");
            assert_eq!(stats.cached_tokens, if salt == 0 { 320 } else { 0 }, "{family}, salt {salt}");
        }
    }
}

#[test]
fn a_cancelled_requests_prefix_stays() {
    for family in ["qwen3", "qwen3_5"] {
        let mut engine = fixture(family, None, CONFIG);
        let prompt = tokens(4, 300, 384);
        let id = engine.admit(request(&prompt, 50)).unwrap();
        while engine.step().unwrap().is_empty() {}
        engine.cancel(id).unwrap();
        assert_eq!(one(&mut engine, &request(&prompt, 2)).1.cached_tokens, 256, "{family}");
    }
}

#[test]
fn a_full_cache_makes_way_for_what_is_used() {
    // Room for a few prompts only.
    for (family, cache_bytes) in [("qwen3", 1 << 20), ("qwen3_5", 4 << 20), ("gpt_oss", 1 << 20)] {
        let config = EngineConfig { context: 512, max_seqs: 2, cache_bytes, ..CONFIG };
        let mut cold = fixture(family, None, EngineConfig { cache_bytes: 0, ..config });
        let mut warm = fixture(family, None, config);
        let total = warm.pages().1;
        let mut last = Vec::new();
        for round in 0..20u32 {
            let prompt = tokens(round % 7 + round % 3 * 100, 300 + round as usize % 5 * 40, 384);
            let request = request(&prompt, 2);
            let (got, _) = one(&mut warm, &request);
            assert!(got == one(&mut cold, &request).0, "{family}, round {round}");
            assert!(warm.cached_blocks() <= total, "{family}: {} blocks", warm.cached_blocks());
            last = prompt;
        }
        let again = one(&mut warm, &request(&last, 1)).1;
        assert_eq!(again.cached_tokens, (last.len() - 1) / 64 * 64, "{family}: the last one is still there");
        assert_eq!((warm.pages().0, warm.slots().0), (0, 0), "{family}");
    }
}
