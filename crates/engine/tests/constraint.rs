//! A constrained text is the same with and without speculation, and never breaks its constraint.

mod common;

use common::{DemoPair, demo_pair};
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{
    Constraint, Engine, EngineConfig, EngineError, Finish, Options, Request, Sampling, Stats, Witness,
};
use overdraft_formats::tokenizer::Specials;

/// Lines of at most so many tokens, so many lines, and of tokens whose id leaves a remainder: a shape that the model
/// does not write by itself but that its drafts often fit.
#[derive(Clone)]
struct Lines {
    newline: Vec<bool>,
    longest: usize,
    lines: usize,
    given: Vec<u32>,
}

impl Lines {
    fn new(engine: &Engine, longest: usize, lines: usize) -> Self {
        let tokenizer = engine.tokenizer();
        let newline = (0..tokenizer.vocab_len() as u32)
            .map(|t| tokenizer.token_bytes(t).is_some_and(|b| b.contains(&b'\n')))
            .collect();
        Self { newline, longest, lines, given: Vec::new() }
    }

    fn is_newline(&self, token: u32) -> bool {
        self.newline.get(token as usize).copied().unwrap_or(false)
    }

    fn may_follow(&self, token: u32) -> bool {
        let in_line = self.given.iter().rev().take_while(|t| !self.is_newline(**t)).count();
        let lines = self.given.iter().filter(|t| self.is_newline(**t)).count();
        if lines >= self.lines {
            return false;
        }
        if in_line >= self.longest { self.is_newline(token) } else { token % 5 != 3 }
    }
}

impl Constraint for Lines {
    fn mask(&mut self, allowed: &mut [u32]) {
        for token in (0..self.newline.len() as u32).filter(|t| self.may_follow(*t)) {
            allowed[token as usize / 32] |= 1 << (token % 32);
        }
    }

    fn accept(&mut self, token: u32) -> bool {
        let may = self.may_follow(token);
        if may {
            self.given.push(token);
        }
        may
    }

    fn rollback(&mut self, n: usize) {
        self.given.truncate(self.given.len().checked_sub(n).expect("never more than was given"));
    }
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
        sampling: Sampling { temperature, top_p: 0.9, seed: 3, ..Default::default() },
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
    let constraint = Lines::new(engine, longest, 6);
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
        let mut kept = Lines::new(&plain, longest, 6);
        assert!(want[0].tokens.iter().all(|t| kept.accept(t.0)), "the text keeps to it");
        let unconstrained: Vec<u32> = want[1].tokens.iter().map(|t| t.0).collect();
        let mut fresh = Lines::new(&plain, longest, 6);
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
