//! Ends and budgets that fall inside a block: the text stops where plain decoding stops, and is the same to the bit.

mod common;

use common::{DemoPair, demo_pair};
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineConfig, Finish, Request, Sampling, Stats, Witness};
use overdraft_formats::tokenizer::Specials;

fn demo(config: EngineConfig) -> Engine {
    demo_pair(DemoPair::WithDraft, EngineConfig { witness: Witness::Fingerprints, ..config })
}

#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<(u32, Option<u64>)>,
    text: String,
    finish: Finish,
}

fn answer(engine: &mut Engine, request: Request) -> (Answer, Stats) {
    engine.admit(request).unwrap();
    let (mut tokens, mut text) = (Vec::new(), String::new());
    loop {
        for event in engine.step().unwrap() {
            tokens.push((event.token, event.fingerprint));
            text.push_str(&event.text);
            if let Some((finish, stats)) = event.finish {
                assert!(engine.is_idle());
                return (Answer { tokens, text, finish }, stats);
            }
        }
    }
}

const PROMPT: &str = "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n";

fn request(engine: &Engine, max_tokens: usize) -> Request {
    Request {
        prompt: engine.tokenizer().encode(PROMPT, Specials::Parse),
        max_tokens,
        sampling: Sampling::default(),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

/// Chain and tree, with more guesses than there can be.
const DRAFTING: [(Mode, Option<usize>); 3] =
    [(Mode::Chain, Some(15)), (Mode::Tree, Some(1_000_000)), (Mode::Auto, None)];

#[test]
fn a_context_that_ends_inside_a_block_ends_the_text_there() {
    let plain = EngineConfig { context: 256, ..Default::default() };
    let prompt = request(&demo(plain), 1).prompt.len();
    for left in [1, 2, 9, 17] {
        let config = EngineConfig { context: prompt + left, ..Default::default() };
        let mut engine = demo(config);
        let request = request(&engine, usize::MAX);
        let (want, _) = answer(&mut engine, request.clone());
        assert_eq!((want.finish, want.tokens.len()), (Finish::Context, left));
        for (draft_mode, budget) in DRAFTING {
            let mut engine = demo(EngineConfig { draft_mode, budget, lookup: true, ..config });
            let (got, stats) = answer(&mut engine, request.clone());
            assert_eq!(got, want, "{left} left, {draft_mode:?}");
            assert!(draft_mode == Mode::Auto || left < 3 || stats.drafted > 0, "{left} left, {draft_mode:?}");
        }
    }
}

#[test]
fn limits_and_stops_inside_a_block_cut_where_plain_decoding_would_have() {
    let config = EngineConfig { context: 256, ..Default::default() };
    let mut plain = demo(config);
    let r = request(&plain, 60);
    let (free, _) = answer(&mut plain, r.clone());
    // A stop string that begins in one token and ends in another, and a stop id, both well inside.
    let middle = free.text.char_indices().map(|c| c.0).find(|i| *i >= free.text.len() / 2).unwrap();
    let stop: String = free.text[middle..].chars().take(6).collect();
    let mut cases: Vec<Request> = [1, 2, 7, 17].map(|n| Request { max_tokens: n, ..r.clone() }).to_vec();
    cases.push(Request { stop_strings: vec![stop], ..r.clone() });
    cases.push(Request { stop_ids: vec![free.tokens[31].0], ..r.clone() });
    let want: Vec<Answer> = cases.iter().map(|c| answer(&mut plain, c.clone()).0).collect();
    let mut kinds: Vec<Finish> = want.iter().map(|a| a.finish).collect();
    kinds.dedup();
    assert_eq!(kinds, [Finish::MaxTokens, Finish::StopString, Finish::EndToken]);
    for (draft_mode, budget) in DRAFTING {
        let mut engine = demo(EngineConfig { draft_mode, budget, lookup: true, ..config });
        for (i, (case, want)) in cases.iter().zip(&want).enumerate() {
            assert_eq!(answer(&mut engine, case.clone()).0, *want, "case {i}, {draft_mode:?}");
        }
    }
}

#[test]
#[rustfmt::skip]
fn a_budget_of_nothing_drafts_nothing_and_one_of_a_million_drafts_what_a_step_holds() {
    let config = EngineConfig { context: 256, ..Default::default() };
    let mut plain = demo(config);
    let r = request(&plain, 40);
    let (want, _) = answer(&mut plain, r.clone());
    for (draft_mode, budget, drafts) in [
        (Mode::Chain, 0,          0..=0),
        (Mode::Tree,  0,          0..=0),
        (Mode::Auto,  0,          0..=0),
        (Mode::Chain, 1_000_000,  8..=15),
        (Mode::Tree,  1_000_000,  40..=63),
        (Mode::Tree,  usize::MAX, 40..=63),
    ] {
        let mut engine = demo(EngineConfig { draft_mode, budget: Some(budget), ..config });
        let (got, stats) = answer(&mut engine, r.clone());
        assert_eq!(got, want, "{draft_mode:?} of {budget}");
        let a_round = stats.drafted / stats.rounds;
        assert!(drafts.contains(&a_round), "{draft_mode:?} of {budget}: {a_round} a round");
    }
}
