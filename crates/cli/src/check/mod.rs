//! `overdraft check`: runs prompts with and without speculation over a grid, and says whether every token and every bit
//! of every logit is the same.

mod crowd;
mod visitors;

use std::process::ExitCode;

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, Event, Request, Sampling, Stats, Witness};
use overdraft_formats::tokenizer::Specials;
use serde_json::{Value, json};

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

/// What speculation is tried with: mode and guesses a round.
const MODES: [(Mode, Option<usize>); 5] = [
    (Mode::Chain, Some(7)),
    (Mode::Chain, Some(15)),
    (Mode::Tree, Some(22)),
    (Mode::Tree, Some(48)),
    (Mode::Auto, None),
];

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
    mode: Mode,
    budget: Option<usize>,
    temperature: f32,
    identical: usize,
    stats: Stats,
    /// Where the first text parts from plain decoding: prompt, token, regret in nats.
    parted: Option<(usize, usize, f32)>,
}

pub(crate) fn check(args: &CheckArgs) -> Result<ExitCode> {
    interrupt::listen();
    let screen = Screen::new(args.quiet);
    let model = Model::open(args.model.pair.model.as_deref())?;
    let machine = Machine::resolve(&args.model, model.hyper.context)?;
    let draft = draft::choose(&args.model, &model, &screen)?;
    let Some(draft) = draft else {
        return Err(
            Failure::input("no draft to check").hint("name one with -d, and leave --draft-mode and --budget")
        );
    };
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
        let start = |machine: &Machine, drafts: bool| model.start(machine, drafts.then_some(&draft), &screen);
        return crowd::check(&plan, start, &screen, args.json);
    }
    let start = |mode: Mode, budget: Option<usize>, witness: Witness| {
        let machine = Machine { draft_mode: mode, budget, witness, ..machine.clone() };
        model.start(&machine, (mode != Mode::Off).then_some(&draft), &screen)
    };
    let hot = Drawing { temperature: 0.8, top_p: 0.9, seed: 1, ..Drawing::GREEDY };
    let samplings = [Drawing::GREEDY, hot].map(Sampling::from);
    let mut progress = Progress::new("checking", &screen);
    let total = samplings.len() * (MODES.len() + 1);
    let mut cells = Vec::new();
    for (s, sampling) in samplings.iter().enumerate() {
        let done = s * (MODES.len() + 1);
        let mut plain = start(Mode::Off, None, Witness::Fingerprints)?;
        let want = run_all(&mut plain, &prompts, args.tokens, sampling)?;
        drop(plain);
        for (m, (mode, budget)) in MODES.into_iter().enumerate() {
            progress.at(done + m + 1, total);
            let mut engine = start(mode, budget, Witness::Fingerprints)?;
            let got = run_all(&mut engine, &prompts, args.tokens, sampling)?;
            let mut cell = Cell {
                mode,
                budget,
                temperature: sampling.drawing.temperature,
                identical: 0,
                stats: Stats::default(),
                parted: None,
            };
            for (i, ((trace, stats), (wanted, _))) in got.iter().zip(&want).enumerate() {
                cell.stats.add(stats);
                let same = trace.iter().zip(wanted).take_while(|(a, b)| a == b).count();
                if same == wanted.len() && trace.len() == wanted.len() {
                    cell.identical += 1;
                } else if cell.parted.is_none() {
                    let logits = plain_logits(&start, &prompts[i], same, sampling)?;
                    let other = trace.get(same).map_or(0, |t| t.0);
                    let right = wanted.get(same).map_or(0, |t| t.0);
                    cell.parted = Some((i, same, regret(&logits, right, other)));
                }
            }
            cells.push(cell);
        }
    }
    progress.clear();
    report(args.json, &cells, prompts.len(), model.checkpoint.name(), draft.name())
}

/// Every prompt to its end, one after another.
fn run_all(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    tokens: u32,
    sampling: &Sampling,
) -> Result<Vec<(Trace, Stats)>> {
    prompts
        .iter()
        .map(|prompt| {
            let mut trace = Trace::new();
            let mut stats = Stats::default();
            run(engine, prompt, tokens as usize, sampling, |event| {
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
    mut see: impl FnMut(&Event),
) -> Result<()> {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: tokens,
        sampling: sampling.clone(),
        stop_ids: Vec::new(),
        stop_strings: Vec::new(),
    };
    let id = engine.admit(request)?;
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
    start: &impl Fn(Mode, Option<usize>, Witness) -> Result<Engine>,
    prompt: &[u32],
    index: usize,
    sampling: &Sampling,
) -> Result<Vec<f32>> {
    let mut engine = start(Mode::Off, None, Witness::Logits)?;
    let (mut at, mut found) = (0, Vec::new());
    run(&mut engine, prompt, index + 1, sampling, |event| {
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

fn report(as_json: bool, cells: &[Cell], prompts: usize, target: &str, draft: &str) -> Result<ExitCode> {
    let good = |c: &Cell| c.identical == prompts && c.stats.accepted > 0;
    let all_good = cells.iter().all(good);
    let mut output = Output::new();
    if as_json {
        let rows: Vec<Value> = cells.iter().map(|c| cell_json(c, prompts)).collect();
        let object = json!({ "target": target, "draft": draft, "exact": all_good, "cells": rows });
        output.write(&format!("{object}\n"))?;
    } else {
        output.write(&format!(
            "{:<9} {:<9} {:<10} {:<13} accepted at depth 1, 2, 3 ...\n",
            "mode", "sampling", "identical", "tokens/round"
        ))?;
        for c in cells {
            output.write(&line(c, prompts))?;
        }
        let verdict = if all_good {
            "exact: every token and every bit of every logit is that of plain decoding"
        } else if cells.iter().all(|c| c.identical == prompts) {
            "not shown to be exact: a mode accepted nothing, so it was not put to the test"
        } else {
            "NOT exact"
        };
        output.write(&format!("{verdict}\n"))?;
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn name(c: &Cell) -> String {
    c.budget.map_or_else(|| mode_name(c.mode).into(), |n| format!("{} {n}", mode_name(c.mode)))
}

fn line(c: &Cell, prompts: usize) -> String {
    let sampling = if c.temperature > 0.0 { format!("T = {}", c.temperature) } else { "greedy".into() };
    let identical = format!("{} of {prompts}", c.identical);
    let depths: Vec<String> = shares(c).map(|s| format!("{:.0}%", 100.0 * s)).take(8).collect();
    let parted = c.parted.map_or_else(String::new, |(prompt, token, regret)| {
        format!("   first differs in prompt {prompt} at token {token}, regret {regret:.4} nats")
    });
    format!(
        "{:<9} {sampling:<9} {identical:<10} {:<13.2} {}{parted}\n",
        name(c),
        c.stats.tokens_per_round(),
        depths.join(" ")
    )
}

/// By depth: the share of rounds that drafted so deep and were accepted so deep.
fn shares(c: &Cell) -> impl Iterator<Item = f64> {
    c.stats.by_depth.iter().take_while(|d| d.0 > 0).map(|(tried, accepted)| *accepted as f64 / *tried as f64)
}

fn cell_json(c: &Cell, prompts: usize) -> Value {
    json!({
        "mode": mode_name(c.mode),
        "budget": c.budget,
        "temperature": c.temperature,
        "identical": c.identical,
        "prompts": prompts,
        "rounds": c.stats.rounds,
        "drafted": c.stats.drafted,
        "accepted": c.stats.accepted,
        "tokens_per_round": c.stats.tokens_per_round(),
        "acceptance_by_depth": shares(c).collect::<Vec<f64>>(),
        "first_difference": c.parted.map(|(p, t, r)| json!({ "prompt": p, "token": t, "regret_nats": r })),
    })
}
