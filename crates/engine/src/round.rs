//! A step of the engine: for each sequence that writes a round of propose, verify, accept and commit, and chunks of
//! prompts in between. Plain decoding is the round whose tree is only its root.

use overdraft_plan::{NO_PARENT, NO_TOKEN, PAGE, grid_of};

use crate::engine::Engine;
use crate::error::{EngineError, Result};
use crate::event::{Event, Events, Origin, Witness};
use crate::logprobs::logprobs;
use crate::plans::{Ready, TREE_ROWS, Use, Wanted};
use crate::request::SeqId;
use crate::schedule::{self, Load};
use crate::sequence::Sequence;
use crate::spec::accept::{Verdict, walk};
use crate::spec::budget::{Beside, Forecast};
use crate::spec::cost::Padding;
use crate::spec::drafter::Drafter;
use crate::spec::forced::Forced;
use crate::spec::gate::{Gate, Passage};
use crate::spec::policy::{Mode, Policy, Round as Decision};
use crate::spec::tree::{Source, TokenTree};
use crate::spec::trials::Passes;
use crate::stats::{Phases, Plain};

/// What a sequence drafts and what becomes of it, beside the sequence itself.
pub(crate) struct Round {
    pub(crate) drafter: Box<dyn Drafter + Send>,
    pub(crate) policy: Policy,
    /// Of this round; `None` while prompts are read or when nothing more could be drafted.
    pub(crate) decision: Option<Decision>,
    /// Why, if its tree is only a root.
    pub(crate) plain: Plain,
    pub(crate) forecast: Forecast,
    pub(crate) tree: TokenTree,
    pub(crate) verdict: Verdict,
    /// What is accepted, where that is not for the target to say.
    pub(crate) forced: Option<Forced>,
    /// Positions in the draft's context; those up to the committed ones wait as taps.
    pub(crate) injected: usize,
    /// Its drafter has had lessons of its own.
    pub(crate) has_lesson: bool,
}

/// A sequence's part of the step at hand.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    seq: usize,
    /// Rows that are certain; the last of them is the tree's root.
    sure: usize,
    root_row: u32,
    /// The root's logits; a drafted node's lie as far behind as the node. `None`: its prompt goes on.
    logits: Option<usize>,
    /// The first sure row's logits, where the prompt's tokens are scored by them.
    scored: Option<usize>,
}

impl Part {
    /// Of a round whose rows of logits are the rows themselves.
    pub(crate) fn of_round(seq: usize, root_row: u32) -> Self {
        Self { seq, sure: 1, root_row, logits: Some(root_row as usize), scored: None }
    }

    pub(crate) fn seq(&self) -> usize {
        self.seq
    }
}

impl Engine {
    /// One forward pass over the rows of all sequences, and what came of it. All who write have their rows; prompts are
    /// read in what `schedule` leaves them.
    ///
    /// An error that names a sequence ([`EngineError::failed_sequence`]) is the end of that one alone: what the others
    /// wrote in that step comes with the next.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Events::default();
        let outcome = self.step_into(&mut events);
        self.held_back.append(&mut events.list);
        outcome?;
        Ok(std::mem::take(&mut self.held_back))
    }

    /// [`Self::step`] that leaves what it brought in `events`, in place of what was there, also when it says that a
    /// sequence failed. With a buffer that is kept, steps allocate nothing.
    pub fn step_into(&mut self, events: &mut Events) -> Result<()> {
        events.clear();
        if let Some(failure) = self.failed.pop_front() {
            return Err(failure);
        }
        let mut parts = std::mem::take(&mut self.parts);
        let outcome = self.step_parts(&mut parts, events);
        self.parts = parts;
        outcome
    }

    fn step_parts(&mut self, parts: &mut Vec<Part>, events: &mut Events) -> Result<()> {
        let started = self.clock.now();
        let (used, prompt_rows) = self.choose_step();
        if self.resident_step(used, events)? {
            return Ok(());
        }
        self.propose(used, prompt_rows)?;
        let proposed = self.clock.now();
        self.fill_step(parts, used, prompt_rows);
        if parts.is_empty() {
            return Ok(());
        }
        let rows = self.step.n_rows();
        let recorded = self.plans.n_ready();
        let wanted = Wanted { used, rows, written: self.step.n_written() };
        let plan = self.plans.get(wanted, &self.decoder, self.draft.as_ref(), &mut *self.backend)?;
        let verifying = self.clock.now();
        self.backend.run(plan.id, self.state, &self.step)?;
        self.backend.wait()?;
        let verified = self.clock.now();
        let mut failed = Vec::new();
        for part in parts.iter() {
            if let Err(failure) = self.accept(part, &plan, None, events) {
                failed.push(self.seqs[part.seq].id);
                self.failed.push_back(failure);
            }
        }
        let accepted = self.clock.now();
        self.commit(parts, &plan);
        // A device is at the commit meanwhile.
        for part in parts.iter().filter(|part| part.logits.is_some()) {
            if !failed.contains(&self.seqs[part.seq].id) {
                self.learn(part);
            }
        }
        self.learn_of_passes(parts);
        // Logits of every row are no part of what reading costs.
        if self.plans.n_ready() == recorded && !self.is_scoring {
            let seconds = (self.clock.now() - verifying).as_secs_f64();
            let cost = if used == Use::Write { &mut self.cost } else { &mut self.reading_cost };
            cost.learn_step(rows, seconds);
        }
        let ended = self.clock.now();
        let phases = Phases {
            propose: proposed - started,
            verify: verified - proposed,
            accept: accepted - verified,
            commit: ended - accepted,
        };
        for part in parts.iter() {
            self.move_on(part, &phases);
        }
        self.end_finished(events, &failed)
    }

    /// The end of those that are over, or that failed.
    pub(crate) fn end_finished(&mut self, events: &mut Events, failed: &[SeqId]) -> Result<()> {
        for event in &mut events.list {
            if let Some((_, stats)) = &mut event.finish
                && let Some(last) = self.cancel(event.seq)
            {
                *stats = last;
            }
        }
        failed.iter().for_each(|id| {
            self.cancel(*id);
        });
        self.failed.pop_front().map_or(Ok(()), Err)
    }

    /// What the next step is for, and rows of prompts in it at most.
    fn choose_step(&mut self) -> (Use, usize) {
        self.take_turns_with_scoring();
        let count = |is: fn(&Sequence) -> bool| self.seqs.iter().filter(|s| is(s)).count();
        let load = Load {
            writers: count(Sequence::is_writing),
            readers: count(Sequence::is_reading),
            drafts: self.rounds.iter().any(|r| r.policy.mode() != Mode::Off),
            token_gap: self.config.token_gap.map(|gap| gap.as_secs_f64()),
            step_rows: self.config.step_rows,
            unknown_rows: if self.padding == Padding::Bucket { self.config.step_rows } else { PAGE },
        };
        let (used, rows) = schedule::choose(&load, &self.reading_cost);
        (used, if self.is_scoring { rows.min(self.plans.logit_rows) } else { rows })
    }

    /// Prompts that are scored need the logits of all their rows, which is all that a step has: they and the others
    /// have every second step, where there are both.
    fn take_turns_with_scoring(&mut self) {
        let any = |is_scored: bool| self.seqs.iter().any(|s| !s.is_paused && s.is_scored() == is_scored);
        self.is_scoring = any(true) && !(self.is_scoring && any(false));
        for seq in &mut self.seqs {
            seq.rests = seq.is_scored() != self.is_scoring;
        }
    }

    /// Lays the rows of the next step: each writer's drafted nodes behind its root, then prompts.
    fn fill_step(&mut self, parts: &mut Vec<Part>, used: Use, prompt_rows: usize) {
        self.step.clear();
        parts.clear();
        for index in 0..self.seqs.len() {
            if self.seqs[index].is_writing() {
                self.lay_rows(index, 1, parts);
            }
        }
        if prompt_rows == 0 {
            return;
        }
        self.step.begin_prompts();
        let most = if used == Use::Mixed { TREE_ROWS } else { self.config.step_rows };
        let budget = prompt_rows.min(most - self.step.n_rows());
        let (mut left, mut rows) = std::mem::take(&mut self.prompt_rows);
        left.clear();
        left.extend(self.seqs.iter().filter(|s| s.is_reading()).map(Sequence::prompt_left));
        schedule::share_prompt_rows(&left, budget, self.reading_turn, &mut rows);
        self.reading_turn += 1;
        let mut shares = rows.iter();
        for index in 0..self.seqs.len() {
            if self.seqs[index].is_reading()
                && let Some(share) = shares.next().filter(|n| **n > 0)
            {
                self.lay_rows(index, *share, parts);
            }
        }
        self.prompt_rows = (left, rows);
    }

    /// Lays `sure` rows of a sequence, and its tree.
    fn lay_rows(&mut self, index: usize, sure: usize, parts: &mut Vec<Part>) {
        // A constraint's mask is known only when the step is over.
        let is_drawn_there =
            (self.backend.is_far() || self.backend.has_rounds()) && self.rounds[index].tree.gate().is_none();
        let (seq, tree) = (&mut self.seqs[index], &self.rounds[index].tree);
        self.memory.extend(&mut seq.tables, seq.committed + sure + tree.n_drafts());
        let tables = seq.tables.iter().map(|t| t.pages.as_slice());
        let s = self.step.add_seq(seq.slot, seq.committed as u32, sure as u32, seq.stored_grid, tables);
        if is_drawn_there {
            self.step.draw(s, seq.request.sampling.drawing, seq.history.listed());
        }
        let mut root_row = NO_PARENT;
        let is_scored = seq.is_scored();
        let scored = is_scored.then(|| self.step.logit_rows().len());
        for token in &seq.tokens[seq.committed..seq.committed + sure] {
            root_row = self.step.push(s, *token, root_row);
            if is_scored {
                self.step.want_logits(root_row);
            }
        }
        let complete = seq.committed + sure == seq.tokens.len();
        if complete && !is_scored {
            self.step.want_logits(root_row);
        }
        let logits = complete.then(|| self.step.logit_rows().len() - 1);
        for node in &tree.nodes()[1..] {
            let row = self.step.push(s, node.token, root_row + node.parent);
            self.step.want_logits(row);
        }
        parts.push(Part { seq: index, sure, root_row, logits, scored });
    }

    /// Draws the target's tokens down the sequence's tree and gives them out. `chosen`: what was drawn already, by rows of
    /// logits.
    pub(crate) fn accept(
        &mut self,
        part: &Part,
        plan: &Ready,
        chosen: Option<&[(u32, f32)]>,
        events: &mut Events,
    ) -> Result<()> {
        let (seq, round) = (&mut self.seqs[part.seq], &mut self.rounds[part.seq]);
        round.verdict.path.clear();
        if part.logits.is_none() && part.scored.is_none() {
            return Ok(());
        }
        let vocab = self.decoder.hyper.vocab;
        // Read when first asked for: where they are far, a text whose tokens were drawn there never asks.
        let all = || self.backend.read(plan.id, plan.logits);
        if let (Some(first), Some(n), Some(scores)) = (part.scored, seq.prompt_logprobs, &mut seq.scores) {
            // A row's logits are of the token behind it.
            let behind = seq.request.prompt[seq.committed + 1..].iter().take(part.sure);
            let rows = all()[first * vocab..].chunks_exact(vocab);
            scores.extend(behind.zip(rows).map(|(token, logits)| logprobs(logits, *token, n)));
        }
        let Some(first) = part.logits else { return Ok(()) };
        let mut gate = round.tree.gate().take();
        let drawn = plan.drawn.filter(|_| gate.is_none());
        let drawn = chosen.or_else(|| drawn.map(|choice| self.backend.read_choices(plan.id, choice)));
        let tree = &round.tree;
        if let Some(forced) = &mut round.forced {
            forced.begin(tree);
        }
        let walked = walk(tree, &mut round.verdict, |node, depth| {
            let row = first + node as usize;
            let logits = || &all()[row * vocab..][..vocab];
            let position = seq.tokens.len() as u32;
            let allowed = gate.as_mut().map(Gate::mask);
            let sampling = &seq.request.sampling;
            let chosen = match drawn {
                Some(tokens) => Some(tokens[row].0).filter(|token| *token != NO_TOKEN),
                None => self.sampler.choose_allowed(logits(), allowed, sampling, &seq.history, position),
            };
            let token = chosen.ok_or(EngineError::Logits { seq: seq.id, position })?;
            let token = round.forced.map_or(token, |forced| forced.token(tree, node, depth, token));
            // What ends the text need not be known to the constraint.
            let is_end = seq.request.stop_ids.contains(&token);
            let passage = gate.as_mut().filter(|_| !is_end).map_or(Passage::GoesOn, |gate| gate.join(token));
            if passage == Passage::Contradicted {
                return Err(EngineError::Constraint { seq: seq.id, position, token });
            }
            round.drafter.committed(token);
            let mut text = events.text();
            let finish = seq.accept(token, passage == Passage::IsOver, &self.tokenizer, &mut text);
            let origin = match tree.child(node, token) {
                Some(_) => Origin::Accepted,
                None if tree.n_children(node) > 0 => Origin::Corrected,
                None => Origin::Plain,
            };
            events.list.push(Event {
                seq: seq.id,
                token,
                text,
                origin,
                fingerprint: (self.config.witness != Witness::None).then(|| fingerprint(logits())),
                logits: (self.config.witness == Witness::Logits).then(|| logits().to_vec()),
                logprobs: seq.logprobs.map(|n| logprobs(logits(), token, n)),
                prompt_logprobs: seq.scores.take(),
                finish: finish.map(|f| (f, seq.stats)),
            });
            Ok::<_, EngineError>((token, finish.is_some()))
        });
        *round.tree.gate() = gate;
        walked?;
        let tree = &round.tree;
        if !seq.in_prompt() {
            seq.stats.count_round(tree, round.verdict.path.len(), round.plain);
        }
        Ok(())
    }

    /// What a sequence's guesses were worth to it.
    pub(crate) fn learn(&mut self, part: &Part) {
        let round = &mut self.rounds[part.seq];
        let Some(decision) = &round.decision else { return };
        round.drafter.learn(&round.tree, &round.verdict);
        let tokens = round.verdict.n_tokens();
        if decision.forward {
            round.has_lesson |= round.tree.nodes()[1..].iter().any(|node| node.source == Source::Draft);
            self.prospect.learn(&round.tree, &round.verdict);
        }
        if decision.is_try {
            return round.policy.pass_by(tokens);
        }
        let sum = self.step_sum;
        let beside = Beside {
            rows: sum.rows.saturating_sub(1 + round.forecast.drafts),
            tokens: (sum.tokens - round.forecast.tokens.max(1.0)).max(0.0),
            drafting: sum.drafting.saturating_sub(usize::from(decision.forward)),
        };
        round.policy.learn(decision, &round.forecast, tokens, &self.cost, beside);
    }

    /// What the draft passes of a step of several sequences were worth to all of them.
    pub(crate) fn learn_of_passes(&mut self, parts: &[Part]) {
        let writers = self.seqs.iter().filter(|s| s.is_writing()).count();
        let (Some(plain), Some(step)) =
            (self.cost.step_seconds(writers), self.cost.step_seconds(self.step_sum.rows))
        else {
            return;
        };
        if writers < 2 {
            return;
        }
        let (mut drafted, mut came_true, mut has_room) = (0, 0, false);
        for part in parts {
            let (Round { tree, verdict, decision, .. }, seq) = (&self.rounds[part.seq], &self.seqs[part.seq]);
            has_room |= decision.is_some_and(|d| d.forward) && seq.limit > seq.tokens.len() + 2;
            let is_drafted = |node: &u32| tree.nodes()[*node as usize].source == Source::Draft;
            drafted += (1..tree.len() as u32).filter(is_drafted).count();
            came_true += verdict.path.iter().filter(|node| is_drafted(node)).count();
        }
        // Of texts that end there are no guesses, and nothing was found out: taken for rows that are too dear, it kept the texts behind them from drafting.
        let passes = (self.step_sum.drafting > 0 && (drafted > 0 || has_room)).then(|| {
            let without = self.cost.step_seconds(self.step_sum.rows - drafted).unwrap_or(step);
            let draft = self.cost.draft_seconds_of(self.step_sum.drafting).unwrap_or(0.0);
            let seconds = step - without + draft;
            Passes { nodes: drafted, tokens: came_true as f64, seconds, plain_rate: writers as f64 / plain }
        });
        self.trials.learn(writers, passes);
    }

    /// Accepted rows become permanent; with a draft their taps wait for it.
    fn commit(&mut self, parts: &[Part], plan: &Ready) {
        self.paths.resize(parts.len(), Vec::new());
        let mut any = self.draft.is_some();
        for (part, path) in parts.iter().zip(&mut self.paths) {
            path.clear();
            path.extend(self.rounds[part.seq].verdict.path.iter().map(|node| part.root_row + node));
            any |= !path.is_empty();
        }
        if any {
            self.backend.commit(plan.id, self.state, &self.step, &self.paths);
        }
    }

    pub(crate) fn move_on(&mut self, part: &Part, phases: &Phases) {
        let (seq, round) = (&mut self.seqs[part.seq], &mut self.rounds[part.seq]);
        let was_prompt = seq.in_prompt();
        if was_prompt {
            seq.stats.prompt_time += phases.total();
        } else {
            seq.stats.generation_time += phases.total();
            seq.stats.phases.add(phases);
        }
        seq.stored_grid = grid_of((seq.committed + part.sure - 1) as u32);
        seq.committed += part.sure + round.verdict.path.len();
        if was_prompt {
            round.injected = seq.committed;
            // Only what was read as a prompt: a backend may compute written rows by other kernels, and a hit must give
            // the bits of reading.
            let read = &seq.request.prompt[..seq.committed];
            if let Some(to) = self.memory.keep(seq.cache_salt, read, seq.keep_at, &seq.tables) {
                self.backend.copy_slot(self.state, seq.slot as usize, to as usize);
            }
        }
        self.memory.trim(&mut seq.tables, seq.committed);
    }
}

/// Changes with any bit of any logit.
fn fingerprint(logits: &[f32]) -> u64 {
    logits.iter().fold(0xcbf2_9ce4_8422_2325, |h, l| {
        (h ^ u64::from(l.to_bits())).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5)
    })
}
