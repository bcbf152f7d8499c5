//! What a request may ask for beyond its text: each alone, beside others that did not ask, drafting or not.

mod common;

use common::{DemoPair, demo_pair};
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{
    Drawing, Engine, EngineConfig, EngineError, Logprobs, Options, Request, Sampling, SeqId, Speculative,
    Stats, Witness,
};
use overdraft_formats::tokenizer::Specials;

const PROMPTS: [&str; 3] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "def is_prime(n):\n",
];

fn demo(draft_mode: Mode) -> Engine {
    let budget = (draft_mode == Mode::Tree).then_some(22);
    let config = EngineConfig {
        context: 512,
        max_seqs: 4,
        draft_mode,
        budget,
        witness: Witness::Logits,
        ..Default::default()
    };
    demo_pair(DemoPair::WithDraft, config)
}

fn request(engine: &Engine, prompt: &str, temperature: f32) -> Request {
    Request {
        prompt: engine.tokenizer().encode(prompt, Specials::Parse),
        max_tokens: 32,
        sampling: Sampling::from(Drawing { temperature, top_p: 0.9, seed: 5, ..Default::default() }),
        stop_ids: vec![],
        stop_strings: vec![],
    }
}

#[derive(Default, Debug)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    logprobs: Vec<Option<Logprobs>>,
    of_prompt: Option<Vec<Logprobs>>,
    stats: Stats,
    failed_at: Option<u32>,
}

/// Runs them together to their ends.
fn run(engine: &mut Engine, jobs: Vec<(Request, Options)>) -> Vec<Answer> {
    let ids: Vec<SeqId> =
        jobs.into_iter().map(|(request, options)| engine.admit_as(request, options).unwrap()).collect();
    let mut answers: Vec<Answer> = ids.iter().map(|_| Answer::default()).collect();
    let of = |id: SeqId| ids.iter().position(|i| *i == id).unwrap();
    while !engine.is_idle() {
        match engine.step() {
            Ok(events) => {
                for event in events {
                    let answer = &mut answers[of(event.seq)];
                    answer.tokens.push(event.token);
                    answer.logits.extend(event.logits);
                    answer.logprobs.push(event.logprobs);
                    assert!(
                        event.prompt_logprobs.is_none() || answer.tokens.len() == 1,
                        "told once, and first"
                    );
                    answer.of_prompt = event.prompt_logprobs.or(answer.of_prompt.take());
                    answer.stats = event.finish.map_or(answer.stats, |f| f.1);
                }
            }
            Err(EngineError::Logits { seq, position }) => answers[of(seq)].failed_at = Some(position),
            Err(other) => panic!("{other}"),
        }
    }
    answers
}

/// In f64, by sorting the whole vocabulary.
fn definition(logits: &[f32], token: u32, n: usize) -> (f64, Vec<(u32, f64)>) {
    let total = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
    let mut all: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|l| f64::from(*l) - total)).collect();
    let chosen = all[token as usize].1;
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(n);
    (chosen, all)
}

#[test]
fn logprobs_are_of_the_raw_distribution_and_the_same_for_drafted_tokens() {
    let mut runs = Vec::new();
    for mode in [Mode::Off, Mode::Tree] {
        let mut engine = demo(mode);
        let asked = [None, Some(0), Some(5)];
        let jobs = PROMPTS.iter().zip(asked).map(|(prompt, logprobs)| {
            (request(&engine, prompt, 0.8), Options { logprobs, ..Default::default() })
        });
        let jobs = jobs.collect();
        let answers = run(&mut engine, jobs);
        for (answer, asked) in answers.iter().zip(asked) {
            assert_eq!(answer.stats.accepted > 0, mode == Mode::Tree, "drafting goes on beside logprobs");
            for ((token, logits), got) in answer.tokens.iter().zip(&answer.logits).zip(&answer.logprobs) {
                let Some(n) = asked else {
                    assert_eq!(*got, None);
                    continue;
                };
                let (chosen, top) = definition(logits, *token, n);
                let got = got.as_ref().unwrap();
                assert!((f64::from(got.chosen) - chosen).abs() < 1e-5, "{} for {chosen}", got.chosen);
                assert_eq!(got.top.len(), n);
                for ((token, logprob), (want, p)) in got.top.iter().zip(top) {
                    assert!(*token == want && (f64::from(*logprob) - p).abs() < 1e-5);
                }
            }
        }
        runs.push(answers.into_iter().map(|a| (a.tokens, a.logprobs)).collect::<Vec<_>>());
    }
    assert!(runs[0] == runs[1], "speculation changed a log-probability");
}

fn long_request(engine: &Engine) -> Request {
    let text = PROMPTS.concat().repeat(4);
    let mut request = request(engine, &text, 0.8);
    assert!((150..300).contains(&request.prompt.len()), "several pages: {}", request.prompt.len());
    request.max_tokens = 4;
    request
}

#[test]
fn log_probabilities_of_a_prompt_are_those_of_each_prefix_alone() {
    let mut engine = demo(Mode::Off);
    let job = long_request(&engine);
    let asked = |prompt_logprobs| Options { prompt_logprobs, ..Default::default() };
    let got = run(&mut engine, vec![(job.clone(), asked(Some(3)))]).remove(0).of_prompt.unwrap();
    assert_eq!(got.len(), job.prompt.len() - 1, "of every token but the first");
    for end in [1, 2, 17, 63, 64, 65, 128, 129, job.prompt.len() - 1] {
        let prefix = Request { prompt: job.prompt[..end].to_vec(), max_tokens: 1, ..job.clone() };
        let alone = run(&mut engine, vec![(prefix, asked(None))]).remove(0);
        assert_eq!(alone.of_prompt, None);
        let (chosen, top) = definition(&alone.logits[0], job.prompt[end], 3);
        let score = &got[end - 1];
        assert!((f64::from(score.chosen) - chosen).abs() < 1e-5, "{end}: {} for {chosen}", score.chosen);
        assert_eq!(
            score.top.iter().map(|t| t.0).collect::<Vec<_>>(),
            top.iter().map(|t| t.0).collect::<Vec<_>>()
        );
    }
    let single = Request { prompt: job.prompt[..1].to_vec(), ..job };
    assert_eq!(run(&mut engine, vec![(single, asked(Some(0)))])[0].of_prompt, Some(vec![]));
}

#[test]
fn how_and_beside_whom_a_prompt_is_read_changes_no_bit_of_its_log_probabilities() {
    let mut engine = demo(Mode::Off);
    let job = long_request(&engine);
    let asked = || Options { prompt_logprobs: Some(2), ..Default::default() };
    let alone = run(&mut engine, vec![(job.clone(), asked())]).remove(0);
    for mode in [Mode::Off, Mode::Tree] {
        let budget = (mode == Mode::Tree).then_some(22);
        let config = EngineConfig {
            context: 512,
            max_seqs: 4,
            step_rows: 128,
            cache_bytes: 64 << 20,
            draft_mode: mode,
            budget,
            ..Default::default()
        };
        let mut engine = demo_pair(DemoPair::WithDraft, config);
        // The first run fills the prefix cache, beside one that writes and another that is scored.
        for turn in 0..2 {
            let beside = request(&engine, PROMPTS[0], 0.8);
            let short = Request { prompt: job.prompt[..70].to_vec(), ..job.clone() };
            let jobs = vec![
                (beside.clone(), Options::default()),
                (job.clone(), asked()),
                (short, asked()),
                (job.clone(), Options::default()),
            ];
            let together = run(&mut engine, jobs);
            assert!(together[1].of_prompt == alone.of_prompt, "{mode:?}, turn {turn}");
            assert_eq!(together[2].of_prompt.as_ref().unwrap()[..], alone.of_prompt.as_ref().unwrap()[..69]);
            assert_eq!((&together[1].tokens, &together[3].tokens), (&alone.tokens, &alone.tokens));
            assert_eq!(together[1].stats.cached_tokens, 0, "what is scored is read");
            assert_eq!(together[3].stats.cached_tokens > 0, turn == 1, "others find it");
            assert_eq!(together[0].tokens.len(), beside.max_tokens);
        }
    }
}

#[test]
fn a_request_limits_its_own_drafts_alone() {
    let mut engine = demo(Mode::Tree);
    let kinds = [
        Speculative::Auto,
        Speculative::Off,
        Speculative::Limited { max_depth: 2, max_nodes: 63 },
        Speculative::Limited { max_depth: 16, max_nodes: 4 },
    ];
    let jobs = kinds.map(|speculative| {
        (request(&engine, PROMPTS[1], 0.0), Options { speculative, ..Default::default() })
    });
    let answers = run(&mut engine, jobs.into());
    for (answer, kind) in answers.iter().zip(kinds) {
        assert_eq!(answer.tokens, answers[0].tokens, "{kind:?}");
        let stats = &answer.stats;
        let deepest = stats.by_depth.iter().take_while(|d| d.0 > 0).count();
        let (depth, nodes) = match kind {
            Speculative::Auto => (15, 22),
            Speculative::Off => (0, 0),
            Speculative::Limited { max_depth, max_nodes } => (max_depth, max_nodes),
        };
        assert!(deepest <= depth && stats.drafted <= nodes * stats.rounds, "{kind:?}: {stats:?}");
        assert_eq!(stats.drafted > 0, kind != Speculative::Off, "{kind:?}");
    }
}

#[test]
fn more_logprobs_than_there_can_be_are_refused_by_name() {
    let mut engine = demo(Mode::Off);
    let job = request(&engine, PROMPTS[0], 0.0);
    for (options, expected) in [
        (Options { logprobs: Some(21), ..Default::default() }, "top_logprobs = 21: at most 20"),
        (Options { prompt_logprobs: Some(21), ..Default::default() }, "prompt_logprobs = 21: at most 20"),
    ] {
        let error = engine.admit_as(job.clone(), options).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert!(engine.is_idle());
}

#[test]
fn a_sequence_without_usable_logits_fails_alone_beside_drafts() {
    let mut engine = demo(Mode::Tree);
    let good = request(&engine, PROMPTS[0], 0.0);
    let bias = (0..engine.decoder().hyper.vocab as u32).map(|t| (t, f32::NEG_INFINITY)).collect();
    let doomed = Request { sampling: Sampling { bias, ..Default::default() }, ..good.clone() };
    let with = |r: &Request| (r.clone(), Options::default());
    let alone = run(&mut engine, vec![with(&good)]).remove(0);
    let answers = run(&mut engine, vec![with(&doomed), with(&good), with(&doomed)]);
    assert_eq!(answers[1].tokens, alone.tokens);
    assert!(answers[1].failed_at.is_none() && answers[1].stats.accepted > 0);
    for doomed in [&answers[0], &answers[2]] {
        assert_eq!((doomed.failed_at, doomed.tokens.len()), (Some(good.prompt.len() as u32), 0));
    }
}
