//! Texts by a drafter that knows them and spoils them where it is told, on any backend: the bits of every logit are to be those of plain decoding.

use std::sync::Arc;

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::scripted::{Curriculum, Scripted, ScriptedRound};
use overdraft_engine::{Drawing, Engine, EngineConfig, Request, Sampling, SeqId, Witness};
use overdraft_formats::tokenizer::Tokenizer;
use overdraft_models::{Checkpoint, Decoder};
use overdraft_plan::Backend;

/// Of the fixtures.
const VOCAB: u32 = 384;

/// Any tokenizer serves to turn the fixtures' ids into text that nobody reads.
pub(crate) fn engine(
    checkpoint: &Checkpoint,
    tokenizer: &Arc<Tokenizer>,
    backend: Box<dyn Backend>,
    max_seqs: usize,
    context: usize,
) -> Engine {
    let decoder = Decoder::load(checkpoint, |_, _| {}).unwrap();
    let config = EngineConfig {
        context,
        max_seqs,
        draft_mode: Mode::Tree,
        budget: Some(63),
        witness: Witness::Fingerprints,
        ..Default::default()
    };
    Engine::new(decoder, None, tokenizer.clone(), backend, config).unwrap()
}

pub(crate) type Trace = Vec<(u32, Option<u64>)>;

pub(crate) fn request(prompt: &[u32], max_tokens: usize, sampling: &Sampling) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: sampling.clone(),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

/// Runs to the end; also returns, for each round of the first sequence, (root position, accepted drafts).
pub(crate) fn finish(engine: &mut Engine, ids: &[SeqId], prompt: usize) -> (Vec<Trace>, Vec<(usize, usize)>) {
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

pub(crate) fn plain(engine: &mut Engine, prompt: &[u32], n: usize, sampling: &Sampling) -> Trace {
    let silent = Scripted::new(vec![], prompt.len(), VOCAB, vec![]);
    let id = engine.admit_with(request(prompt, n, sampling), Box::new(silent)).unwrap();
    finish(engine, &[id], prompt.len()).0.remove(0)
}

pub(crate) fn scripted(text: &Trace, prompt: usize, rounds: Vec<ScriptedRound>) -> Box<Scripted> {
    Box::new(Scripted::new(text.iter().map(|t| t.0).collect(), prompt, VOCAB, rounds))
}

/// Rounds for `n` tokens, of which the prompt's pass writes the first.
pub(crate) fn rounds_for(prompt: usize, n: usize) -> Vec<ScriptedRound> {
    Curriculum::default().rounds(prompt, n - 1, true)
}

pub(crate) fn same(got: &Trace, want: &Trace, what: &str) -> Result<(), String> {
    let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    let is_same = same == want.len() && got.len() == want.len();
    is_same.then_some(()).ok_or_else(|| {
        format!(
            "{what}: parts from plain decoding at token {same} of {}, of {} written",
            want.len(),
            got.len()
        )
    })
}

/// With room for five: one text, greedy and drawn, by every length that fits; then five at once. Says where a text parts from
/// plain decoding.
pub(crate) fn keeps_its_bits(engine: &mut Engine, what: &str) -> Result<(), String> {
    let prompt: Vec<u32> = (0..21).map(|i| (i * 53 + 7) % VOCAB).collect();
    let sampled = Drawing { temperature: 0.8, top_p: 0.9, seed: 5, presence_penalty: 0.4, ..Drawing::GREEDY };
    let sampled = Sampling::from(sampled);
    for sampling in [&Sampling::default(), &sampled] {
        let what = format!("{what} at {}", sampling.drawing.temperature);
        let want = plain(engine, &prompt, 200, sampling);
        let drafter = scripted(&want, prompt.len(), rounds_for(prompt.len(), 200));
        let id = engine.admit_with(request(&prompt, 200, sampling), drafter).unwrap();
        let (got, rounds) = finish(engine, &[id], prompt.len());
        same(&got[0], &want, &what)?;
        if rounds.len() >= 60 {
            return Err(format!("{what}: {} rounds for 200 tokens", rounds.len()));
        }
    }
    // Five at once, each with its own prompt and its own mistakes.
    let prompts: Vec<Vec<u32>> =
        (0..5u32).map(|s| prompt.iter().map(|t| (t * (s + 3)) % VOCAB).collect()).collect();
    let want: Vec<Trace> = prompts.iter().map(|p| plain(engine, p, 60, &sampled)).collect();
    let ids: Vec<SeqId> = prompts
        .iter()
        .zip(&want)
        .map(|(p, w)| {
            let drafter = scripted(w, p.len(), rounds_for(p.len(), 60));
            engine.admit_with(request(p, 60, &sampled), drafter).unwrap()
        })
        .collect();
    let (got, _) = finish(engine, &ids, prompt.len());
    for (s, (got, want)) in got.iter().zip(&want).enumerate() {
        same(got, want, &format!("{what}: sequence {s} of five"))?;
    }
    Ok(())
}
