//! A drafter that knows the plain text and spoils it where it is told drives every accepted length at every alignment
//! to the grid and to pages, for every family: the bits of every logit stay those of plain decoding.

mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::{FAMILIES, repository};
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::scripted::{Curriculum, Scripted, ScriptedRound};
use overdraft_engine::{Drawing, Engine, EngineConfig, Request, Sampling, SeqId, Witness};
use overdraft_formats::tokenizer::Tokenizer;
use overdraft_formats::{Bytes, DType};
use overdraft_models::{Checkpoint, Decoder};
use overdraft_plan::{MAX_DRAFT_DEPTH, PAGE};

/// Any tokenizer serves to turn the fixtures' ids into text that nobody reads.
fn tokenizer() -> Arc<Tokenizer> {
    let demo = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    Arc::new(demo.tokenizer().unwrap())
}

fn engine(family: &str, dtype: DType, tokenizer: &Arc<Tokenizer>, max_seqs: usize, context: usize) -> Engine {
    let folder = Checkpoint::open(&repository(&format!("tests/fixtures/{family}"))).unwrap();
    let gguf = overdraft_models::convert::to_gguf(&folder, &|_| dtype).unwrap();
    let bytes = Bytes::from_vec(gguf.to_bytes().unwrap());
    let checkpoint = Checkpoint::from_gguf_bytes(family, bytes).unwrap();
    let decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let config = EngineConfig {
        context,
        max_seqs,
        draft_mode: Mode::Tree,
        budget: Some(63),
        witness: Witness::Fingerprints,
        ..Default::default()
    };
    Engine::new(decoder, None, tokenizer.clone(), Box::new(Cpu::new(2)), config).unwrap()
}

type Trace = Vec<(u32, Option<u64>)>;

fn request(prompt: &[u32], max_tokens: usize, sampling: &Sampling) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: sampling.clone(),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

/// Runs to the end; also returns, for each round of the first sequence, (root position, accepted drafts).
fn finish(engine: &mut Engine, ids: &[SeqId], prompt: usize) -> (Vec<Trace>, Vec<(usize, usize)>) {
    let mut traces = vec![Trace::new(); ids.len()];
    let mut rounds = Vec::new();
    while !engine.is_idle() {
        let before = traces[0].len();
        for event in engine.step().unwrap() {
            let i = ids.iter().position(|id| *id == event.seq).unwrap();
            traces[i].push((event.token, event.fingerprint));
        }
        if before > 0 && traces[0].len() > before {
            rounds.push((prompt + before - 1, traces[0].len() - before - 1));
        }
    }
    (traces, rounds)
}

fn plain(engine: &mut Engine, prompt: &[u32], n: usize, sampling: &Sampling) -> Trace {
    let silent = Scripted::new(vec![], prompt.len(), 384, vec![]);
    let id = engine.admit_with(request(prompt, n, sampling), Box::new(silent)).unwrap();
    finish(engine, &[id], prompt.len()).0.remove(0)
}

fn scripted(text: &Trace, prompt: usize, rounds: Vec<ScriptedRound>) -> Box<Scripted> {
    Box::new(Scripted::new(text.iter().map(|t| t.0).collect(), prompt, 384, rounds))
}

/// Rounds for `n` tokens, of which the prompt's pass writes the first.
fn rounds_for(prompt: usize, n: usize) -> Vec<ScriptedRound> {
    Curriculum::default().rounds(prompt, n - 1, true)
}

#[track_caller]
fn assert_same(got: &Trace, want: &Trace, what: &str) {
    let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    assert_eq!(same, want.len(), "{what}: parts from plain decoding at token {same}");
    assert_eq!(got.len(), want.len(), "{what}: length");
}

#[test]
fn every_family_keeps_its_bits_whatever_is_accepted() {
    let tokenizer = tokenizer();
    let prompt: Vec<u32> = (0..21).map(|i| (i * 53 + 7) % 384).collect();
    let sampled = Drawing { temperature: 0.8, top_p: 0.9, seed: 5, presence_penalty: 0.4, ..Drawing::GREEDY };
    let sampled = Sampling::from(sampled);
    for family in FAMILIES {
        for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
            let mut engine = engine(family, dtype, &tokenizer, 5, 512);
            for sampling in [&Sampling::default(), &sampled] {
                let what = format!("{family} {dtype} at {}", sampling.drawing.temperature);
                let want = plain(&mut engine, &prompt, 200, sampling);
                let drafter = scripted(&want, prompt.len(), rounds_for(prompt.len(), 200));
                let id = engine.admit_with(request(&prompt, 200, sampling), drafter).unwrap();
                let (got, rounds) = finish(&mut engine, &[id], prompt.len());
                assert_same(&got[0], &want, &what);
                assert!(rounds.len() < 60, "{what}: {} rounds for 200 tokens", rounds.len());
            }
            // Five at once, each with its own prompt and its own mistakes.
            let prompts: Vec<Vec<u32>> =
                (0..5u32).map(|s| prompt.iter().map(|t| (t * (s + 3)) % 384).collect()).collect();
            let want: Vec<Trace> = prompts.iter().map(|p| plain(&mut engine, p, 60, &sampled)).collect();
            let ids: Vec<SeqId> = prompts
                .iter()
                .zip(&want)
                .map(|(p, w)| {
                    let drafter = scripted(w, p.len(), rounds_for(p.len(), 60));
                    engine.admit_with(request(p, 60, &sampled), drafter).unwrap()
                })
                .collect();
            let (got, _) = finish(&mut engine, &ids, prompt.len());
            for (s, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_same(got, want, &format!("{family} {dtype}: sequence {s} of five"));
            }
        }
    }
}

#[test]
fn every_accepted_length_falls_on_every_alignment() {
    let tokenizer = tokenizer();
    let prompt: Vec<u32> = (0..9).map(|i| (i * 31 + 5) % 384).collect();
    let sampling = Sampling::from(Drawing { temperature: 1.0, seed: 3, ..Default::default() });
    // The hybrid has both a grid of 16 and pages; the windowed model gives pages back on the way.
    for family in ["qwen3_5", "gpt_oss"] {
        let mut engine = engine(family, DType::BF16, &tokenizer, 1, 4096);
        let n = 3000;
        let want = plain(&mut engine, &prompt, n, &sampling);
        let drafter = scripted(&want, prompt.len(), rounds_for(prompt.len(), n));
        let id = engine.admit_with(request(&prompt, n, &sampling), drafter).unwrap();
        let (got, rounds) = finish(&mut engine, &[id], prompt.len());
        assert_same(&got[0], &want, family);
        let seen: HashSet<(usize, usize)> = rounds.iter().map(|(root, n)| (root % 16, *n)).collect();
        let pages: HashSet<usize> = rounds.iter().map(|(root, _)| root % PAGE).collect();
        for alignment in 0..16 {
            for accepted in 0..=MAX_DRAFT_DEPTH {
                assert!(
                    seen.contains(&(alignment, accepted)),
                    "{family}: {accepted} accepted at {alignment} mod 16"
                );
            }
        }
        assert_eq!(pages.len(), PAGE, "{family}: roots at every place of a page");
    }
}
