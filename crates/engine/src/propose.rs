//! The proposing half of a round: waiting taps enter the draft's context, the draft looks at a block of masks, and
//! drafters make trees of what it found.

use std::time::Instant;

use overdraft_plan::{MAX_DRAFT_DEPTH, NO_PARENT, Pace, TAP_ROWS, bucket_for};

use crate::engine::Engine;
use crate::error::Result;
use crate::plans::{CANDIDATES, Ready, Use, Wanted};
use crate::round::Round;
use crate::sequence::Sequence;
use crate::spec::budget::{Beside, Forecast};
use crate::spec::ddtree::Ranked;
use crate::spec::drafter::{Candidates, ProposeInput};
use crate::spec::policy::{Mode, Round as Decision};
use crate::spec::together::{Together, heaviest};
use crate::spec::tree::Source;
use crate::stats::Plain;

/// Positions that may wait as taps. Plain decoding lets this many gather before they enter the draft's context
/// together, which costs it next to nothing.
pub(crate) const MAX_WAITING: usize = 16;
/// Rows of one injection at most: those of 16 sequences that all wait with a full ring.
pub(crate) const INJECT_ROWS: usize = 512;

impl Engine {
    /// Fills the tree of every sequence that writes, beside so many rows of prompts. In a step that cannot keep them,
    /// trees stay roots.
    pub(crate) fn propose(&mut self, used: Use, prompt_rows: usize) -> Result<()> {
        let started = self.clock.now();
        let recorded = self.plans.n_ready();
        let beside = beside(&self.seqs, prompt_rows);
        for (seq, round) in self.seqs.iter().zip(&mut self.rounds) {
            round.tree.clear(seq.tokens[seq.tokens.len() - 1]);
            round.decision =
                (used != Use::Read && drafts_left(seq) > 0).then(|| round.policy.decide(&self.cost, beside));
            round.forecast = Default::default();
            let mode = round.policy.mode();
            round.plain = match &round.decision {
                Some(decision) => why_plain(mode, decision),
                None if mode == Mode::Off => Plain::Off,
                None if used == Use::Read => Plain::Reading,
                None => Plain::Ending,
            };
        }
        // A prompt that is over has logits too.
        let others = self.seqs.iter().filter(|s| !s.is_paused).count();
        let room = self.plans.logit_rows.saturating_sub(others);
        let mut drafting = std::mem::take(&mut self.chosen);
        self.choose_drafting(&mut drafting, prompt_rows, room);
        let outcome = self.ask_draft(&drafting, started, recorded);
        let n_drafting = drafting.len();
        self.chosen = drafting;
        outcome?;
        for round in
            self.rounds.iter_mut().filter(|r| r.decision.is_some_and(|d| !d.forward && !d.is_plain()))
        {
            grow(round, Candidates::None);
        }
        self.settle(prompt_rows, room, n_drafting);
        Ok(())
    }

    /// The sequences whose draft passes run: of those that ask for one as many as pay, the most trusted first, or one that
    /// tries. Those that insist always do.
    pub(crate) fn choose_drafting(&mut self, drafting: &mut Vec<usize>, prompt_rows: usize, room: usize) {
        drafting.clear();
        let asks = |round: &Round| round.decision.is_some_and(|d| d.forward);
        let rounds = &mut self.rounds;
        drafting.extend((0..rounds.len()).filter(|i| asks(&rounds[*i])));
        if drafting.iter().any(|i| rounds[*i].policy.mode() != Mode::Auto) {
            return;
        }
        let depth = self.draft.as_ref().map_or(0, |d| d.settings.n_drafts());
        let writers = self.seqs.iter().filter(|s| s.is_writing()).count();
        let sure = Beside { rows: writers + prompt_rows, tokens: writers as f64, drafting: 0 };
        let together = Together { cost: &self.cost, sure, draft_seconds: 0.0, rate: None, room };
        let asking = drafting.len();
        let mut most = (1..=asking).rev().find(|n| together.could_pay(*n, depth)).unwrap_or(0);
        let mut is_try = false;
        if writers > 1 && most > 0 {
            let weights = self.prospect.weights().filter(|_| self.trials.may_draft());
            most = weights.map_or(0, |weights| together.best_drafting(asking, &weights[..depth]));
            // What the last try has cost is known first.
            is_try = most == 0 && self.trials.may_draft() && !self.residence.is_trying();
            most += usize::from(is_try);
        }
        if most < asking {
            if is_try {
                drafting.rotate_left(self.trials.whose_turn(asking));
            } else {
                drafting.sort_by(|a, b| rounds[*b].policy.credit().total_cmp(&rounds[*a].policy.credit()));
            }
            let is_unaided = self.config.lookup;
            for index in drafting.drain(most..) {
                rounds[index].decision = rounds[index].decision.map(|d| d.without_forward(is_unaided));
                rounds[index].plain = Plain::Unpromising;
            }
            drafting.sort_unstable();
        }
        for index in drafting.iter().filter(|_| writers > 1) {
            let Round { decision, drafter, has_lesson, .. } = &mut rounds[*index];
            if !*has_lesson {
                drafter.trust(self.prospect.calibration());
            }
            if is_try {
                // As many guesses as the step has rows for anyway, so that there is something to learn.
                let rows = bucket_for(sure.rows + 1).unwrap_or(sure.rows + 1);
                *decision = decision.map(|d| d.trying(rows - sure.rows));
            }
        }
    }

    /// What several texts, of which so many draft, can expect of the best round: its tokens a second, and drafted nodes.
    pub(crate) fn expected_round(&self, together: &Together<'_>, drafting: usize) -> Option<(f64, usize)> {
        let depth = self.draft.as_ref().map_or(0, |d| d.settings.n_drafts().min(MAX_DRAFT_DEPTH));
        let weights = self.prospect.weights().filter(|_| drafting > 0 && together.sure.tokens > 1.0)?;
        together.expected_round(drafting, &weights[..depth])
    }

    /// Cuts the trees of all sequences to what is worth most to all of them.
    fn settle(&mut self, prompt_rows: usize, room: usize, n_drafting: usize) {
        let is_weighed =
            |round: &Round| round.decision.is_some_and(|d| !d.is_fixed) && round.tree.n_drafts() > 0;
        let (mut rows, mut tokens) = (prompt_rows, 0.0);
        for (_, round) in self.seqs.iter().zip(&self.rounds).filter(|(seq, _)| seq.is_writing()) {
            let fixed = if is_weighed(round) { Forecast::default() } else { round.forecast };
            rows += 1 + fixed.drafts;
            tokens += fixed.tokens.max(1.0);
        }
        let (mut rate, mut left) = (None::<f64>, room);
        for round in &self.rounds {
            if is_weighed(round) {
                rate = rate.into_iter().chain(round.decision.and_then(|d| d.rate())).reduce(f64::max);
            } else {
                left = left.saturating_sub(round.tree.n_drafts());
            }
        }
        let draft_seconds = if n_drafting > 0 { self.cost.draft_seconds_of(n_drafting) } else { None };
        let draft_seconds = draft_seconds.unwrap_or(0.0);
        let sure = Beside { rows, tokens, drafting: 0 };
        let together = Together { cost: &self.cost, sure, draft_seconds, rate, room: left };
        let together = together.expecting(self.expected_round(&together, n_drafting));
        let rounds = &self.rounds;
        let counts = together.best_counts(rounds.len(), |tree, n| {
            let round = &rounds[tree];
            let node = round.tree.nodes().get(n + 1).filter(|_| is_weighed(round));
            node.map(|node| node.log_weight)
        });
        for (round, count) in self.rounds.iter_mut().zip(counts) {
            if is_weighed(round) {
                round.tree.truncate(count as usize + 1);
                round.forecast = Forecast::of(&round.tree);
            }
        }
        share_rows(&mut self.rounds, room);
        let asked = self.rounds.iter().filter(|r| r.decision.is_some_and(|d| d.forward));
        let drafted = asked.flat_map(|r| r.tree.nodes()).filter(|n| n.source == Source::Draft && n.depth > 0);
        if n_drafting > 0 {
            self.reach.learn(drafted.map(|n| n.depth as usize).max().unwrap_or(0));
        }
        self.step_sum = Beside { rows: prompt_rows, tokens: 0.0, drafting: n_drafting };
        for (_, round) in self.seqs.iter().zip(&self.rounds).filter(|(seq, _)| seq.is_writing()) {
            self.step_sum.rows += 1 + round.tree.n_drafts();
            self.step_sum.tokens += round.forecast.tokens.max(1.0);
        }
    }

    /// Passes of the draft for the sequences that ask for one, and the trees that come of them.
    fn ask_draft(&mut self, drafting: &[usize], started: Instant, recorded: usize) -> Result<()> {
        self.inject(drafting)?;
        let Some(settings) = self.draft.as_ref().map(|d| &d.settings) else { return Ok(()) };
        let is_free = |index: &usize| self.rounds[*index].decision.is_some_and(|d| !d.is_fixed);
        let all = settings.n_drafts();
        let rows = if drafting.iter().all(is_free) { self.reach.depths(all) } else { all };
        for batch in drafting.chunks(self.plans.seqs_of_pass(settings.block_size, rows)) {
            let plan = self.draft_blocks(batch, rows)?;
            let k = CANDIDATES.min(self.decoder.hyper.vocab);
            let candidates = plan.candidates.expect("a block plan has candidates");
            let all = self.backend.read_choices(plan.id, candidates);
            for (index, mine) in batch.iter().zip(all.chunks(rows * k)) {
                let seq = &self.seqs[*index];
                let said: Vec<(u32, f32)>;
                let mine = if self.rounds[*index].forced.is_some() {
                    said = (0..).zip(mine).map(|(i, (token, _))| (*token, Pace::said(i % k))).collect();
                    &said
                } else {
                    mine
                };
                let mut depths: [Ranked<'_>; MAX_DRAFT_DEPTH] = [&[]; MAX_DRAFT_DEPTH];
                let n = depths.iter_mut().zip(mine.chunks(k).take(drafts_left(seq)));
                let n = n.map(|(depth, candidates)| *depth = candidates).count();
                let candidates = Candidates::Depths(&depths[..n]);
                grow(&mut self.rounds[*index], candidates);
            }
        }
        if !drafting.is_empty() && self.plans.n_ready() == recorded {
            self.cost.learn_drafts(drafting.len(), (self.clock.now() - started).as_secs_f64());
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
            // One that never drafts lets its taps go: to take them in would cost it one and a half percent.
            let due = waiting >= MAX_WAITING && round.policy.mode() != Mode::Off || drafting.contains(&index);
            debug_assert!(
                !due || waiting <= TAP_ROWS,
                "what waits has places of its own in the ring of taps"
            );
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
        let wanted = Wanted::written(Use::Inject, self.step.n_rows());
        let plan = self.plans.get(wanted, &self.decoder, self.draft.as_ref(), &mut *self.backend)?;
        // Nothing of it is read, so nobody waits: the block that looks at what entered runs after it.
        self.backend.run(plan.id, self.state, &self.step)?;
        for s in 0..self.step.n_seqs() {
            let slot = self.step.seq(s).slot as u32;
            let seqs = self.seqs.iter().zip(&mut self.rounds);
            let entered = seqs.filter(|(seq, _)| seq.slot == slot);
            entered.for_each(|(seq, round)| round.injected = seq.committed);
        }
        Ok(())
    }

    /// One pass of the draft over a block for each sequence, with so many rows of candidates; returns its plan.
    fn draft_blocks(&mut self, batch: &[usize], depths: usize) -> Result<Ready> {
        let settings = &self.draft.as_ref().expect("only a draft is asked for a pass").settings;
        let (block, mask) = (settings.block_size, settings.mask_token);
        self.step.clear();
        if self.plans.is_block_apart(batch.len() * block) {
            self.step.begin_prompts();
        }
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
        let wanted = Wanted::written(Use::Block, self.step.n_rows());
        let plan = self.plans.get(wanted, &self.decoder, self.draft.as_ref(), &mut *self.backend)?;
        self.backend.run(plan.id, self.state, &self.step)?;
        self.backend.wait()?;
        Ok(plan)
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
        let next = |i: usize| rounds[i].tree.nodes().get(kept[i]).map(|n| n.log_weight);
        let Some((i, _)) = heaviest(&kept, next) else { break };
        kept[i] += 1;
    }
    for (round, kept) in rounds.iter_mut().zip(kept) {
        round.tree.truncate(kept);
        round.forecast = Forecast::of(&round.tree);
    }
}

/// Why, if nothing is drafted after all.
pub(crate) fn why_plain(mode: Mode, decision: &Decision) -> Plain {
    match mode {
        Mode::Off => Plain::Off,
        _ if decision.is_plain() => Plain::Unpromising,
        _ => Plain::Worthless,
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
    Beside { rows: others + prompt_rows, tokens: others as f64, drafting: 0 }
}

fn grow(round: &mut Round, candidates: Candidates<'_>) {
    let Some(decision) = round.decision else { return };
    let input = ProposeInput { candidates, shape: decision.shape };
    round.forecast = round.drafter.propose(&input, &decision.offer(), &mut round.tree);
}
