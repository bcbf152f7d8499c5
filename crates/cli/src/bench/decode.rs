//! `bench decode`: text after prompts, in several modes by turns.

use std::process::ExitCode;

use overdraft_engine::Stats;
use overdraft_models::Checkpoint;
use serde_json::{Value, json};

use super::alternate::{ModeRun, Work, alternate};
use super::args::DecodeArgs;
use super::spread::figures;
use super::table::Table;
use super::{about, check_files, draw, mode, plot, report};
use crate::args::PairArgs;
use crate::config::Machine;
use crate::draft;
use crate::failure::Result;
use crate::model::Model;
use crate::screen::Screen;

/// A table of the runs for people.
type Show = fn(&[ModeRun]) -> String;

/// Measures, and shows the result by `show`; the JSON object and the picture hold everything either way.
pub(crate) fn decode(args: &DecodeArgs, show: Show) -> Result<ExitCode> {
    check_files(&args.output, Some(&args.picture))?;
    let screen = Screen::new(args.output.quiet);
    let pair = Pair::open(&args.pair, &screen)?;
    let work = Work::new(&args.work, &pair.model)?;
    let machine = pair.machine(&args.pair, work.context())?;
    let modes = mode::line_up(&args.modes, &args.rows, pair.draft.is_some());
    let start = |mode: &mode::BenchMode| {
        mode.start(&pair.model, pair.draft.as_ref(), &machine, &screen).map(|e| ModeRun::new(*mode, e))
    };
    let mut runs = modes.iter().map(start).collect::<Result<Vec<ModeRun>>>()?;
    alternate(&mut runs, &work, args.work.times, &screen)?;
    let json = json!({
        "bench": "decode",
        "about": about::as_json(),
        "model": pair.model.as_json(),
        "draft": pair.draft.as_ref().map(|d| d.name()),
        "device": runs[0].engine.describe(),
        "prompts": args.work.prompts,
        "n_prompts": work.prompts.len(),
        "prompt_tokens": work.prompts.iter().map(Vec::len).sum::<usize>(),
        "max_tokens": work.max_tokens,
        "temperature": args.work.temperature,
        "chat": args.work.chat,
        "stop_at_eos": args.work.stop_at_eos,
        "repeats": args.work.times.repeats,
        "warmup": args.work.times.warmup,
        "modes": runs.iter().map(|r| mode_json(r, &runs[0])).collect::<Vec<Value>>(),
    });
    let chosen =
        if args.work.temperature > 0.0 { format!("T = {}", args.work.temperature) } else { "greedy".into() };
    let headline = format!(
        "{}, {}: {} prompts of {}, {} tokens each, {chosen}, repeats: {}\n\n",
        pair.model.checkpoint.name(),
        runs[0].engine.describe(),
        work.prompts.len(),
        args.work.prompts,
        work.max_tokens,
        args.work.times.repeats,
    );
    draw(&args.picture, || plot::of_runs(&headline, &runs))?;
    report(&args.output, &format!("{headline}{}", show(&runs)), &json)?;
    Ok(ExitCode::SUCCESS)
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
    pub(crate) fn machine(&self, args: &PairArgs, context: usize) -> Result<Machine> {
        let mut machine = Machine::of_pair(args, self.model.hyper.context)?;
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
            acceptance(&total).iter().map(|s| format!("{:.0}%", 100.0 * s)).take(8).collect();
        table.row(vec![
            run.mode.to_string(),
            figures(run.rows_per_round()),
            figures(total.tokens_per_round()),
            run.rates().to_string(),
            run.over(plain).to_string(),
            figures(run.rate()),
            figures(run.rate() / plain.rate()),
            format!("{} of {}", run.identical, run.samples.len()),
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
    let phases = total.phases;
    json!({
        "mode": run.mode.to_string(),
        "tokens_per_second": run.rate(),
        "tokens_per_second_spread": run.rates().as_json(),
        "over_plain": run.rate() / plain.rate(),
        "over_plain_spread": run.over(plain).as_json(),
        "identical": run.identical,
        "texts": run.samples.len(),
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "rows_per_round": run.rows_per_round(),
        "tokens_per_round": total.tokens_per_round(),
        "acceptance_by_depth": acceptance(&total),
        "phase_seconds": {
            "propose": phases.propose.as_secs_f64(),
            "verify": phases.verify.as_secs_f64(),
            "accept": phases.accept.as_secs_f64(),
            "commit": phases.commit.as_secs_f64(),
        },
        "generation_seconds": total.generation_time.as_secs_f64(),
        "generated_tokens": total.generated_tokens,
    })
}
