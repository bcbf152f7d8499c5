//! Rounds in which acceptance is set: as many tokens as asked for, by the real round, and `auto` learns from it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{DemoPair, demo_pair};
use overdraft_engine::spec::forced::Forced;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Clock, Engine, EngineConfig, Request, Sampling, Stats};
use overdraft_formats::tokenizer::Specials;

/// By which every look takes as long: rows are free, and a draft's pass costs about a step.
struct Ticking {
    start: Instant,
    looks: AtomicU64,
}

impl Clock for Ticking {
    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.looks.fetch_add(1, Ordering::Relaxed))
    }
}

fn demo(draft_mode: Mode, budget: Option<usize>) -> Engine {
    let config = EngineConfig { context: 512, max_seqs: 3, draft_mode, budget, ..Default::default() };
    let mut engine = demo_pair(DemoPair::WithDraft, config);
    engine.set_clock(Arc::new(Ticking { start: Instant::now(), looks: AtomicU64::new(0) }));
    engine
}

/// The tokens and figures of so many texts written at once.
fn write(engine: &mut Engine, n: usize, max_tokens: usize) -> Vec<(Vec<u32>, Stats)> {
    let prompts = ["import os\n", "def main(args):\n", "class Cache:\n    def get(self, key):\n"];
    let mut ids = Vec::new();
    for prompt in &prompts[..n] {
        let prompt = engine.tokenizer().encode(prompt, Specials::Parse);
        let sampling = Sampling::default();
        let request = Request { prompt, max_tokens, sampling, stop_ids: vec![], stop_strings: vec![] };
        ids.push(engine.admit(request).unwrap());
    }
    let mut written = vec![(Vec::new(), Stats::default()); n];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let at = ids.iter().position(|id| *id == event.seq).unwrap();
            written[at].0.push(event.token);
            written[at].1 = event.finish.map_or(written[at].1, |f| f.1);
        }
    }
    written
}

#[test]
fn rounds_write_as_many_tokens_as_they_are_told_alone_and_together() {
    let mut engine = demo(Mode::Chain, Some(7));
    // 40 tokens after the first, in rounds of so many each; the last may have less room.
    for (tokens, rounds) in [(1.0, 40), (2.5, 16), (5.0, 8), (8.0, 5)] {
        engine.force_acceptance(Forced::new(tokens));
        for n in [1, 3] {
            for (text, stats) in write(&mut engine, n, 41) {
                assert_eq!((text.len(), stats.rounds), (41, rounds), "{tokens} tokens a round, {n} at once");
                assert_eq!(stats.accepted + stats.rounds, 40, "{tokens} tokens a round, {n} at once");
            }
        }
    }
    engine.force_acceptance(None);
    let free = write(&mut engine, 3, 41);
    let plain = write(&mut demo(Mode::Off, None), 3, 41);
    for (free, plain) in free.iter().zip(&plain) {
        assert_eq!(free.0, plain.0, "what was forced is forgotten");
    }
}

#[test]
fn auto_drafts_where_guesses_are_said_to_come_true_and_stops_where_not() {
    let tokens_a_round = |tokens: f64| {
        let mut engine = demo(Mode::Auto, None);
        engine.force_acceptance(Forced::new(tokens));
        let (_, stats) = write(&mut engine, 1, 120).remove(0);
        (stats.tokens_per_round(), stats.drafted as f64 / stats.rounds as f64)
    };
    let (got, drafted) = tokens_a_round(1.0);
    assert!(got == 1.0 && drafted < 3.0, "{got} tokens and {drafted} guesses a round");
    let (got, drafted) = tokens_a_round(8.0);
    assert!(got > 5.0 && drafted > 6.0, "{got} tokens and {drafted} guesses a round");
}

#[test]
fn what_one_way_of_going_on_learned_is_not_the_others() {
    let mut engine = demo(Mode::Auto, None);
    let anew = |engine: &mut Engine| {
        let mut other = engine.inexperience();
        engine.exchange_experience(&mut other);
        assert_eq!(engine.plain_seconds(), None);
        let stats = write(engine, 1, 60).remove(0).1;
        engine.exchange_experience(&mut other);
        (stats.rounds, stats.drafted)
    };
    // A step that records its plan teaches nothing, so only then is every run the same.
    (0..3).for_each(|_| {
        anew(&mut engine);
    });
    let first = anew(&mut engine);
    write(&mut engine, 3, 60);
    assert!(engine.plain_seconds().is_some());
    assert_eq!(anew(&mut engine), first, "begun anew, it goes the same way");
    assert!(engine.plain_seconds().is_some());
}
