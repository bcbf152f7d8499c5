//! Pictures of measurements, as SVG written by hand: nothing to install, readable in light and dark.

mod bars;
mod lines;
mod svg;

pub(crate) use lines::Line;

use bars::{Bar, bars};
use lines::lines;
use svg::Picture;

use super::alternate::ModeRun;
use super::decode::acceptance;
use super::mode::BenchMode;
use super::round::PHASES;
use overdraft_engine::spec::policy::Mode;

/// One panel of lines.
pub(crate) fn of_lines(headline: &str, title: &str, x: &str, y: &str, series: &[Line]) -> String {
    let mut picture = Picture::new(headline.trim());
    lines(&mut picture, title, x, y, series);
    picture.finish()
}

/// Speed against rows, acceptance by depth, and where a round's time goes.
pub(crate) fn of_runs(headline: &str, runs: &[ModeRun]) -> String {
    let mut picture = Picture::new(headline.trim());
    lines(&mut picture, "Speed against rows", "rows of a round", "tok/s", &speed(runs));
    let depths: Vec<Line> = runs
        .iter()
        .map(|run| Line {
            name: run.name(),
            points: acceptance(&run.total().stats)
                .iter()
                .zip(1..)
                .map(|(a, d)| (f64::from(d), 100.0 * a))
                .collect(),
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    if !depths.is_empty() {
        lines(
            &mut picture,
            "Accepted by depth",
            "depth of the guess",
            "% of rounds that guessed so deep",
            &depths,
        );
    }
    let rounds: Vec<Bar> = runs
        .iter()
        .map(|run| {
            let total = run.total();
            Bar {
                name: run.name(),
                parts: PHASES.iter().map(|(_, phase)| total.micros(phase) / 1e3).collect(),
            }
        })
        .collect();
    let names: Vec<&str> = PHASES.iter().map(|p| p.0).collect();
    bars(&mut picture, "Where a round's time goes", "ms a round", &names, &rounds);
    picture.finish()
}

/// Chains and trees with a given number of guesses make lines; every other mode is a point.
fn speed(runs: &[ModeRun]) -> Vec<Line> {
    let mut series: Vec<Line> = Vec::new();
    for run in runs {
        let name = match run.mode {
            BenchMode::Drafting(Mode::Chain, Some(_)) => "chain".to_string(),
            BenchMode::Drafting(Mode::Tree, Some(_)) => "tree".to_string(),
            other => other.to_string(),
        };
        let name = name + &run.marked();
        let point = (run.rows_per_round(), run.rate());
        match series.iter_mut().find(|s| s.name == name) {
            Some(line) => line.points.push(point),
            None => series.push(Line { name, points: vec![point] }),
        }
    }
    series.iter_mut().for_each(|s| s.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    series
}
