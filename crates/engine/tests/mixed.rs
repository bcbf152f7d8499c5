//! Prompts beside sequences that write and draft: the same bits, whatever a step holds.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{DemoPair, demo_pair, repository};
use overdraft_cpu::Cpu;
use overdraft_engine::spec::drafter::NoDraft;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::scripted::{Scripted, ScriptedRound};
use overdraft_engine::{Drawing, Engine, EngineConfig, Request, Sampling, SeqId, Stats, Witness};
use overdraft_models::{Checkpoint, Decoder, Draft};

const VOCAB: u32 = 384;

fn fixture(target: &str, draft: Option<&str>, config: EngineConfig) -> Engine {
    let open = |name: &str| Checkpoint::open(&repository("tests/fixtures").join(name)).unwrap();
    let demo = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let mut decoder = Decoder::load(&open(target), |_, _| {}).unwrap();
    let draft = draft.map(|name| Draft::load(&open(name), &mut decoder).unwrap());
    Engine::new(decoder, draft, Arc::new(demo.tokenizer().unwrap()), Box::new(Cpu::new(2)), config).unwrap()
}

fn request(seed: u32, prompt: usize, max_tokens: usize) -> Request {
    let prompt =
        (0..prompt as u32).map(|i| (i.wrapping_mul(2654435761).wrapping_add(seed * 97) >> 7) % VOCAB);
    let sampling = Sampling::from(Drawing { temperature: 0.7, seed: 2, ..Default::default() });
    Request { prompt: prompt.collect(), max_tokens, sampling, stop_ids: vec![], stop_strings: vec![] }
}

type Trace = Vec<(u32, Option<u64>)>;

/// What a step brought to each, and the steps in which a prompt was read while others drafted and were accepted.
fn collect(engine: &mut Engine, ids: &[SeqId], out: &mut [(Trace, Stats)]) -> usize {
    let reading = ids.iter().filter_map(|id| engine.prompt_progress(*id)).any(|(read, of)| read < of);
    let mut brought = vec![0; ids.len()];
    for event in engine.step().unwrap() {
        let at = ids.iter().position(|id| *id == event.seq).unwrap();
        brought[at] += 1;
        out[at].0.push((event.token, event.fingerprint));
        out[at].1 = event.finish.map_or(out[at].1, |f| f.1);
    }
    usize::from(reading && brought.iter().any(|n| *n > 1))
}

#[test]
fn prompts_are_read_beside_drafts_and_change_no_bit() {
    for (target, draft) in [
        ("qwen3", Some("qwen3_dflash")),
        ("qwen3_5", Some("qwen3_5_dflash")),
        ("qwen3_next", None),
        ("gpt_oss", None),
    ] {
        let config = EngineConfig {
            context: 1024,
            max_seqs: 3,
            draft_mode: Mode::Tree,
            budget: Some(12),
            lookup: true,
            witness: Witness::Fingerprints,
            // Less than any step takes: a page at a time.
            token_gap: Some(Duration::from_nanos(1)),
            ..Default::default()
        };
        let mut engine = fixture(target, draft, config);
        let requests = [request(1, 40, 60), request(2, 500, 30), request(3, 333, 30)];
        let alone: Vec<Trace> = requests
            .iter()
            .map(|r| {
                let id = engine.admit_with(r.clone(), Box::new(NoDraft)).unwrap();
                let mut out = [(Trace::new(), Stats::default())];
                while !engine.is_idle() {
                    collect(&mut engine, &[id], &mut out);
                }
                std::mem::take(&mut out[0].0)
            })
            .collect();
        let text = |i: usize| alone[i].iter().map(|t| t.0).collect::<Vec<u32>>();
        let rounds = vec![
            ScriptedRound { length: 5, spoil_at: None, decoys: 1 },
            ScriptedRound { length: 4, spoil_at: Some(3), decoys: 2 },
        ];
        let mut ids = Vec::new();
        let mut out = vec![(Trace::new(), Stats::default()); 3];
        let mut mixed = 0;
        for (i, request) in requests.iter().enumerate() {
            let scripted = Scripted::new(text(i), request.prompt.len(), VOCAB, rounds.clone());
            ids.push(engine.admit_with(request.clone(), Box::new(scripted)).unwrap());
            // The first writes before the others come.
            for _ in 0..2 {
                mixed += collect(&mut engine, &ids, &mut out);
            }
        }
        while !engine.is_idle() {
            mixed += collect(&mut engine, &ids, &mut out);
        }
        for (i, (got, stats)) in out.iter().enumerate() {
            assert!(got == &alone[i], "{target}: sequence {i} wrote another text");
            assert!(stats.accepted > 10, "{target}, {i}: {stats:?}");
        }
        assert!(mixed >= 4, "{target}: drafts were accepted beside a prompt in {mixed} steps only");
    }
}

#[test]
fn a_draft_guesses_as_well_beside_prompts_as_without() {
    let config = EngineConfig {
        context: 1024,
        max_seqs: 2,
        draft_mode: Mode::Tree,
        budget: Some(15),
        token_gap: Some(Duration::from_nanos(1)),
        ..Default::default()
    };
    let mut engine = demo_pair(DemoPair::WithDraft, config);
    let text = "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n";
    let encode = |text: &str| engine.tokenizer().encode(text, overdraft_formats::tokenizer::Specials::Parse);
    let greedy = |prompt: Vec<u32>, max_tokens| Request {
        prompt,
        sampling: Sampling::default(),
        ..request(0, 1, max_tokens)
    };
    let (writer, reader) = (greedy(encode(text), 48), greedy(encode(&text.repeat(14)), 2));
    let mut figures = Vec::new();
    for others in [0, 1] {
        let id = engine.admit(writer.clone()).unwrap();
        let mut out = vec![(Trace::new(), Stats::default()); 2];
        collect(&mut engine, &[id], &mut out);
        let mut ids = vec![id];
        (0..others).for_each(|_| ids.push(engine.admit(reader.clone()).unwrap()));
        let mut mixed = 0;
        while !engine.is_idle() {
            mixed += collect(&mut engine, &ids, &mut out);
        }
        assert!(mixed >= 3 * others, "{mixed} steps had both");
        // A draft whose context was wrong would write the same text with other guesses.
        figures.push((out[0].0.clone(), out[0].1.rounds, out[0].1.accepted));
    }
    assert!(figures[0] == figures[1], "{:?} {:?}", figures[0].1, figures[1].1);
    assert!(figures[0].2 > 10);
}
