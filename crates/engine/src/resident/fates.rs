//! What became of a round that the backend ran by itself: its outcome is walked with the code of the engine's own rounds, which gives out
//! text and learns.

use std::time::Duration;

use overdraft_plan::{BackendError, DraftPart, Fate, Outcome};

use super::{Asked, Flight, Residence};
use crate::engine::Engine;
use crate::error::{EngineError, Result};
use crate::event::Events;
use crate::propose::why_plain;
use crate::round::{Part, Round};
use crate::sequence::Sequence;
use crate::spec::budget::{Beside, Forecast};
use crate::spec::tree::Source;
use crate::stats::Phases;

/// What of the rows lately wanted is left by a round that wanted fewer.
const WANTED_DECAY: f64 = 0.9;

impl Engine {
    /// What became of a round: texts go on, and what there is to learn is learned.
    pub(super) fn take_round(&mut self, flight: Flight, events: &mut Events) -> Result<()> {
        let mut residence = std::mem::take(&mut self.residence);
        let mut parts = std::mem::take(&mut residence.parts);
        let taken = self.backend.take_outcome(&mut residence.outcome);
        let result = taken.map_err(EngineError::from).and_then(|()| {
            residence.chosen.clear();
            residence.chosen.extend(residence.outcome.nodes.iter().map(|n| n.chosen));
            self.take_fates(&mut residence, &flight, &mut parts, events)
        });
        residence.parts = parts;
        residence.spare.push(flight.members);
        self.residence = residence;
        result
    }

    fn take_fates(
        &mut self,
        residence: &mut Residence,
        flight: &Flight,
        parts: &mut Vec<Part>,
        events: &mut Events,
    ) -> Result<()> {
        let (outcome, chosen) = (&residence.outcome, &residence.chosen);
        parts.clear();
        let drafts = |slot: u32| flight.members.iter().any(|m| m.slot == slot && m.part == DraftPart::Drafts);
        let drafting = outcome.fates.iter().filter(|fate| drafts(fate.slot)).count();
        self.step_sum = Beside { rows: outcome.nodes.len(), tokens: 0.0, drafting };
        for fate in &outcome.fates {
            // One that was cancelled meanwhile is no one's; nor is the next that has its slot.
            let index = self.seqs.iter().position(|s| s.slot == fate.slot);
            let Some(index) = index else { continue };
            let asked = flight.members.iter().find(|m| m.id == self.seqs[index].id);
            let Some(Asked { decision, part, .. }) = asked else { continue };
            let (seq, round) = (&self.seqs[index], &mut self.rounds[index]);
            if *part != DraftPart::Apart {
                round.injected = seq.committed;
            }
            residence.is_over |= fate.doubt.is_some();
            if fate.doubt == Some(0) {
                continue;
            }
            (round.decision, round.plain) = (Some(*decision), why_plain(round.policy.mode(), decision));
            let source = if *part == DraftPart::Drafts { Source::Draft } else { Source::NGram };
            retrace(seq, round, outcome, fate, source)?;
            self.step_sum.tokens += round.forecast.tokens.max(1.0);
            parts.push(Part::of_round(index, fate.first));
        }
        let verified = self.clock.now();
        let mut failed = Vec::new();
        for part in parts.iter() {
            let index = part.seq();
            if let Err(failure) = self.accept(part, &flight.verify, Some(chosen), events) {
                failed.push(self.seqs[index].id);
                self.failed.push_back(failure);
            }
        }
        let depths =
            parts.iter().flat_map(|part| self.rounds[part.seq()].tree.nodes()).map(|n| n.depth as usize);
        let deepest = depths.max().unwrap_or(0);
        if drafting > 0 {
            self.reach.learn(deepest);
        }
        if flight.size.has_trees() {
            residence.wanted = (residence.wanted * WANTED_DECAY).max(f64::from(outcome.wanted_rows));
        }
        // Also in a round with more room than was wanted: else passes would seem to cost nothing while kinds are new.
        if !flight.is_first && drafting > 0 {
            self.cost.learn_drafts(drafting, outcome.draft_seconds);
        }
        if !flight.is_first && flight.size.is_filled_by(outcome.nodes.len()) {
            self.cost.learn_step(outcome.nodes.len(), outcome.step_seconds);
        }
        parts.iter().for_each(|part| self.learn(part));
        self.learn_of_passes(parts);
        let ended = self.clock.now();
        let since = residence.taken.replace(ended).map_or(Duration::ZERO, |taken| ended - taken);
        let accept = (ended - verified).min(since);
        let propose = Duration::from_secs_f64(outcome.draft_seconds).min(since - accept);
        let verify = since - accept - propose;
        let phases = Phases { propose, verify, accept, commit: Duration::ZERO };
        for part in parts.iter() {
            self.move_on(part, &phases);
        }
        let has_gone_on = |fate: &&Fate| {
            let seq = self.seqs.iter().find(|s| s.slot == fate.slot);
            seq.is_none_or(|seq| {
                let is_over = events.iter().any(|e| e.seq == seq.id && e.finish.is_some());
                let is_its = flight.members.iter().any(|m| m.id == seq.id);
                is_over || !is_its || seq.committed == fate.committed as usize
            })
        };
        if let Some(fate) = outcome.fates.iter().find(|fate| !has_gone_on(fate)) {
            let said = format!("a round left slot {} at {} tokens", fate.slot, fate.committed);
            return Err(BackendError::Device(format!("{said}, which is not what it chose")).into());
        }
        self.end_finished(events, &failed)
    }
}

/// The tree that was verified, as the host would have made it. What lies behind a node that nothing was chosen after is left
/// out, so that this node is the last of its path.
fn retrace(seq: &Sequence, round: &mut Round, outcome: &Outcome, fate: &Fate, source: Source) -> Result<()> {
    let nodes = outcome.nodes_of(fate);
    round.tree.clear(seq.tokens[seq.tokens.len() - 1]);
    let until = fate.doubt.map_or(nodes.len(), |doubt| doubt as usize);
    for node in &nodes[1..until] {
        let above = nodes[node.parent as usize].log_weight;
        round.tree.push_believed(node.parent, node.token, node.logp, node.log_weight - above, source);
    }
    round.forecast = Forecast::of(&round.tree);
    let is_same = nodes[0].token == round.tree.nodes()[0].token && round.tree.len() == until;
    let said = || format!("a round verified another text than slot {} has", fate.slot);
    if is_same { Ok(()) } else { Err(BackendError::Device(said()).into()) }
}
