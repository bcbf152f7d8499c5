//! `overdraft check`: runs prompts with and without speculation over a grid, and says whether every token and every bit
//! of every logit is the same.

mod crowd;
mod trial;
mod visitors;

use std::process::ExitCode;

use overdraft_engine::spec::drafter::Drafter;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::scripted::Curriculum;
use overdraft_engine::{Drawing, Engine, Event, Request, Sampling, Stats, Witness};
use overdraft_formats::tokenizer::Specials;
use overdraft_plan::{GRID, MAX_DRAFT_DEPTH};
use serde_json::{Value, json};

use self::trial::{Guesser, Script, TRIALS, Trial};
use crate::args::CheckArgs;
use crate::config::{Machine, mode_name};
use crate::draft;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::model::Model;
use crate::output::Output;
use crate::progress::Progress;
use crate::prompt_set;
use crate::screen::Screen;

const PROMPTS: [&str; 4] = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n",
    "def is_prime(n):\n    \"\"\"Return True if n is a prime number, False otherwise.\"\"\"\n",
    "The quick brown fox",
];

/// One token of a text, with the fingerprint of the logits it was drawn from.
type Trace = Vec<(u32, Option<u64>)>;

/// A cell of the grid.
struct Cell {
    trial: Trial,
    temperature: f32,
    identical: usize,
    stats: Stats,
    /// Where one guesses.
    script: Option<Script>,
    /// Where the first text parts from plain decoding: prompt, token, regret in nats.
    parted: Option<(usize, usize, f32)>,
}

impl Cell {
    /// Whether the guesser was put to the test: one that knows the text is accepted exactly as often as it means to be.
    fn is_tried(&self) -> bool {
        let accepted = self.stats.accepted;
        accepted > 0 && self.script.as_ref().is_none_or(|script| accepted == script.accepted)
    }
}

pub(crate) fn check(args: &CheckArgs) -> Result<ExitCode> {
    interrupt::listen();
    let screen = Screen::new(args.quiet);
    let model = Model::open(args.model.pair.model.as_deref())?;
    let machine = Machine::resolve(&args.model, model.hyper.context, &screen)?;
    let draft = draft::choose(&args.model, &model, &screen)?;
    if draft::is_off(&args.model.drafting) {
        return Err(
            Failure::input("nothing to check without speculation").hint("leave --draft-mode and --budget")
        );
    }
    let mut texts = match &args.prompts {
        Some(set) => prompt_set::load(set)?,
        None => PROMPTS.map(String::from).to_vec(),
    };
    texts.truncate(args.limit.map_or(usize::MAX, |n| n as usize));
    let prompts: Vec<Vec<u32>> = texts.iter().map(|t| model.tokenizer.encode(t, Specials::Parse)).collect();
    if !args.streams.is_empty() {
        if prompts.iter().all(Vec::is_empty) {
            return Err(Failure::input("the prompts hold no tokens that this model knows"));
        }
        let (streams, tokens) = (&args.streams, args.tokens as usize);
        let plan = crowd::Plan { streams, texts: &prompts, tokens, seed: args.seed, machine: &machine };
        let Some(draft) = &draft else {
            return Err(Failure::input("no draft for --streams").hint("name one with -d, or leave --streams"));
        };
        let start = |machine: &Machine, drafts: bool| model.start(machine, drafts.then_some(draft), &screen);
        return crowd::check(&plan, start, &screen, args.json);
    }
    let start = |trial: Option<&Trial>, witness: Witness| {
        let (mode, budget) = trial.map_or((Mode::Off, None), |t| (t.mode, t.budget));
        let machine = Machine { draft_mode: mode, budget, witness, ..machine.clone() };
        let drafts = trial.is_some_and(|t| t.guesser == Guesser::Draft);
        model.start(&machine, draft.as_ref().filter(|_| drafts), &screen)
    };
    let trials: Vec<&Trial> =
        TRIALS.iter().filter(|t| draft.is_some() || t.guesser == Guesser::Script).collect();
    if draft.is_none() {
        screen.note("no draft: only guesses by script are checked, which know the text (-d names a draft)");
    }
    let hot = Drawing { temperature: 0.8, top_p: 0.9, seed: 1, ..Drawing::GREEDY };
    let samplings = [Drawing::GREEDY, hot].map(Sampling::from);
    let mut progress = Progress::new("checking", &screen);
    let total = samplings.len() * (trials.len() + 1);
    let mut cells = Vec::new();
    for (s, sampling) in samplings.iter().enumerate() {
        let done = s * (trials.len() + 1);
        let mut plain = start(None, Witness::Fingerprints)?;
        let want = run_all(&mut plain, &prompts, args.tokens, sampling, |_| None)?;
        drop(plain);
        for (t, trial) in trials.iter().copied().enumerate() {
            progress.at(done + t + 1, total);
            let mut engine = start(Some(trial), Witness::Fingerprints)?;
            let mut script = (trial.guesser == Guesser::Script).then(Script::default);
            let got = run_all(&mut engine, &prompts, args.tokens, sampling, |i| {
                let text = || want[i].0.iter().map(|t| t.0).collect();
                Some(script.as_mut()?.drafter(text(), prompts[i].len(), model.hyper.vocab, trial.mode))
            })?;
            // Where texts part another is loaded, and a device may have room for one.
            drop(engine);
            let mut cell = Cell {
                trial: *trial,
                temperature: sampling.drawing.temperature,
                identical: 0,
                stats: Stats::default(),
                script,
                parted: None,
            };
            for (i, ((trace, stats), (wanted, _))) in got.iter().zip(&want).enumerate() {
                cell.stats.add(stats);
                let same = trace.iter().zip(wanted).take_while(|(a, b)| a == b).count();
                if same == wanted.len() && trace.len() == wanted.len() {
                    cell.identical += 1;
                } else if cell.parted.is_none() {
                    let logits = plain_logits(|| start(None, Witness::Logits), &prompts[i], same, sampling)?;
                    let other = trace.get(same).map_or(0, |t| t.0);
                    let right = wanted.get(same).map_or(0, |t| t.0);
                    cell.parted = Some((i, same, regret(&logits, right, other)));
                }
            }
            cells.push(cell);
        }
    }
    progress.clear();
    report(args.json, &cells, prompts.len(), model.checkpoint.name(), draft.as_ref().map(|d| d.name()))
}

/// Every prompt to its end, one after another; `drafter` gives the one for a prompt, if it is not the engine's own.
fn run_all(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    tokens: u32,
    sampling: &Sampling,
    mut drafter: impl FnMut(usize) -> Option<Box<dyn Drafter + Send>>,
) -> Result<Vec<(Trace, Stats)>> {
    prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let mut trace = Trace::new();
            let mut stats = Stats::default();
            run(engine, prompt, tokens as usize, sampling, drafter(i), |event| {
                trace.push((event.token, event.fingerprint));
                if let Some((_, figures)) = &event.finish {
                    stats = *figures;
                }
            })?;
            Ok((trace, stats))
        })
        .collect()
}

fn run(
    engine: &mut Engine,
    prompt: &[u32],
    tokens: usize,
    sampling: &Sampling,
    drafter: Option<Box<dyn Drafter + Send>>,
    mut see: impl FnMut(&Event),
) -> Result<()> {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: tokens,
        sampling: sampling.clone(),
        stop_ids: Vec::new(),
        stop_strings: Vec::new(),
    };
    let id = match drafter {
        Some(drafter) => engine.admit_with(request, drafter)?,
        None => engine.admit(request)?,
    };
    let generating = interrupt::generating();
    while !engine.is_idle() {
        engine.step()?.iter().for_each(&mut see);
        if generating.asked_to_stop() {
            engine.cancel(id);
            return Err(interrupt::failure());
        }
    }
    Ok(())
}

/// The logits that plain decoding draws token `index` from.
fn plain_logits(
    start: impl Fn() -> Result<Engine>,
    prompt: &[u32],
    index: usize,
    sampling: &Sampling,
) -> Result<Vec<f32>> {
    let mut engine = start()?;
    let (mut at, mut found) = (0, Vec::new());
    run(&mut engine, prompt, index + 1, sampling, None, |event| {
        if at == index {
            found = event.logits.clone().unwrap_or_default();
        }
        at += 1;
    })?;
    Ok(found)
}

/// How much less likely the target thinks the token that came than the one that should have, in nats.
fn regret(logits: &[f32], right: u32, other: u32) -> f32 {
    let logit = |t: u32| logits.get(t as usize).copied().unwrap_or(f32::NEG_INFINITY);
    logit(right) - logit(other)
}

fn report(
    as_json: bool,
    cells: &[Cell],
    prompts: usize,
    target: &str,
    draft: Option<&str>,
) -> Result<ExitCode> {
    let good = |c: &Cell| c.identical == prompts && c.is_tried();
    let all_good = cells.iter().all(good);
    let mut output = Output::new();
    if as_json {
        let rows: Vec<Value> = cells.iter().map(|c| cell_json(c, prompts)).collect();
        let object = json!({ "target": target, "draft": draft, "exact": all_good, "cells": rows });
        output.write(&format!("{object}\n"))?;
    } else {
        output.write(&format!(
            "{:<14} {:<9} {:<10} {:<13} accepted at depth 1, 2, 3 ...\n",
            "mode", "sampling", "identical", "tokens/round"
        ))?;
        for c in cells {
            output.write(&line(c, prompts))?;
        }
        let verdict = if all_good {
            "exact: every token and every bit of every logit is that of plain decoding"
        } else if cells.iter().all(|c| c.identical == prompts) {
            "not shown to be exact: a mode did not accept what it should have, or nothing, so it was not put to the test"
        } else {
            "NOT exact"
        };
        output.write(&format!("{verdict}\n"))?;
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn line(c: &Cell, prompts: usize) -> String {
    let sampling = if c.temperature > 0.0 { format!("T = {}", c.temperature) } else { "greedy".into() };
    let identical = format!("{} of {prompts}", c.identical);
    let depths = match &c.script {
        Some(script) => {
            let (driven, all) = (script.driven(), Curriculum::ALL);
            format!("0 to {MAX_DRAFT_DEPTH}, at each of {GRID} alignments: {driven} of {all}")
        }
        None => shares(c).map(|s| format!("{:.0}%", 100.0 * s)).take(8).collect::<Vec<_>>().join(" "),
    };
    let parted = c.parted.map_or_else(String::new, |(prompt, token, regret)| {
        format!("   first differs in prompt {prompt} at token {token}, regret {regret:.4} nats")
    });
    format!(
        "{:<14} {sampling:<9} {identical:<10} {:<13.2} {depths}{parted}\n",
        c.trial.name(),
        c.stats.tokens_per_round(),
    )
}

/// By depth: the share of rounds that drafted so deep and were accepted so deep.
fn shares(c: &Cell) -> impl Iterator<Item = f64> {
    c.stats.by_depth.iter().take_while(|d| d.0 > 0).map(|(tried, accepted)| *accepted as f64 / *tried as f64)
}

fn cell_json(c: &Cell, prompts: usize) -> Value {
    json!({
        "guesser": if c.script.is_some() { "script" } else { "draft" },
        "mode": mode_name(c.trial.mode),
        "budget": c.trial.budget,
        "temperature": c.temperature,
        "identical": c.identical,
        "prompts": prompts,
        "put_to_the_test": c.is_tried(),
        "rounds": c.stats.rounds,
        "drafted": c.stats.drafted,
        "accepted": c.stats.accepted,
        "tokens_per_round": c.stats.tokens_per_round(),
        "acceptance_by_depth": shares(c).collect::<Vec<f64>>(),
        "lengths_at_alignments": c.script.as_ref().map(|s| json!({ "driven": s.driven(), "of": Curriculum::ALL })),
        "first_difference": c.parted.map(|(p, t, r)| json!({ "prompt": p, "token": t, "regret_nats": r })),
    })
}
