//! A bar where a person waits: on a terminal, and only once it has taken a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::screen::Screen;

/// Shorter waits need no bar; it would only flicker.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) struct Progress {
    what: &'static str,
    wanted: bool,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(what: &'static str, screen: &Screen) -> Self {
        Self { what, wanted: screen.is_chatty(), started: Instant::now(), bar: None }
    }

    pub(crate) fn at(&mut self, done: usize, of: usize) {
        if !self.wanted || (self.bar.is_none() && self.started.elapsed() < PATIENCE) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(of as u64), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {percent}%") {
                bar.set_style(style);
            }
            bar.with_message(self.what)
        });
        bar.set_position(done as u64);
    }

    /// Takes the bar away; text may follow on its line.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
