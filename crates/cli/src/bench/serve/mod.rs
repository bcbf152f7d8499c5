//! `bench serve`: what clients of a server see, at several numbers of streams, with speculation and without.

mod client;
mod crowd;
mod own;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use serde_json::{Value, json};

use self::client::Ask;
use self::crowd::Served;
use self::own::Own;
use super::args::ServeArgs;
use super::spread::{Spread, figures};
use super::table::Table;
use super::{about, check_files, report};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::prompt_set;
use crate::screen::Screen;

/// What is asked of the server beside the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    Auto,
    /// Of a server that knows no `speculative` field.
    AsItIs,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Auto => "auto",
            Mode::AsItIs => "as it is",
        }
    }

    fn speculative(self) -> Option<bool> {
        match self {
            Mode::Off => Some(false),
            Mode::Auto => Some(true),
            Mode::AsItIs => None,
        }
    }
}

/// A number of streams in a mode, over all turns.
struct Run {
    streams: usize,
    mode: Mode,
    turns: Vec<Served>,
    /// Texts equal to those of the first mode, of all.
    identical: usize,
}

impl Run {
    fn rates(&self) -> Spread {
        Spread::of(self.turns.iter().map(Served::rate))
    }

    fn texts(&self) -> usize {
        self.turns.iter().map(|t| t.told.len()).sum()
    }

    /// Milliseconds (half of them, 19 of 20 below).
    fn first(&self) -> (f64, f64) {
        middle_and_most(self.turns.iter().flat_map(Served::first_ms))
    }

    fn gap(&self) -> (f64, f64) {
        middle_and_most(self.turns.iter().flat_map(Served::gaps_ms))
    }
}

pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode> {
    check_files(&args.output, None)?;
    let screen = Screen::new(args.output.quiet);
    let prompts = prompt_set::load(&args.prompts)?;
    let streams: Vec<usize> = args.streams.iter().map(|n| *n as usize).collect();
    // Held to the end: it goes with this.
    let (own, address) = match &args.url {
        Some(url) => (None, loopback(url)?),
        None => {
            let most = streams.iter().copied().max().unwrap_or(1);
            let own = Own::start(args, &prompts, most, &screen)?;
            let address = own.address;
            (Some(own), address)
        }
    };
    let said = |problem: String| Failure::input(format!("the server at {address}: {problem}"));
    let models = client::get(address, "/v1/models").map_err(said)?;
    let field = |name: &str| {
        let value = models.pointer(&format!("/data/0/{name}")).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let (model, is_ours) = (field("id"), field("owned_by") == "overdraft");
    let modes: &[Mode] = if is_ours { &[Mode::Off, Mode::Auto] } else { &[Mode::AsItIs] };
    let asks = |streams: usize, turn: usize, mode: Mode| -> Vec<Ask> {
        // Twice round, so that the end, when clients run out of requests, does not count for much.
        let n = (2 * streams).max(args.requests as usize);
        let ask = |i: usize| Ask {
            model: model.clone(),
            prompt: prompts[i % prompts.len()].clone(),
            max_tokens: args.max_tokens as usize,
            speculative: mode.speculative(),
            salt: format!("bench {} {streams} {turn} {i}", mode.name()),
        };
        (0..n).map(ask).collect()
    };
    let waiting = interrupt::generating();
    let ask_all = |streams: usize, turn: usize, mode: Mode| -> Result<Served> {
        let served = crowd::serve(address, &asks(streams, turn, mode), streams, || waiting.asked_to_stop());
        if waiting.asked_to_stop() {
            return Err(interrupt::failure());
        }
        served.map_err(said)
    };
    let mut progress = Progress::new("measuring", &screen);
    let (mut runs, mut done) = (Vec::new(), 0);
    let total = streams.len() * (args.repeats as usize + 1) * modes.len();
    for streams in streams {
        let from = runs.len();
        runs.extend(modes.iter().map(|mode| Run { streams, mode: *mode, turns: Vec::new(), identical: 0 }));
        // The first turn warms up: plans are recorded, costs learned.
        for turn in 0..=args.repeats as usize {
            for m in 0..modes.len() {
                progress.at(done, total);
                done += 1;
                let run = &mut runs[from + (m + turn) % modes.len()];
                let served = ask_all(streams, turn, run.mode)?;
                if turn > 0 {
                    run.turns.push(served);
                }
            }
        }
        let texts = |run: &Run| -> Vec<String> {
            run.turns.iter().flat_map(|t| &t.told).map(|t| t.text.clone()).collect()
        };
        let first = texts(&runs[from]);
        for run in &mut runs[from..] {
            run.identical = texts(run).iter().zip(&first).filter(|(a, b)| a == b).count();
        }
    }
    progress.clear();
    let device = own.as_ref().map(|own| own.device.clone());
    let json = json!({
        "bench": "serve",
        "about": about::as_json(),
        "model": model,
        "server": if is_ours { "overdraft" } else { "another" },
        "device": device,
        "prompts": args.prompts,
        "max_tokens": args.max_tokens,
        "repeats": args.repeats,
        "runs": runs.iter().map(|run| as_json(run, off_of(&runs, run))).collect::<Vec<Value>>(),
    });
    let headline = format!(
        "{model}{}: {}, {} tokens each, greedy, repeats: {}\n\n",
        device.map_or_else(|| format!(" at {address}"), |d| format!(", {d}")),
        args.prompts,
        args.max_tokens,
        args.repeats,
    );
    report(&args.output, &format!("{headline}{}", show(&runs)), &json)?;
    Ok(ExitCode::SUCCESS)
}

/// The run without speculation beside `run`; itself where there is none.
fn off_of<'a>(runs: &'a [Run], run: &'a Run) -> &'a Run {
    runs.iter().find(|r| r.streams == run.streams && r.mode == Mode::Off).unwrap_or(run)
}

/// Turn by turn.
fn over(run: &Run, off: &Run) -> Spread {
    Spread::of(run.turns.iter().zip(&off.turns).map(|(mine, theirs)| mine.rate() / theirs.rate()))
}

fn show(runs: &[Run]) -> String {
    let mut table = Table::new(&[
        "streams",
        "speculation",
        "tok/s, median (quartiles)",
        "over off, median (quartiles)",
        "first token, ms: half, 19 of 20 within",
        "between parts, ms: half, 19 of 20 within",
        "text as off",
    ]);
    for run in runs {
        let pair = |(middle, most): (f64, f64)| format!("{}, {}", figures(middle), figures(most));
        // A server that is measured as it is has nothing beside it.
        let beside = |text: String| if run.mode == Mode::AsItIs { "–".into() } else { text };
        table.row(vec![
            run.streams.to_string(),
            run.mode.name().into(),
            run.rates().to_string(),
            beside(over(run, off_of(runs, run)).to_string()),
            pair(run.first()),
            pair(run.gap()),
            beside(format!("{} of {}", run.identical, run.texts())),
        ]);
    }
    table.to_string()
}

fn as_json(run: &Run, off: &Run) -> Value {
    let ((first_p50, first_p95), (gap_p50, gap_p95)) = (run.first(), run.gap());
    json!({
        "streams": run.streams,
        "speculation": run.mode.name(),
        "tokens_per_second": run.rates().as_json(),
        "over_off": over(run, off).as_json(),
        "first_token_ms": {"p50": first_p50, "p95": first_p95},
        "gap_ms": {"p50": gap_p50, "p95": gap_p95},
        "texts": run.texts(),
        "identical": run.identical,
    })
}

fn middle_and_most(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().max(1) - 1));
    (at(0.5).copied().unwrap_or(0.0), at(0.95).copied().unwrap_or(0.0))
}

/// The address of a URL on this machine: what is sent is neither hidden nor meant for others.
fn loopback(url: &str) -> Result<SocketAddr> {
    let failure = |problem: &str| {
        Failure::input(format!("--url {url}: {problem}")).hint("such as --url http://127.0.0.1:8080")
    };
    let rest = url.strip_prefix("http://").ok_or_else(|| failure("http:// was expected"))?;
    let rest = rest.trim_end_matches('/');
    let rest = rest.strip_suffix("/v1").unwrap_or(rest);
    if rest.contains('/') {
        return Err(failure("a host and a port were expected, and no path"));
    }
    let found = rest.to_socket_addrs().map_err(|_| failure("no host and port"))?.next();
    let address = found.ok_or_else(|| failure("no such host"))?;
    if address.ip().is_loopback() { Ok(address) } else { Err(failure("is not on this machine")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_taken() {
        for good in ["http://127.0.0.1:8080", "http://127.0.0.1:8080/", "http://[::1]:80/v1"] {
            assert!(loopback(good).is_ok(), "{good}");
        }
        for (bad, message) in [
            ("127.0.0.1:8080", "http:// was expected"),
            ("https://127.0.0.1:8080", "http:// was expected"),
            ("http://127.0.0.1", "no host and port"),
            ("http://127.0.0.1:8080/v2", "no path"),
            ("http://192.0.2.1:80", "is not on this machine"),
        ] {
            let failure = loopback(bad).unwrap_err();
            assert!(failure.message.contains(message), "{bad}: {}", failure.message);
        }
    }

    #[test]
    fn the_middle_and_what_nearly_all_are_within() {
        assert_eq!(middle_and_most((1..=100).map(f64::from)), (51.0, 96.0));
        assert_eq!(middle_and_most([7.0].into_iter()), (7.0, 7.0));
        assert_eq!(middle_and_most(std::iter::empty()), (0.0, 0.0));
    }
}
