//! A constrained text is the same with and without speculation, and never breaks its constraint.

mod common;

use common::{DemoPair, demo_pair};
use overdraft_engine::spec::by_rule::ByRule;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{
    Constraint, Drawing, Engine, EngineConfig, EngineError, Finish, Options, Request, Sampling, Stats,
    Witness,
};
use overdraft_formats::tokenizer::Specials;

/// Lines of at most so many tokens, six lines, and of tokens whose id leaves a remainder: a shape that the model does not
/// write by itself but that its drafts often fit.
fn short_lines(engine: &Engine, longest: usize) -> impl Constraint + use<> {
    let tokenizer = engine.tokenizer();
    let has_break = |t| tokenizer.token_bytes(t).is_some_and(|b| b.contains(&b'\n'));
    let newline: Vec<bool> = (0..tokenizer.vocab_len() as u32).map(has_break).collect();
    let is_newline = move |token: &u32| newline.get(*token as usize).copied().unwrap_or(false);
    ByRule::new(tokenizer.vocab_len(), move |given, token| {
        let in_line = given.iter().rev().take_while(|t| !is_newline(t)).count();
        let lines = given.iter().filter(|t| is_newline(t)).count();
        let fits = if in_line >= longest { is_newline(&token) } else { token % 5 != 3 };
        lines < 6 && fits
    })
}

fn demo(draft_mode: Mode, budget: Option<usize>) -> Engine {
    let config = EngineConfig {
        context: 512,
        max_seqs: 3,
        draft_mode,
        budget,
        lookup: draft_mode == Mode::Auto,
        witness: Witness::Fingerprints,
        ..Default::default()
    };
    demo_pair(DemoPair::WithDraft, config)
}

const PROMPT: &str = "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n";

fn request(engine: &Engine, temperature: f32) -> Request {
    Request {
        prompt: engine.tokenizer().encode(PROMPT, Specials::Parse),
        max_tokens: 200,
        sampling: Sampling::from(Drawing { temperature, top_p: 0.9, seed: 3, ..Default::default() }),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<(u32, Option<u64>)>,
    finish: Option<Finish>,
}

/// One that is constrained, with one beside it that is not.
fn run(engine: &mut Engine, temperature: f32, longest: usize) -> ([Answer; 2], Stats) {
    let constraint = short_lines(engine, longest);
    let free = Request { max_tokens: 40, ..request(engine, temperature) };
    let options = Options { constraint: Some(Box::new(constraint)), ..Default::default() };
    let ids = [engine.admit_as(request(engine, temperature), options).unwrap(), engine.admit(free).unwrap()];
    let mut answers = ids.map(|_| Answer { tokens: vec![], finish: None });
    let mut stats = Stats::default();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let at = usize::from(event.seq == ids[1]);
            answers[at].tokens.push((event.token, event.fingerprint));
            if let Some((finish, figures)) = event.finish {
                answers[at].finish = Some(finish);
                stats = if at == 0 { figures } else { stats };
            }
        }
    }
    (answers, stats)
}

#[test]
fn a_constrained_text_is_the_same_to_the_bit_with_and_without_drafts() {
    for (temperature, longest) in [(0.0, 8), (0.9, 5)] {
        let mut plain = demo(Mode::Off, None);
        let (want, _) = run(&mut plain, temperature, longest);
        assert_eq!(want[0].finish, Some(Finish::Constraint), "six lines end it");
        let mut kept = short_lines(&plain, longest);
        assert!(want[0].tokens.iter().all(|t| kept.accept(t.0)), "the text keeps to it");
        let unconstrained: Vec<u32> = want[1].tokens.iter().map(|t| t.0).collect();
        let mut fresh = short_lines(&plain, longest);
        assert!(!unconstrained.iter().all(|t| fresh.accept(*t)), "the model alone would not");
        for (mode, budget) in [(Mode::Tree, Some(22)), (Mode::Auto, None)] {
            let (got, stats) = run(&mut demo(mode, budget), temperature, longest);
            assert!(got == want, "{mode:?}, T = {temperature}: another text");
            assert!(
                mode == Mode::Auto || stats.accepted > 0,
                "{mode:?}, T = {temperature}: nothing accepted"
            );
        }
    }
}

/// Its mask allows everything, and it refuses whatever comes.
struct Contradiction;

impl Constraint for Contradiction {
    fn mask(&mut self, allowed: &mut [u32]) {
        allowed.fill(u32::MAX);
    }

    fn accept(&mut self, _: u32) -> bool {
        false
    }

    fn rollback(&mut self, _: usize) {}
}

#[test]
fn a_constraint_that_contradicts_itself_ends_its_request_alone() {
    let mut engine = demo(Mode::Tree, Some(22));
    let (free, broken) = (request(&engine, 0.0), request(&engine, 0.0));
    let free = engine.admit(Request { max_tokens: 8, ..free }).unwrap();
    let options = Options { constraint: Some(Box::new(Contradiction)), ..Default::default() };
    let broken = engine.admit_as(broken, options).unwrap();
    let (mut written, mut failed) = (0, None);
    while !engine.is_idle() {
        match engine.step() {
            Ok(events) => written += events.iter().filter(|e| e.seq == free).count(),
            Err(error @ EngineError::Constraint { .. }) => failed = error.failed_sequence(),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((written, failed), (8, Some(broken)));
}
