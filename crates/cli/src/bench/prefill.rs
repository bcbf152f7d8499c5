//! `bench prefill`: how fast prompts are read.

use std::process::ExitCode;

use overdraft_engine::{Engine, Request, Sampling, Stats};
use serde_json::{Value, json};

use super::alternate::{random_prompts, write};
use super::args::PrefillArgs;
use super::decode::Pair;
use super::memory::Memory;
use super::mode::BenchMode;
use super::plot::Line;
use super::spread::Spread;
use super::table::Table;
use super::{about, check_files, draw, plot, report};
use crate::failure::Result;
use crate::model::Model;
use crate::progress::Progress;
use crate::prompt_set;
use crate::run::raw_tokens;
use crate::screen::Screen;

pub(crate) fn prefill(args: &PrefillArgs) -> Result<ExitCode> {
    check_files(&args.output, Some(&args.picture))?;
    let screen = Screen::new(args.output.quiet);
    let pair = Pair::open(&args.pair, &screen)?;
    let longest = args.lengths.iter().copied().max().unwrap_or(1) as usize;
    let tokens = tokens(&pair.model, longest, &screen)?;
    let machine = pair.machine(&args.pair, longest + 1, &screen)?;
    // With a draft its context is filled as the prompt is read, which has its price.
    let mut modes = vec![BenchMode::Plain];
    modes.extend(pair.draft.is_some().then_some(BenchMode::Ready));
    let start = |mode: &BenchMode| mode.start(&pair.model, pair.draft.as_ref(), &machine, &screen);
    let mut engines = modes.iter().map(start).collect::<Result<Vec<Engine>>>()?;
    let mut rates: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); modes.len()]; args.lengths.len()];
    let mut progress = Progress::new("measuring", &screen);
    let rounds = args.times.warmup + args.times.repeats;
    for round in 0..rounds {
        progress.at(round as usize, rounds as usize);
        for (length, rates) in args.lengths.iter().zip(&mut rates) {
            for (engine, rates) in engines.iter_mut().zip(rates) {
                let stats = read(engine, &tokens[..*length as usize])?;
                if round >= args.times.warmup {
                    rates.push(stats.prompt_rate());
                }
            }
        }
    }
    progress.clear();
    let (device, memory) = (engines[0].describe(), Memory::of(&engines));
    let names = ["no draft", "draft reading along"];
    let mut header = vec!["prompt, tokens"];
    let columns: Vec<String> =
        names.iter().take(modes.len()).map(|n| format!("{n}: tok/s, median (quartiles)")).collect();
    header.extend(columns.iter().map(String::as_str));
    let mut table = Table::new(&header);
    let mut rows = Vec::new();
    for (length, rates) in args.lengths.iter().zip(&rates) {
        let spreads: Vec<Spread> = rates.iter().map(|r| Spread::of(r.iter().copied())).collect();
        table.row(std::iter::once(length.to_string()).chain(spreads.iter().map(Spread::to_string)).collect());
        let ready = spreads.get(1).map(Spread::as_json);
        rows.push(json!({
            "tokens": length, "tokens_per_second": spreads[0].as_json(), "with_draft_tokens_per_second": ready,
        }));
    }
    let json = json!({
        "bench": "prefill",
        "about": about::as_json(),
        "model": pair.model.as_json(),
        "draft": pair.draft.as_ref().map(|d| d.name()),
        "device": device,
        "memory": memory.as_json(),
        "repeats": args.times.repeats,
        "warmup": args.times.warmup,
        "prompts": Value::Array(rows),
    });
    let headline = format!(
        "{}, {device}: reading prompts, repeats: {}\n\n",
        pair.model.checkpoint.name(),
        args.times.repeats
    );
    draw(&args.picture, || {
        let lines = (0..modes.len()).map(|m| Line {
            name: names[m].into(),
            points: args
                .lengths
                .iter()
                .zip(&rates)
                .map(|(n, r)| (f64::from(*n), Spread::of(r[m].iter().copied()).median))
                .collect(),
        });
        plot::of_lines(
            &headline,
            "Reading speed",
            "tokens of the prompt",
            "tok/s",
            &lines.collect::<Vec<_>>(),
        )
    })?;
    report(&args.output, &format!("{headline}{table}{}", memory.note()), &json)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a prompt; the first token comes with its last step.
pub(crate) fn read(engine: &mut Engine, prompt: &[u32]) -> Result<Stats> {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: 1,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        stop_strings: Vec::new(),
    };
    Ok(write(engine, request, &Screen::new(true))?.1)
}

/// So many tokens of Python, over and over if need be.
pub(crate) fn tokens(model: &Model, n: usize, screen: &Screen) -> Result<Vec<u32>> {
    let text = prompt_set::load("humaneval")?.concat();
    let tokens = raw_tokens(&model.tokenizer, &text);
    if tokens.is_empty() {
        screen.note("the model's tokenizer knows no words: prompts are random tokens");
        return Ok(random_prompts(1, n, model.hyper.vocab).concat());
    }
    Ok(tokens.into_iter().cycle().take(n).collect())
}
