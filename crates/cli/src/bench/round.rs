//! `bench round`: where the time of a round goes.

use std::time::Duration;

use overdraft_engine::{Phases, Stats};

use super::alternate::ModeRun;
use super::spread::{Spread, figures};
use super::table::Table;

/// A phase: its name, and its time in [`Phases`].
pub(crate) type Phase = (&'static str, fn(&Phases) -> Duration);

pub(crate) const PHASES: [Phase; 4] = [
    ("propose", |p| p.propose),
    ("verify", |p| p.verify),
    ("accept", |p| p.accept),
    ("commit", |p| p.commit),
];

pub(crate) fn show(runs: &[ModeRun]) -> String {
    let mut header = vec!["mode", "rows/round", "tokens/round", "us a round, median (quartiles)"];
    let names: Vec<String> = PHASES.iter().map(|(name, _)| format!("{name}, us")).collect();
    header.extend(names.iter().map(String::as_str));
    header.extend(["us a token", "text as plain"]);
    let mut table = Table::new(&header);
    for run in runs {
        let total = run.total();
        let mut cells = vec![
            run.mode.to_string(),
            figures(run.rows_per_round()),
            figures(total.tokens_per_round()),
            per_round(run, Phases::total).to_string(),
        ];
        for (_, phase) in PHASES {
            let share = phase(&total.phases).as_secs_f64() / total.phases.total().as_secs_f64().max(1e-12);
            cells.push(format!("{} {:.1}%", figures(per_round(run, phase).median), 100.0 * share));
        }
        cells.push(figures(1e6 / run.rate()));
        cells.push(format!("{} of {}", run.identical, run.samples.len()));
        table.row(cells);
    }
    table.to_string()
}

/// Microseconds of a phase a round, over the samples.
fn per_round(run: &ModeRun, phase: impl Fn(&Phases) -> Duration) -> Spread {
    let micros = |s: &Stats| 1e6 * phase(&s.phases).as_secs_f64() / s.rounds as f64;
    Spread::of(run.samples.iter().map(micros))
}
