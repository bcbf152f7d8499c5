//! Texts written at once, and what they cost together.

use std::time::Duration;

use overdraft_engine::{DeviceUse, Engine, Phases, Request, SeqId, Stats};

use crate::failure::Result;
use crate::interrupt;

/// What texts cost that were written at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) texts: usize,
    /// Of all of them, added up; where they shared a step its time is in there for each.
    pub(crate) stats: Stats,
    /// Steps that wrote, and where their time went, each counted once.
    pub(crate) steps: usize,
    pub(crate) phases: Phases,
    /// What became of the device's time meanwhile, where there is one and it was asked for.
    pub(crate) device: Option<DeviceUse>,
}

impl Cost {
    /// Adds what other texts cost after these.
    pub(crate) fn add(&mut self, other: &Self) {
        self.texts += other.texts;
        self.stats.add(&other.stats);
        self.steps += other.steps;
        self.phases.add(&other.phases);
        if let Some(other) = other.device {
            let device = self.device.get_or_insert_default();
            device.busy += other.busy;
            device.idle += other.idle;
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.phases.total().as_secs_f64()
    }

    /// Tokens a second of all texts. The first of each is not counted, as it comes with the prompt; 0 where there was
    /// nothing to measure.
    pub(crate) fn rate(&self) -> f64 {
        let written = self.stats.generated_tokens.saturating_sub(self.texts);
        if self.seconds() > 0.0 { written as f64 / self.seconds() } else { 0.0 }
    }

    /// Microseconds of a step that a phase takes.
    pub(crate) fn micros(&self, phase: impl Fn(&Phases) -> Duration) -> f64 {
        1e6 * phase(&self.phases).as_secs_f64() / self.steps as f64
    }

    /// The share of its time that the device had nothing to do.
    pub(crate) fn idle_share(&self) -> Option<f64> {
        let DeviceUse { busy, idle } = self.device?;
        let total = (busy + idle).as_secs_f64();
        (total > 0.0).then(|| idle.as_secs_f64() / total)
    }
}

/// One text by itself.
impl From<Stats> for Cost {
    fn from(stats: Stats) -> Self {
        Self { texts: 1, steps: stats.rounds, phases: stats.phases, device: None, stats }
    }
}

/// All requests to their ends. Whoever is done with its prompt waits for the others, so that all write from the same
/// step on and no prompt is read meanwhile. `watched`: what the device does from there on is asked for.
pub(crate) fn write_together(
    engine: &mut Engine,
    requests: impl Iterator<Item = Request>,
    watched: bool,
) -> Result<(Vec<Vec<u32>>, Cost)> {
    let ids = requests.map(|r| engine.admit(r)).collect::<std::result::Result<Vec<SeqId>, _>>()?;
    let generating = interrupt::generating();
    let mut texts: Vec<Vec<u32>> = vec![Vec::new(); ids.len()];
    let mut cost = Cost { texts: ids.len(), ..Cost::default() };
    let (mut reading, mut all_write) = (ids.len(), false);
    while !engine.is_idle() {
        for event in engine.step()? {
            let Some(at) = ids.iter().position(|id| *id == event.seq) else { continue };
            if texts[at].is_empty() {
                reading -= 1;
                engine.set_paused(event.seq, true);
            }
            texts[at].push(event.token);
            if let Some((_, stats)) = event.finish {
                cost.stats.add(&stats);
                // All began together, so whoever wrote longest was in every step.
                if stats.phases.total() > cost.phases.total() {
                    (cost.steps, cost.phases) = (stats.rounds, stats.phases);
                }
            }
        }
        if reading == 0 && !all_write {
            all_write = true;
            ids.iter().for_each(|id| engine.set_paused(*id, false));
            if watched {
                cost.device = engine.watch_device()?;
            }
        }
        if generating.asked_to_stop() {
            ids.iter().for_each(|id| {
                engine.cancel(*id);
            });
            return Err(interrupt::failure());
        }
    }
    if cost.device.is_some() {
        cost.device = engine.watch_device()?;
    }
    Ok((texts, cost))
}
