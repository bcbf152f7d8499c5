//! The proposing half of a round: waiting taps enter the draft's context, the draft looks at a block of masks, and
//! drafters make trees of what it found.

use std::time::Instant;

use overdraft_plan::{MAX_DRAFT_DEPTH, NO_PARENT};

use crate::engine::Engine;
use crate::error::Result;
use crate::plans::{CANDIDATES, MAX_LOGIT_ROWS, Ready, Use};
use crate::round::Round;
use crate::sequence::Sequence;
use crate::spec::budget::{Beside, Forecast};
use crate::spec::ddtree::Ranked;
use crate::spec::drafter::{Candidates, ProposeInput};

/// Positions that may wait as taps. Plain decoding lets this many gather before they enter the draft's context
/// together, which costs it next to nothing.
const MAX_WAITING: usize = 16;
/// Rows of one injection at most: those of 16 sequences that all wait with a full ring.
const INJECT_ROWS: usize = 512;

impl Engine {
    /// Fills the tree of every sequence that writes, beside so many rows of prompts. In a step that cannot keep them,
    /// trees stay roots.
    pub(crate) fn propose(&mut self, used: Use, prompt_rows: usize) -> Result<()> {
        let started = Instant::now();
        let recorded = self.plans.n_ready();
        self.beside = beside(&self.seqs, prompt_rows);
        for (seq, round) in self.seqs.iter().zip(&mut self.rounds) {
            round.tree.clear(seq.tokens[seq.tokens.len() - 1]);
            round.decision = (used != Use::Read && drafts_left(seq) > 0)
                .then(|| round.policy.decide(&self.cost, self.beside));
            round.forecast = Default::default();
        }
        let mut drafting = std::mem::take(&mut self.chosen);
        drafting.clear();
        drafting.extend((0..self.seqs.len()).filter(|i| self.rounds[*i].decision.is_some_and(|d| d.forward)));
        let outcome = self.ask_draft(&drafting, started, recorded);
        self.chosen = drafting;
        outcome?;
        for round in
            self.rounds.iter_mut().filter(|r| r.decision.is_some_and(|d| !d.forward && !d.is_plain()))
        {
            grow(round, Candidates::None, &self.cost, self.beside);
        }
        // A prompt that is over has logits too.
        let others = self.seqs.iter().filter(|s| !s.is_paused).count();
        share_rows(&mut self.rounds, MAX_LOGIT_ROWS.saturating_sub(others));
        Ok(())
    }

    /// Passes of the draft for the sequences that ask for one, and the trees that come of them.
    fn ask_draft(&mut self, drafting: &[usize], started: Instant, recorded: usize) -> Result<()> {
        self.inject(drafting)?;
        let per_pass = self.draft.as_ref().map_or(1, |d| (MAX_LOGIT_ROWS / d.settings.n_drafts()).max(1));
        for batch in drafting.chunks(per_pass) {
            let (plan, rows) = self.draft_blocks(batch)?;
            let k = CANDIDATES.min(self.decoder.hyper.vocab);
            let candidates = plan.candidates.expect("a block plan has candidates");
            let all = self.backend.read_choices(plan.id, candidates);
            for (index, mine) in batch.iter().zip(all.chunks(rows * k)) {
                let seq = &self.seqs[*index];
                let mut depths: [Ranked<'_>; MAX_DRAFT_DEPTH] = [&[]; MAX_DRAFT_DEPTH];
                let n = depths.iter_mut().zip(mine.chunks(k).take(drafts_left(seq)));
                let n = n.map(|(depth, candidates)| *depth = candidates).count();
                let candidates = Candidates::Depths(&depths[..n]);
                grow(&mut self.rounds[*index], candidates, &self.cost, self.beside);
            }
        }
        if !drafting.is_empty() && self.plans.n_ready() == recorded {
            self.cost.learn_draft(started.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Waiting taps of the sequences that draft, and of those that have waited long, enter the draft's context.
    fn inject(&mut self, drafting: &[usize]) -> Result<()> {
        if self.draft.is_none() {
            return Ok(());
        }
        self.step.clear();
        for (index, seq) in self.seqs.iter().enumerate() {
            let round = &self.rounds[index];
            let waiting = seq.committed - round.injected;
            let due = waiting >= MAX_WAITING || drafting.contains(&index);
            if waiting == 0 || !due || self.step.n_rows() + waiting > INJECT_ROWS {
                continue;
            }
            let tables = seq.tables.iter().map(|t| t.pages.as_slice());
            let s = self.step.add_seq(seq.slot, round.injected as u32, waiting as u32, 0, tables);
            let mut parent = NO_PARENT;
            for token in &seq.tokens[round.injected..seq.committed] {
                parent = self.step.push(s, *token, parent);
            }
        }
        if self.step.n_rows() == 0 {
            return Ok(());
        }
        let rows = self.step.n_rows();
        let plan =
            self.plans.get(Use::Inject, rows, &self.decoder, self.draft.as_ref(), &mut *self.backend)?;
        self.backend.run(plan.id, self.state, &self.step)?;
        for s in 0..self.step.n_seqs() {
            let slot = self.step.seq(s).slot as u32;
            let seqs = self.seqs.iter().zip(&mut self.rounds);
            let entered = seqs.filter(|(seq, _)| seq.slot == slot);
            entered.for_each(|(seq, round)| round.injected = seq.committed);
        }
        Ok(())
    }

    /// One pass of the draft over a block for each sequence; returns its plan and how many rows of candidates each
    /// sequence has.
    fn draft_blocks(&mut self, batch: &[usize]) -> Result<(Ready, usize)> {
        let settings = &self.draft.as_ref().expect("only a draft is asked for a pass").settings;
        let (block, depths, mask) = (settings.block_size, settings.n_drafts(), settings.mask_token);
        self.step.clear();
        for index in batch {
            let seq = &mut self.seqs[*index];
            self.memory.extend(&mut seq.tables, seq.committed + block);
            let tables = seq.tables.iter().map(|t| t.pages.as_slice());
            let s = self.step.add_seq(seq.slot, seq.committed as u32, block as u32, 0, tables);
            let mut parent = self.step.push(s, seq.tokens[seq.committed], NO_PARENT);
            for j in 1..block {
                parent = self.step.push(s, mask, parent);
                if j <= depths {
                    self.step.want_logits(parent);
                }
            }
        }
        let rows = self.step.n_rows();
        let plan =
            self.plans.get(Use::Block, rows, &self.decoder, self.draft.as_ref(), &mut *self.backend)?;
        self.backend.run(plan.id, self.state, &self.step)?;
        Ok((plan, depths))
    }
}

/// Cuts trees that together have more than `room` drafted nodes, the least likely first. A cut leaves a tree a tree:
/// parents stand before their children.
fn share_rows(rounds: &mut [Round], room: usize) {
    if rounds.iter().map(|r| r.tree.n_drafts()).sum::<usize>() <= room {
        return;
    }
    let mut kept = vec![1; rounds.len()];
    for _ in 0..room {
        let next = |i: &usize| rounds[*i].tree.nodes().get(kept[*i]).map(|n| n.log_weight);
        let best = (0..rounds.len())
            .filter_map(|i| next(&i).map(|w| (i, w)))
            .reduce(|best, c| if c.1 > best.1 { c } else { best });
        let Some((i, _)) = best else { break };
        kept[i] += 1;
    }
    for (round, kept) in rounds.iter_mut().zip(kept) {
        round.tree.truncate(kept);
        let weights = round.tree.nodes()[1..].iter().map(|n| (n.log_weight as f64).exp());
        round.forecast = Forecast { drafts: kept - 1, tokens: 1.0 + weights.sum::<f64>() };
    }
}

/// How deep a draft is still of use: the target's own token always comes on top, and nothing is written past the end.
fn drafts_left(seq: &Sequence) -> usize {
    let left = (seq.limit - seq.tokens.len()).saturating_sub(1).min(MAX_DRAFT_DEPTH);
    if seq.is_writing() { left } else { 0 }
}

/// What a sequence finds beside itself in the step: at least a row of each other one that writes, and of prompts.
fn beside(seqs: &[Sequence], prompt_rows: usize) -> Beside {
    let others = seqs.iter().filter(|s| s.is_writing()).count().saturating_sub(1);
    Beside { rows: others + prompt_rows, tokens: others as f64 }
}

fn grow(round: &mut Round, candidates: Candidates<'_>, cost: &crate::spec::cost::CostModel, beside: Beside) {
    let Some(decision) = round.decision else { return };
    let input = ProposeInput { candidates, shape: decision.shape };
    round.forecast = round.drafter.propose(&input, &decision.growth(cost, beside), &mut round.tree);
}
