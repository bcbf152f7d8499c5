//! Rounds that a backend runs by itself, one ahead of the engine, write what the engine's own rounds write: to the last bit of
//! every logit, with texts that come, go, end and are stopped at any place of a block.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{DemoPair, demo_pair_on, passes_on};
use overdraft_cpu::Cpu;
use overdraft_engine::spec::forced::Forced;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{
    Drawing, Engine, EngineConfig, Event, Finish, Options, Origin, Request, Sampling, SeqId, Speculative,
    Witness,
};
use overdraft_formats::tokenizer::Specials;
use overdraft_plan::{Backend, BackendError, Choice, DefinedRounds, NO_TOKEN, PlanId, StateId, Step};

const PROMPTS: [&str; 5] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "<|im_start|>user\nWrite a Python function `read_json`.<|im_end|>\n<|im_start|>assistant\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "x",
    "def is_prime(n):\n",
];

/// Rounds that the engine asks for before it takes one.
const AHEAD: usize = 2;

/// The engine's rounds, and the backend's with how many of them ran.
fn both(config: EngineConfig) -> [(Engine, Arc<AtomicUsize>); 2] {
    both_with(DefinedRounds::new(Cpu::new(1)), DemoPair::WithDraft, config)
}

fn both_with(
    rounds: DefinedRounds<Cpu>,
    pair: DemoPair,
    config: EngineConfig,
) -> [(Engine, Arc<AtomicUsize>); 2] {
    let count = rounds.count();
    let engine = |backend: Box<dyn Backend>| demo_pair_on(backend, pair, config);
    [(engine(Box::new(Cpu::new(1))), Arc::default()), (engine(Box::new(rounds)), count)]
}

fn config(draft_mode: Mode, budget: Option<usize>, witness: Witness) -> EngineConfig {
    EngineConfig { context: 512, max_seqs: 5, draft_mode, budget, witness, ..Default::default() }
}

fn request(engine: &Engine, prompt: &str, max_tokens: usize) -> Request {
    Request {
        prompt: engine.tokenizer().encode(prompt, Specials::Parse),
        max_tokens,
        sampling: sampling(prompt),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

/// Some take the best token, some draw.
fn sampling(prompt: &str) -> Sampling {
    let drawn = Sampling::from(Drawing { temperature: 0.7, top_p: 0.9, seed: 11, ..Default::default() });
    if prompt.len().is_multiple_of(2) { Sampling::default() } else { drawn }
}

/// All that a text is: its tokens with what they were drawn from, its characters, its end.
#[derive(Debug, Default, PartialEq)]
struct Text {
    tokens: Vec<(u32, Option<u64>)>,
    text: String,
    finish: Option<Finish>,
}

impl Text {
    fn add(&mut self, event: Event) {
        assert_eq!(self.finish, None, "nothing comes after the end");
        self.tokens.push((event.token, event.fingerprint));
        self.text.push_str(&event.text);
        self.finish = event.finish.map(|f| f.0);
    }
}

/// Runs to the end; a request comes every `gap` steps.
fn write(engine: &mut Engine, requests: &[Request], gap: usize) -> Vec<Text> {
    write_as(engine, requests, gap, |_| Speculative::default())
}

/// The same, where not all draft alike.
fn write_as(
    engine: &mut Engine,
    requests: &[Request],
    gap: usize,
    speculative: impl Fn(usize) -> Speculative,
) -> Vec<Text> {
    let mut ids: Vec<SeqId> = Vec::new();
    let mut texts: Vec<Text> = requests.iter().map(|_| Text::default()).collect();
    for step in 0usize.. {
        if ids.len() < requests.len() {
            if step.is_multiple_of(gap) {
                let options = Options { speculative: speculative(ids.len()), ..Default::default() };
                ids.push(engine.admit_as(requests[ids.len()].clone(), options).unwrap());
            }
        } else if engine.is_idle() {
            break;
        }
        for event in engine.step().unwrap() {
            texts[ids.iter().position(|id| *id == event.seq).unwrap()].add(event);
        }
    }
    texts
}

#[test]
fn five_that_come_and_go_write_the_same_in_rounds_of_the_backend() {
    let modes = [(Mode::Chain, Some(7)), (Mode::Tree, Some(15)), (Mode::Tree, None), (Mode::Auto, None)];
    for witness in [Witness::Fingerprints, Witness::None] {
        for (mode, budget) in modes {
            let config = EngineConfig { lookup: budget.is_none(), ..config(mode, budget, witness) };
            let [(mut own, _), (mut resident, count)] = both(config);
            for (n, gap) in [(1, 1), (5, 4)] {
                let requests: Vec<Request> = PROMPTS[..n].iter().map(|p| request(&own, p, 40)).collect();
                let wanted = write(&mut own, &requests, gap);
                let got = write(&mut resident, &requests, gap);
                assert_eq!(got, wanted, "{n} with {mode:?} {budget:?}, {witness:?}");
            }
            let rounds = count.load(Ordering::Relaxed);
            assert!(mode == Mode::Auto || rounds > 8, "{mode:?} {budget:?}: only {rounds} rounds");
        }
    }
}

/// Bias and penalties of each kind, greedy and drawn.
fn changing(nth: usize) -> Sampling {
    let counted = Drawing { repetition_penalty: 1.3, presence_penalty: 0.4, ..Default::default() };
    let drawn = Drawing { temperature: 0.9, top_p: 0.95, frequency_penalty: 0.3, seed: 5, ..counted };
    let bias = vec![(10, 1.5), (300, -2.0), (11, f32::NEG_INFINITY), (300, 0.5)];
    match nth % 4 {
        0 => counted.into(),
        1 => Sampling { drawing: drawn, bias },
        2 => Sampling { bias, ..Default::default() },
        _ => Drawing { top_k: 20, ..drawn }.into(),
    }
}

#[test]
fn bias_and_penalties_count_in_rounds_of_the_backend_as_in_steps() {
    let modes = [(Mode::Chain, Some(7)), (Mode::Tree, Some(15)), (Mode::Auto, None)];
    for (mode, budget) in modes {
        for witness in [Witness::Fingerprints, Witness::None] {
            let [(mut own, _), (mut resident, count)] = both(config(mode, budget, witness));
            // The last write beside texts that nothing changes.
            for (first, n) in [(0, 1), (1, 1), (2, 1), (0, 5)] {
                let requests = PROMPTS[first..first + n].iter().enumerate().map(|(i, prompt)| {
                    let plain = request(&own, prompt, 40);
                    if i == 4 { plain } else { Request { sampling: changing(first + i), ..plain } }
                });
                let requests: Vec<Request> = requests.collect();
                let wanted = write(&mut own, &requests, 3);
                let got = write(&mut resident, &requests, 3);
                assert_eq!(got, wanted, "{n} from {first} with {mode:?} {budget:?}, {witness:?}");
            }
            let rounds = count.load(Ordering::Relaxed);
            assert!(mode == Mode::Auto || rounds > 20, "{mode:?} {budget:?}: only {rounds} rounds");
        }
    }
}

#[test]
fn plain_decoding_is_rounds_of_the_backend_with_a_draft_or_without() {
    for (pair, witness) in [
        (DemoPair::TargetAlone, Witness::Fingerprints),
        (DemoPair::TargetAlone, Witness::None),
        (DemoPair::WithDraft, Witness::None),
    ] {
        let rounds = DefinedRounds::new(Cpu::new(1));
        let [(mut own, _), (mut resident, count)] = both_with(rounds, pair, config(Mode::Off, None, witness));
        for (n, gap, tokens) in [(1, 1, 70), (5, 3, 40)] {
            let requests = PROMPTS[..n].iter().enumerate().map(|(i, prompt)| {
                let plain = request(&own, prompt, tokens);
                if i % 2 == 0 { plain } else { Request { sampling: changing(i), ..plain } }
            });
            let requests: Vec<Request> = requests.collect();
            let before = count.load(Ordering::Relaxed);
            let wanted = write(&mut own, &requests, gap);
            let got = write(&mut resident, &requests, gap);
            assert_eq!(got, wanted, "{n}, {witness:?}");
            let rounds = count.load(Ordering::Relaxed) - before;
            assert!(rounds + 16 > tokens, "{n}, {witness:?}: only {rounds} rounds");
        }
    }
}

#[test]
fn texts_that_draft_now_and_then_write_in_rounds_of_both_kinds() {
    let [(mut own, _), (mut resident, count)] = both(config(Mode::Auto, None, Witness::None));
    // So hot that no guess comes true: most of the text is written plainly, and now and then the draft is asked again.
    let hot = Drawing { temperature: 4.0, seed: 3, ..Default::default() };
    let request = Request { sampling: hot.into(), ..request(&own, PROMPTS[0], 200) };
    let [wanted, got] = [&mut own, &mut resident].map(|e| write(e, std::slice::from_ref(&request), 1));
    assert_eq!(got, wanted);
    // All but the first ones: waiting taps enter the draft's context inside a round.
    let rounds = count.load(Ordering::Relaxed);
    assert!(rounds > 175, "only {rounds} rounds");
}

#[test]
fn texts_that_draft_and_texts_that_do_not_share_rounds() {
    let modes = [(Mode::Chain, Some(7)), (Mode::Tree, Some(15)), (Mode::Tree, None), (Mode::Auto, None)];
    for (mode, budget) in modes {
        for witness in [Witness::Fingerprints, Witness::None] {
            let [(mut own, _), (mut resident, count)] = both(config(mode, budget, witness));
            let requests: Vec<Request> = PROMPTS.iter().map(|p| request(&own, p, 60)).collect();
            for first_plain in [0, 1] {
                let speculative = |nth: usize| match nth % 2 == first_plain {
                    true => Speculative::Off,
                    false => Speculative::default(),
                };
                let [wanted, got] =
                    [&mut own, &mut resident].map(|engine| write_as(engine, &requests, 2, speculative));
                assert_eq!(got, wanted, "{mode:?} {budget:?}, {witness:?}, plain from {first_plain}");
            }
            // Those that never draft need 60 each, beside whom the others draft.
            let rounds = count.load(Ordering::Relaxed);
            assert!(rounds > 2 * 50, "{mode:?} {budget:?}: only {rounds} rounds");
        }
    }
}

#[test]
fn what_is_found_in_a_text_is_followed_in_rounds_of_the_backend() {
    for (mode, budget) in [(Mode::Chain, Some(5)), (Mode::Tree, None), (Mode::Auto, None)] {
        let config = EngineConfig { lookup: true, ..config(mode, budget, Witness::None) };
        let rounds = DefinedRounds::new(Cpu::new(1));
        let [(mut own, _), (mut resident, count)] = both_with(rounds, DemoPair::TargetAlone, config);
        for n in [1, 5] {
            // Long enough to come to repeat themselves, and long past 16 taps.
            let requests: Vec<Request> = PROMPTS[..n].iter().map(|p| request(&own, p, 120)).collect();
            let wanted = write(&mut own, &requests, 2);
            let ids: Vec<SeqId> = requests.iter().map(|r| resident.admit(r.clone()).unwrap()).collect();
            let mut got: Vec<Text> = ids.iter().map(|_| Text::default()).collect();
            let (before, mut accepted) = (count.load(Ordering::Relaxed), 0);
            while !resident.is_idle() {
                for event in resident.step().unwrap() {
                    accepted += usize::from(event.origin == Origin::Accepted);
                    got[ids.iter().position(|id| *id == event.seq).unwrap()].add(event);
                }
            }
            assert_eq!(got, wanted, "{n} with {mode:?} {budget:?}");
            let rounds = count.load(Ordering::Relaxed) - before;
            assert!(rounds > 20, "{n} with {mode:?} {budget:?}: only {rounds} rounds");
            // How much of it is worth its rows, where that is asked, is by this machine's time.
            let enough = budget.is_none() || accepted > 10;
            assert!(enough, "{n} with {mode:?} {budget:?}: only {accepted} came true in {rounds} rounds");
        }
    }
}

#[test]
fn rounds_of_nobody_beforehand_change_no_text() {
    for (mode, budget) in [(Mode::Off, None), (Mode::Chain, Some(7)), (Mode::Auto, None)] {
        let [(mut own, _), (mut resident, count)] = both(config(mode, budget, Witness::None));
        resident.warm_up(Duration::from_secs(60)).unwrap();
        let beforehand = count.load(Ordering::Relaxed);
        assert!(beforehand >= 4, "one text and five, twice each: {beforehand}");
        own.warm_up(Duration::from_secs(60)).unwrap();
        for n in [1, 5] {
            let requests: Vec<Request> = PROMPTS[..n].iter().map(|p| request(&own, p, 40)).collect();
            assert_eq!(write(&mut resident, &requests, 2), write(&mut own, &requests, 2), "{mode:?}, {n}");
        }
        // Nobody is moved while others write.
        resident.admit(request(&own, PROMPTS[0], 4)).unwrap();
        let before = count.load(Ordering::Relaxed);
        resident.warm_up(Duration::from_secs(60)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), before);
    }
}

#[test]
fn a_text_whose_list_has_no_room_left_goes_on_without_rounds() {
    const ROOM: usize = 400;
    let rounds = DefinedRounds::new(Cpu::new(1)).with_listed_room(ROOM);
    let [(mut own, _), (mut resident, count)] =
        both_with(rounds, DemoPair::WithDraft, config(Mode::Chain, Some(7), Witness::None));
    let counted = Drawing { presence_penalty: 0.7, ..Default::default() };
    // Tokens with bias; then whether rounds run at all, and to the end. Those of a counted text come on top.
    let rows = [
        (Drawing::GREEDY, ROOM, true, true),
        (Drawing::GREEDY, ROOM + 1, false, false),
        (counted, ROOM - 200, true, true),
        (counted, ROOM - 80, true, false),
        (counted, ROOM - 10, false, false),
    ];
    for (drawing, listed, begins, stays) in rows {
        // The last of a vocabulary hardly occur.
        let vocab = own.decoder().hyper.vocab as u32;
        let bias = (vocab - listed as u32..vocab).map(|token| (token, -0.25)).collect();
        let request = Request { sampling: Sampling { drawing, bias }, ..request(&own, PROMPTS[0], 120) };
        let wanted = write(&mut own, std::slice::from_ref(&request), 1).remove(0);
        let before = count.load(Ordering::Relaxed);
        resident.admit(request).unwrap();
        let (mut got, mut at_half) = (Text::default(), 0);
        while !resident.is_idle() {
            resident.step().unwrap().into_iter().for_each(|event| got.add(event));
            if got.tokens.len() < 80 {
                at_half = count.load(Ordering::Relaxed);
            }
        }
        assert_eq!(got, wanted, "{listed}");
        let rounds = (at_half > before, count.load(Ordering::Relaxed) > at_half + AHEAD);
        assert_eq!(rounds, (begins, stays), "{listed}");
    }
}

#[test]
fn what_is_forced_upon_rounds_is_forced_upon_those_of_the_backend() {
    for (mode, budget, tokens) in
        [(Mode::Chain, Some(7), 1.0), (Mode::Chain, Some(7), 5.0), (Mode::Tree, Some(15), 2.5)]
    {
        let [(mut own, _), (mut resident, count)] = both(config(mode, budget, Witness::None));
        let request = request(&own, PROMPTS[0], 60);
        let [wanted, got] = [&mut own, &mut resident].map(|engine| {
            engine.force_acceptance(Forced::new(tokens));
            write(engine, std::slice::from_ref(&request), 1)
        });
        assert_eq!(got, wanted, "{mode:?} {budget:?}, {tokens} a round");
        let rounds = count.load(Ordering::Relaxed);
        assert!(rounds as f64 >= 50.0 / tokens, "{mode:?} {budget:?}, {tokens} a round: {rounds} rounds");
    }
}

#[test]
fn a_text_ends_at_any_place_of_a_block() {
    let [(mut own, _), (mut resident, count)] = both(config(Mode::Tree, Some(15), Witness::None));
    let whole = request(&own, PROMPTS[0], 40);
    let text = write(&mut own, std::slice::from_ref(&whole), 1).remove(0);
    let mut requests: Vec<Request> =
        (1..=18).map(|max_tokens| Request { max_tokens, ..whole.clone() }).collect();
    for (token, _) in &text.tokens[..14] {
        requests.push(Request { stop_ids: vec![*token], ..whole.clone() });
    }
    let chars: Vec<char> = text.text.chars().collect();
    for at in (4..60).step_by(6) {
        let stop: String = chars[at..at + 3].iter().collect();
        requests.push(Request { stop_strings: vec![stop], ..whole.clone() });
    }
    for request in requests {
        let [wanted, got] = [&mut own, &mut resident].map(|e| write(e, std::slice::from_ref(&request), 1));
        assert_eq!(got, wanted, "{request:?}");
    }
    assert!(count.load(Ordering::Relaxed) > 50);
}

#[test]
fn who_is_cancelled_or_paused_between_rounds_disturbs_nobody() {
    let [(mut own, _), (mut resident, count)] = both(config(Mode::Tree, Some(7), Witness::None));
    let alone: Vec<Text> = PROMPTS
        .iter()
        .map(|p| {
            let request = request(&own, p, 50);
            write(&mut own, &[request], 1).remove(0)
        })
        .collect();
    for cancelled_after in [3, 4, 5, 8] {
        let ids: Vec<SeqId> =
            PROMPTS.iter().map(|p| resident.admit(request(&resident, p, 50)).unwrap()).collect();
        let mut texts: Vec<Text> = ids.iter().map(|_| Text::default()).collect();
        let mut successor = None;
        for step in 0.. {
            if step == cancelled_after {
                resident.cancel(ids[1]).unwrap();
                resident.set_paused(ids[2], true);
                // Its slot and pages belong to another from now on, though a round with it is still under way.
                successor = Some(resident.admit(request(&resident, PROMPTS[4], 50)).unwrap());
            }
            if step == cancelled_after + 3 {
                resident.set_paused(ids[2], false);
            }
            for event in resident.step().unwrap() {
                match ids.iter().position(|id| *id == event.seq) {
                    Some(1) if step >= cancelled_after => panic!("a token of one that is gone"),
                    Some(at) => texts[at].add(event),
                    None => assert_eq!(Some(event.seq), successor),
                }
            }
            if step > cancelled_after && resident.is_idle() {
                break;
            }
        }
        for i in [0, 2, 3, 4] {
            assert_eq!(texts[i], alone[i], "text {i}, cancelled after {cancelled_after}");
        }
        assert_eq!(resident.slots().0, 0);
        assert_eq!(resident.pages().0, 0, "no page is left behind");
    }
    assert!(count.load(Ordering::Relaxed) > 20);
}

/// Says of a row every so often that nothing could be drawn; asked again, it has been.
struct Doubtful {
    cpu: Cpu,
    rows: usize,
    next: usize,
    choices: Vec<(u32, f32)>,
}

impl Backend for Doubtful {
    passes_on!(cpu: describe, load, allocate, slots, prepare, commit, read);
    fn is_far(&self) -> bool {
        true
    }
    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError> {
        self.cpu.run(plan, state, step)?;
        // Injections have no choices, and blocks sixteen a row.
        self.choices.clear();
        if !step.logit_rows().is_empty() {
            self.choices.extend(self.cpu.read_choices(plan, Choice(0)));
        }
        if self.choices.len() == step.logit_rows().len() {
            for choice in &mut self.choices {
                self.rows += 1;
                // By the next time the engine has taken its own step.
                if self.rows >= self.next {
                    (choice.0, self.next) = (NO_TOKEN, self.rows + 61);
                }
            }
        }
        Ok(())
    }
    fn read_choices(&self, _: PlanId, _: Choice) -> &[(u32, f32)] {
        &self.choices
    }
}

#[test]
fn what_could_not_be_drawn_in_a_round_the_engine_draws() {
    let config = config(Mode::Tree, Some(7), Witness::None);
    let [(mut own, _), _] = both(config);
    let rounds = DefinedRounds::new(Doubtful { cpu: Cpu::new(1), rows: 0, next: 40, choices: Vec::new() });
    let count = rounds.count();
    let mut doubtful = demo_pair_on(Box::new(rounds), DemoPair::WithDraft, config);
    let requests: Vec<Request> = PROMPTS[..2].iter().map(|p| request(&own, p, 60)).collect();
    assert_eq!(write(&mut doubtful, &requests, 1), write(&mut own, &requests, 1));
    assert!(count.load(Ordering::Relaxed) > 5);
}
