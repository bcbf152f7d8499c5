//! `bench round`: where the time of a round goes.

use std::time::Duration;

use overdraft_engine::Phases;

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

/// What is said of the device where there is one.
const IDLE: &str = "\nDevice idle: by its own clock, from the end of one run or commit to the beginning of the next, launching \
                    included; steps that wrote, and what came between them.\n";

pub(crate) fn show(runs: &[ModeRun]) -> String {
    let is_watched = runs.iter().any(|r| r.total().idle_share().is_some());
    let mut header = vec!["mode", "rows/round", "tokens/round", "us a round, median (quartiles)"];
    let names: Vec<String> = PHASES.iter().map(|(name, _)| format!("{name}, us")).collect();
    header.extend(names.iter().map(String::as_str));
    header.extend(is_watched.then_some("device idle"));
    header.extend(["us a token", "tok/s", "over plain", "text as plain"]);
    let mut table = Table::new(&header);
    for run in runs {
        let total = run.total();
        let micros = |phase: fn(&Phases) -> Duration| Spread::of(run.samples.iter().map(|s| s.micros(phase)));
        let mut cells = vec![
            run.name(),
            figures(run.rows_per_round()),
            figures(total.stats.tokens_per_round()),
            micros(Phases::total).to_string(),
        ];
        for (_, phase) in PHASES {
            let share = phase(&total.phases).as_secs_f64() / total.seconds().max(1e-12);
            cells.push(format!("{} {:.1}%", figures(micros(phase).median), 100.0 * share));
        }
        if is_watched {
            cells.push(
                total.idle_share().map_or_else(|| "-".into(), |share| format!("{:.1}%", 100.0 * share)),
            );
        }
        cells.push(figures(1e6 / run.rate()));
        cells.push(figures(run.rate()));
        cells.push(figures(run.rate() / runs[0].rate()));
        cells.push(run.text_as_plain());
        table.row(cells);
    }
    format!("{table}{}", if is_watched { IDLE } else { "" })
}
