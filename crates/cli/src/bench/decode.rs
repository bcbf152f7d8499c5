//! `bench decode`: text after prompts, in several modes by turns.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;

use overdraft_engine::{Phases, Stats};
use overdraft_models::Checkpoint;
use serde_json::{Value, json};

use super::alternate::{ModeRun, Way, Work, alternate};
use super::args::DecodeArgs;
use super::memory::Memory;
use super::spread::{Spread, figures};
use super::table::Table;
use super::{about, check_files, draw, mode, plot, profile, report, round};
use crate::args::PairArgs;
use crate::config::Machine;
use crate::draft;
use crate::failure::Result;
use crate::model::Model;
use crate::screen::Screen;

/// What a table of the runs is to show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Decode,
    /// Where the time of a round goes.
    Round,
}

/// Measures, and shows the result as `report` says; the JSON object and the picture hold everything either way.
pub(crate) fn decode(args: &DecodeArgs, shown: Report) -> Result<ExitCode> {
    check_files(&args.output, Some(&args.picture))?;
    let screen = Screen::new(args.output.quiet);
    let pair = Pair::open(&args.pair, &screen)?;
    let streams = args.streams as usize;
    let work = Work::new(&args.work, streams, &pair.model)?;
    let machine = Machine { streams, ..pair.machine(&args.pair, work.context(), &screen)? };
    let modes = mode::line_up(&args.modes, &args.rows, pair.draft.is_some());
    let mut runs: Vec<ModeRun> = Vec::new();
    for mode in modes {
        for forced in profile::of_mode(mode, &args.accept_profile)? {
            let last = runs.last().filter(|r| r.mode == mode).map(|r| r.engine.clone());
            let machine = Machine { draft_only: forced.is_some(), ..machine.clone() };
            let start = || mode.start(&pair.model, pair.draft.as_ref(), &machine, &screen);
            let engine = last.map_or_else(|| start().map(|e| Rc::new(RefCell::new(e))), Ok)?;
            profile::check(mode, forced, &engine.borrow())?;
            runs.push(ModeRun::sharing(mode, &engine, forced));
        }
    }
    let way = Way { times: args.work.times, streams, watched: shown == Report::Round };
    alternate(&mut runs, &work, way, &screen)?;
    let memory = memory_of(&runs);
    let json = json!({
        "bench": "decode",
        "about": about::as_json(),
        "model": pair.model.as_json(),
        "draft": pair.draft.as_ref().map(|d| d.name()),
        "device": runs[0].engine.borrow().describe(),
        "memory": memory.as_json(),
        "prompts": args.work.prompts,
        "n_prompts": work.prompts.len(),
        "prompt_tokens": work.prompts.iter().map(Vec::len).sum::<usize>(),
        "max_tokens": work.max_tokens,
        "streams": streams,
        "temperature": args.work.temperature,
        "chat": args.work.chat,
        "stop_at_eos": args.work.stop_at_eos,
        "repeats": args.work.times.repeats,
        "warmup": args.work.times.warmup,
        "modes": runs.iter().map(|r| mode_json(r, &runs[0])).collect::<Vec<Value>>(),
    });
    let chosen =
        if args.work.temperature > 0.0 { format!("T = {}", args.work.temperature) } else { "greedy".into() };
    let at_once = if streams > 1 { format!(", {streams} at once") } else { String::new() };
    let headline = format!(
        "{}, {}: {} prompts of {}{at_once}, {} tokens each, {chosen}, repeats: {}\n\n",
        pair.model.checkpoint.name(),
        runs[0].engine.borrow().describe(),
        work.prompts.len(),
        args.work.prompts,
        work.max_tokens,
        args.work.times.repeats,
    );
    draw(&args.picture, || plot::of_runs(&headline, &runs))?;
    let table = match shown {
        Report::Decode => show(&runs),
        Report::Round => round::show(&runs),
    };
    let note = if runs.iter().any(|r| r.forced.is_some()) { profile::NOTE } else { "" };
    report(&args.output, &format!("{headline}{table}{note}{}", memory.note()), &json)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs with forced acceptance follow one another with the same engine.
fn memory_of(runs: &[ModeRun]) -> Memory {
    let mut engines: Vec<_> = runs.iter().map(|run| &run.engine).collect();
    engines.dedup_by(|a, b| Rc::ptr_eq(a, b));
    let engines: Vec<_> = engines.into_iter().map(|engine| engine.borrow()).collect();
    Memory::of(engines.iter().map(|engine| &**engine))
}

/// A target and its draft, opened.
pub(crate) struct Pair {
    pub(crate) model: Model,
    pub(crate) draft: Option<Checkpoint>,
}

impl Pair {
    pub(crate) fn open(args: &PairArgs, screen: &Screen) -> Result<Self> {
        let model = Model::open(args.model.as_deref())?;
        let draft = draft::find(args, &model, screen)?;
        Ok(Self { model, draft })
    }

    /// With a context just long enough, unless one was asked for: there is an engine for each mode.
    pub(crate) fn machine(&self, args: &PairArgs, context: usize, screen: &Screen) -> Result<Machine> {
        let mut machine = Machine::of_pair(args, self.model.hyper.context, screen)?;
        if !machine.context_is_asked {
            (machine.context, machine.context_is_asked) = (context.max(2), true);
        }
        Ok(machine)
    }
}

pub(crate) fn show(runs: &[ModeRun]) -> String {
    let mut table = Table::new(&[
        "mode",
        "rows/round",
        "tokens/round",
        "tok/s, median (quartiles)",
        "over plain, median (quartiles)",
        "whole set, tok/s",
        "over plain",
        "text as plain",
        "accepted at depth 1, 2, ...",
    ]);
    let plain = &runs[0];
    for run in runs {
        let total = run.total();
        let depths: Vec<String> =
            acceptance(&total.stats).iter().map(|s| format!("{:.0}%", 100.0 * s)).take(8).collect();
        table.row(vec![
            run.name(),
            figures(run.rows_per_round()),
            figures(total.stats.tokens_per_round()),
            run.rates().to_string(),
            run.over(plain).to_string(),
            figures(run.rate()),
            figures(run.rate() / plain.rate()),
            run.text_as_plain(),
            depths.join(" "),
        ]);
    }
    table.to_string()
}

/// By depth: of the rounds that guessed so deep, the share accepted so deep.
pub(crate) fn acceptance(stats: &Stats) -> Vec<f64> {
    let tried = stats.by_depth.iter().take_while(|d| d.0 > 0);
    tried.map(|(tried, accepted)| f64::from(*accepted) / f64::from(*tried)).collect()
}

fn mode_json(run: &ModeRun, plain: &ModeRun) -> Value {
    let total = run.total();
    let (stats, phases) = (total.stats, total.phases);
    json!({
        "mode": run.mode.to_string(),
        // Such text is not the model's, and is compared with nothing.
        "forced_tokens_per_round": run.forced.map(|f| f.tokens_a_round()),
        "tokens_per_second": run.rate(),
        "tokens_per_second_spread": run.rates().as_json(),
        "over_plain": run.rate() / plain.rate(),
        "over_plain_spread": run.over(plain).as_json(),
        "identical": run.equal_texts().map(|(same, _)| same),
        "texts": total.texts,
        "rounds": stats.rounds,
        "steps": total.steps,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "rows_per_round": run.rows_per_round(),
        "tokens_per_round": stats.tokens_per_round(),
        "acceptance_by_depth": acceptance(&stats),
        "phase_seconds": {
            "propose": phases.propose.as_secs_f64(),
            "verify": phases.verify.as_secs_f64(),
            "accept": phases.accept.as_secs_f64(),
            "commit": phases.commit.as_secs_f64(),
        },
        "round_microseconds_spread": Spread::of(run.samples.iter().map(|s| s.micros(Phases::total))).as_json(),
        "device_idle_share": total.idle_share(),
        "generation_seconds": total.seconds(),
        "generated_tokens": stats.generated_tokens,
    })
}
