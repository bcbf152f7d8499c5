//! What the card did meanwhile: a card at its power limit lowers its clock, and times of two runs compare only where that is alike.

use std::process::{Child, Command, Stdio};

/// `nvidia-smi`, ten times a second, from `watch` to `end`.
pub(crate) struct Card(Child);

/// Medians.
pub(crate) struct Drawn {
    pub(crate) watts: f64,
    pub(crate) mhz: f64,
}

impl Card {
    /// None where there is no `nvidia-smi`.
    pub(crate) fn watch() -> Option<Self> {
        Command::new("nvidia-smi")
            .args(["--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits", "-lms", "100"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()
            .map(Self)
    }

    /// Of the later half of what it said: power is a mean of the time before.
    pub(crate) fn end(mut self) -> Option<Drawn> {
        let _ = self.0.kill();
        let said = self.0.wait_with_output().ok()?.stdout;
        let samples: Vec<(f64, f64)> = String::from_utf8_lossy(&said)
            .lines()
            .filter_map(|line| line.split_once(", "))
            .filter_map(|(watts, mhz)| Some((watts.parse().ok()?, mhz.trim().parse().ok()?)))
            .collect();
        let late = &samples[samples.len() / 2..];
        Some(Drawn { watts: median(late.iter().map(|s| s.0))?, mhz: median(late.iter().map(|s| s.1))? })
    }
}

/// The middle one, if there are any.
pub(crate) fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}
