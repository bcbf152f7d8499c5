//! What runs against what.

use std::fmt;
use std::str::FromStr;

use overdraft_engine::Engine;
use overdraft_engine::spec::policy::Mode;
use overdraft_models::Checkpoint;

use crate::config::{Machine, mode_name};
use crate::failure::{Failure, Result};
use crate::model::Model;
use crate::screen::Screen;

/// Guesses a round can hold.
const MAX_GUESSES: usize = 63;

/// One of the things that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchMode {
    /// No draft is loaded: what everything is compared with.
    Plain,
    /// A draft is loaded and kept up to date, and never asked.
    Ready,
    /// No draft is loaded; guesses come from the text itself.
    Lookup,
    Drafting(Mode, Option<usize>),
}

impl BenchMode {
    pub(crate) const AUTO: Self = Self::Drafting(Mode::Auto, None);

    pub(crate) fn needs_draft(self) -> bool {
        matches!(self, Self::Ready | Self::Drafting(..))
    }

    /// An engine in this mode. Each mode has its own, so that none learns from another's rounds.
    pub(crate) fn start(
        self,
        model: &Model,
        draft: Option<&Checkpoint>,
        machine: &Machine,
        screen: &Screen,
    ) -> Result<Engine> {
        let (draft_mode, budget) = match self {
            Self::Plain | Self::Ready => (Mode::Off, None),
            Self::Lookup => (Mode::Auto, None),
            Self::Drafting(mode, budget) => (mode, budget),
        };
        if self.needs_draft() && draft.is_none() {
            return Err(Failure::input(format!(
                "mode {self} needs a draft, and there is none beside the model"
            ))
            .hint("name one with -d, or use the modes plain and lookup"));
        }
        let machine = Machine { draft_mode, budget, ..machine.clone() };
        model.start(&machine, draft.filter(|_| self.needs_draft()), screen)
    }
}

impl fmt::Display for BenchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Ready => f.write_str("ready"),
            Self::Lookup => f.write_str("lookup"),
            Self::Drafting(mode, None) => f.write_str(mode_name(*mode)),
            Self::Drafting(mode, Some(n)) => write!(f, "{}:{n}", mode_name(*mode)),
        }
    }
}

impl FromStr for BenchMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, guesses) = match text.split_once(':') {
            Some((name, n)) => {
                let n: usize = n.parse().ok().filter(|n| (1..=MAX_GUESSES).contains(n)).ok_or_else(|| {
                    format!("`{n}` guesses a round: a number from 1 to {MAX_GUESSES} was expected")
                })?;
                (name, Some(n))
            }
            None => (text, None),
        };
        match (name, guesses) {
            ("plain", None) => Ok(Self::Plain),
            ("ready", None) => Ok(Self::Ready),
            ("lookup", None) => Ok(Self::Lookup),
            ("auto", n) => Ok(Self::Drafting(Mode::Auto, n)),
            ("chain", n) => Ok(Self::Drafting(Mode::Chain, n)),
            ("tree", n) => Ok(Self::Drafting(Mode::Tree, n)),
            _ => Err("modes are plain, ready, lookup, auto, auto:N, chain:N and tree:N".into()),
        }
    }
}

/// Plain decoding first, then what was asked for, each once.
pub(crate) fn line_up(asked: &[BenchMode], rows: &[u32], has_draft: bool) -> Vec<BenchMode> {
    let at_rows = rows.iter().flat_map(|rows| {
        let guesses = Some(*rows as usize - 1);
        [Mode::Chain, Mode::Tree].map(|mode| BenchMode::Drafting(mode, guesses))
    });
    let default = if has_draft { BenchMode::AUTO } else { BenchMode::Lookup };
    let usual = asked.is_empty().then_some(default);
    let mut modes = vec![BenchMode::Plain];
    for mode in asked.iter().copied().chain(usual).chain(at_rows) {
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    modes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for text in ["plain", "ready", "lookup", "auto", "auto:7", "chain", "chain:15", "tree:47"] {
            assert_eq!(text.parse::<BenchMode>().unwrap().to_string(), text);
        }
        for bad in ["", "off", "chain:", "chain:0", "tree:64", "tree:x", "plain:3", "tree:-1"] {
            assert!(bad.parse::<BenchMode>().is_err(), "{bad}");
        }
    }

    #[test]
    fn plain_always_runs_and_rows_count_the_root() {
        let names = |asked: &[&str], rows: &[u32], has_draft| {
            let asked: Vec<BenchMode> = asked.iter().map(|m| m.parse().unwrap()).collect();
            line_up(&asked, rows, has_draft).iter().map(BenchMode::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&[], &[], true), "plain auto");
        assert_eq!(names(&[], &[], false), "plain lookup");
        assert_eq!(names(&["tree:15", "plain"], &[16, 24], true), "plain tree:15 chain:15 chain:23 tree:23");
    }
}
