//! Rounds that the backend runs by itself, from waiting taps to commit. The engine asks for the next one before it has
//! looked at the last, so that a device never waits for it: what it decides (who takes part, how much is drafted) comes a
//! round late, what a text is never depends on it.
//!
//! Either all who write draft or none does. Everything else is a step of `round.rs`: while prompts are read, for texts whose
//! tokens the host has to choose, where some draft and others do not, and where taps of texts that write plainly have to enter
//! the draft's context. Before one, what was asked for is taken to its end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use overdraft_plan::{
    BackendError, Fate, MAX_DRAFT_DEPTH, MAX_ENTERING, MAX_RESIDENTS, MAX_ROUND_ROWS, MAX_STOP_IDS, Member,
    NO_TOKEN, Outcome, PAGE, Resident, RoundDraft, RoundId, RoundSpec, Terms, bucket_for,
};

use crate::engine::{Engine, SLACK};
use crate::error::{EngineError, Result};
use crate::event::{Events, Witness};
use crate::plans::{CANDIDATES, Ready, Use, Wanted};
use crate::propose::{MAX_WAITING, why_plain};
use crate::request::SeqId;
use crate::round::{Part, Round};
use crate::sequence::Sequence;
use crate::spec::budget::{Beside, Forecast};
use crate::spec::calibration::Calibration;
use crate::spec::policy::{Mode, Round as Decision};
use crate::spec::together::Together;
use crate::spec::tree::Source;
use crate::stats::Phases;

/// Rounds asked for and not yet taken, at most.
const AHEAD: usize = 2;
/// Positions past what the host knows to be committed that such rounds can touch.
const FURTHEST: usize = AHEAD * MAX_ENTERING + SLACK;
// Each combination of these is a round of its own to be recorded, and a device keeps 32 as graphs. Its first two runs are launched
// and captured, node by node. With 28 kinds of a lone text an H200 idled 41 % of 8 prompts of HumanEval under `auto`, 128 ms of 313,
// which is taken to be for that (160 kinds: 43 %; 2 % under a chain of 7, which is one kind); with 14 it was not measured.
/// Depths of a draft are asked for in steps of so many.
const DEPTH_STEP: usize = 8;
/// Rows to verify.
const ROWS: [usize; 9] = [4, 8, 16, 24, 32, 48, 64, 96, MAX_ROUND_ROWS];
/// Taps of a sequence that a round has room for.
const ENTERING: [usize; 2] = [8, MAX_ENTERING];
/// Counts of sequences that rounds are recorded for.
const SEQS: [usize; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, MAX_RESIDENTS];
/// What of the rows lately wanted is left by a round that wanted fewer.
const WANTED_DECAY: f64 = 0.9;

/// What all who write do in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Drafted,
}

/// What a round has room for: recorded once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    seqs: usize,
    rows: usize,
    drafted: Option<DraftSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DraftSize {
    depths: usize,
    /// Rows of waiting taps.
    entering: usize,
}

#[derive(Clone, Copy)]
struct Prepared {
    id: RoundId,
    size: Size,
    verify: Ready,
}

/// A round that was asked for.
struct Flight {
    kind: Kind,
    verify: Ready,
    /// The first of its size, in which kernels may be loaded: its time says nothing of what rows cost.
    is_first: bool,
    members: Vec<(SeqId, Decision)>,
}

/// A sequence that the backend knows, and pages of each of its tables that it was told of.
struct Known {
    id: SeqId,
    pages: usize,
}

#[derive(Default)]
pub(crate) struct Residence {
    prepared: Vec<Prepared>,
    flights: VecDeque<Flight>,
    known: Vec<Known>,
    /// The backend knows less of a sequence than the host must: all comes to its end first.
    is_over: bool,
    /// Rows lately wanted for verify, by all.
    wanted: f64,
    /// Taps that a sequence can have waiting when the next round begins.
    entering: usize,
    /// When the last round was taken.
    taken: Option<Instant>,
    terms: Terms,
    outcome: Outcome,
    chosen: Vec<(u32, f32)>,
    parts: Vec<Part>,
    spare: Vec<Vec<(SeqId, Decision)>>,
}

impl Engine {
    /// The step as rounds of the backend, if it can be, or if there are some to be taken before another can be.
    pub(crate) fn resident_step(&mut self, used: Use, events: &mut Events) -> Result<bool> {
        let started = self.clock.now();
        let kind = if used == Use::Write { self.next_kind() } else { None };
        if let Some(kind) = kind {
            if self.residence.flights.is_empty() {
                self.ask_for_round(kind)?;
                self.residence.taken = Some(started);
            }
            // Logits are there to be looked at only until the next round.
            if self.config.witness == Witness::None {
                self.ask_for_round(kind)?;
            }
        }
        let Some(flight) = self.residence.flights.pop_front() else { return Ok(false) };
        self.take_round(flight, events)?;
        Ok(true)
    }

    /// The next rounds of the backend, if all who write can and should do so in such. Those under way are of the same kind.
    fn next_kind(&mut self) -> Option<Kind> {
        let is_entering = self.residence.flights.is_empty();
        self.residence.is_over &= !is_entering;
        let writers = self.seqs.iter().filter(|s| s.is_writing()).count();
        let fits = self.backend.has_rounds()
            && self.config.step_rows >= FURTHEST
            && (1..=MAX_RESIDENTS).contains(&writers)
            && !self.residence.is_over;
        if !fits {
            return None;
        }
        let beside = Beside { rows: writers - 1, tokens: (writers - 1) as f64, drafting: 0 };
        let listed_room = self.backend.listed_room();
        let Self { seqs, rounds, residence, cost, .. } = self;
        let known = |id| residence.known.iter().any(|k| k.id == id);
        let (mut forward, mut can_draft, mut can_be_plain) = (0, true, true);
        for (seq, round) in seqs.iter().zip(rounds.iter_mut()).filter(|(seq, _)| seq.is_writing()) {
            let decision = round.policy.decide(cost, beside);
            round.decision = Some(decision);
            let is_known = is_entering || known(seq.id);
            // What rows cost is measured by a step first: by it trees are cut, and drafting is weighed.
            let is_weighed = !decision.is_fixed || round.policy.mode() == Mode::Auto;
            if !is_known || !can_reside(seq, round, listed_room) {
                return None;
            }
            if is_weighed && cost.step_seconds(writers).is_none() {
                return None;
            }
            let waiting = seq.committed - round.injected;
            forward += usize::from(decision.forward);
            can_draft &= !is_entering || (1..=MAX_ENTERING).contains(&waiting);
            // Each round under way leaves one more.
            can_be_plain &=
                round.policy.mode() == Mode::Off || waiting + residence.flights.len() < MAX_WAITING;
        }
        if forward == writers && can_draft {
            let mut drafting = std::mem::take(&mut self.chosen);
            let waiting = self.rounds.iter_mut().zip(&self.seqs).filter(|(_, seq)| !seq.is_writing());
            waiting.for_each(|(round, _)| round.decision = None);
            self.choose_drafting(&mut drafting, 0, self.round_rows().saturating_sub(writers));
            forward = drafting.len();
            self.chosen = drafting;
        }
        let kind = match forward {
            0 if can_be_plain => Kind::Plain,
            n if n == writers && can_draft => Kind::Drafted,
            _ => return None,
        };
        let under_way = self.residence.flights.back().map(|flight| flight.kind);
        under_way.is_none_or(|other| other == kind).then_some(kind)
    }

    /// Rows that a round can verify: each has logits.
    fn round_rows(&self) -> usize {
        self.plans.logit_rows.min(MAX_ROUND_ROWS)
    }

    /// Tells the backend of all who write, where no round is under way, and of pages that were not told of yet.
    fn tell(&mut self, residence: &mut Residence) -> Result<()> {
        let is_entering = residence.flights.is_empty();
        if is_entering {
            residence.known.clear();
        }
        for (seq, round) in self.seqs.iter_mut().zip(&self.rounds).filter(|(seq, _)| seq.is_writing()) {
            if is_entering {
                self.backend.set_resident(self.state, &resident(seq, round), seq.history.listed())?;
                residence.known.push(Known { id: seq.id, pages: 0 });
            }
            let pages = (seq.committed + FURTHEST).min(seq.limit + SLACK).div_ceil(PAGE);
            let known = residence.known.iter_mut().find(|k| k.id == seq.id && k.pages < pages);
            if let Some(known) = known {
                known.pages = pages;
                self.memory.extend(&mut seq.tables, pages * PAGE);
                let mut tables = seq.tables.iter().map(|t| t.pages.as_slice());
                self.backend.set_tables(self.state, seq.slot, &mut tables)?;
            }
        }
        Ok(())
    }

    fn ask_for_round(&mut self, kind: Kind) -> Result<()> {
        let mut residence = std::mem::take(&mut self.residence);
        let asked = self.ask_for(kind, &mut residence);
        self.residence = residence;
        asked
    }

    fn ask_for(&mut self, kind: Kind, residence: &mut Residence) -> Result<()> {
        let mut members = residence.spare.pop().unwrap_or_default();
        members.clear();
        residence.terms.members.clear();
        for (seq, round) in self.seqs.iter().zip(&self.rounds).filter(|(seq, _)| seq.is_writing()) {
            let Some(decision) = round.decision else { continue };
            residence.terms.members.push(member(kind, seq, round, &decision));
            members.push((seq.id, decision));
        }
        let size = match kind {
            Kind::Plain => plain_size(members.len()),
            Kind::Drafted => self.drafted_size(residence, &members),
        };
        let (prepared, is_first) = self.prepared_round(residence, size)?;
        self.tell(residence)?;
        self.backend.run_round(prepared.id, self.state, &residence.terms)?;
        residence.flights.push_back(Flight { kind, verify: prepared.verify, is_first, members });
        Ok(())
    }

    /// The round in which so many draft; their terms say what rows are worth. Where all trees are free the draft is asked as
    /// deep as they have been lately.
    fn drafted_size(&mut self, residence: &mut Residence, members: &[(SeqId, Decision)]) -> Size {
        let terms = &mut residence.terms;
        let free = || members.iter().map(|m| m.1).filter(|decision| !decision.is_fixed);
        let fixed: usize = terms.members.iter().filter(|m| m.is_fixed).map(|m| m.nodes as usize).sum();
        let rate = free().filter_map(|decision| decision.rate()).reduce(f64::max);
        let writers = members.len();
        let all_free = free().count() == writers;
        let sure = Beside { rows: writers, tokens: writers as f64, drafting: 0 };
        let draft_seconds = self.cost.draft_seconds_of(writers).unwrap_or(0.0);
        let room = self.round_rows().saturating_sub(writers);
        let most = Together { cost: &self.cost, sure, draft_seconds, rate, room }.price_rows(terms);
        // Nobody grows a tree only to have it cut.
        for member in terms.members.iter_mut().filter(|m| !m.is_fixed) {
            member.nodes = member.nodes.min((most - writers) as u32);
        }
        let rows = (writers + fixed).max(if all_free { residence.wanted.ceil() as usize } else { 0 });
        let deepest = terms.members.iter().map(|m| m.depth.min(m.nodes) as usize).max().unwrap_or(0);
        if residence.flights.is_empty() {
            let waiting = self.seqs.iter().zip(&self.rounds).filter(|(seq, _)| seq.is_writing());
            residence.entering =
                waiting.map(|(seq, round)| seq.committed - round.injected).max().unwrap_or(1);
        }
        let rows = rows.max(writers + 1);
        let all = self.draft.as_ref().map_or(0, |d| d.settings.n_drafts().min(MAX_DRAFT_DEPTH));
        let depths =
            if all_free { self.reach.depths(all).next_multiple_of(DEPTH_STEP).min(all) } else { all };
        let seqs = SEQS.into_iter().find(|n| *n >= writers).unwrap_or(MAX_RESIDENTS);
        let rows = ROWS.into_iter().find(|n| *n >= rows).unwrap_or(MAX_ROUND_ROWS).min(self.round_rows());
        // Eight rows more of a lone text's taps cost less than twice as many kinds.
        let entering = ENTERING.into_iter().find(|n| seqs > 1 && *n >= residence.entering);
        let entering = entering.unwrap_or(MAX_ENTERING);
        let entering = bucket_for(seqs * entering).unwrap_or(seqs * entering);
        // Never less, for one that was paused may come back with what it had.
        residence.entering = residence.entering.max(1 + deepest.min(depths));
        Size { seqs, rows, drafted: Some(DraftSize { depths, entering }) }
    }

    /// The round of a size, recorded when first needed, and whether that is now.
    fn prepared_round(&mut self, residence: &mut Residence, size: Size) -> Result<(Prepared, bool)> {
        if let Some(prepared) = residence.prepared.iter().find(|p| p.size == size) {
            return Ok((*prepared, false));
        }
        let draft = size.drafted.map(|drafted| self.round_draft(size.seqs, drafted)).transpose()?;
        let verify = self.written_plan(Use::Write, size.rows)?;
        let spec = RoundSpec {
            draft,
            verify: verify.id,
            chosen: verify.drawn.expect("where there are rounds, plans draw"),
            seqs: size.seqs,
            rows: size.rows,
            positions: self.config.context + SLACK,
        };
        let id = self.backend.prepare_round(spec, self.state)?;
        let prepared = Prepared { id, size, verify };
        residence.prepared.push(prepared);
        Ok((prepared, true))
    }

    fn round_draft(&mut self, seqs: usize, size: DraftSize) -> Result<RoundDraft> {
        let settings = &self.draft.as_ref().expect("only with a draft is there something to draft").settings;
        let (block_size, mask_token) = (settings.block_size, settings.mask_token);
        // As many passes as it takes, and as few sequences in each.
        let passes = seqs.div_ceil(self.plans.seqs_of_pass(block_size, size.depths));
        let per_pass = seqs.div_ceil(passes);
        let inject = self.written_plan(Use::Inject, size.entering)?;
        let block = self.written_plan(Use::Block, per_pass * block_size)?;
        Ok(RoundDraft {
            inject: inject.id,
            block: block.id,
            candidates: block.candidates.expect("a block plan has candidates"),
            block_size,
            block_is_apart: self.plans.is_block_apart(per_pass * block_size),
            mask_token,
            depths: size.depths,
            n_candidates: CANDIDATES.min(self.decoder.hyper.vocab),
            per_pass,
        })
    }

    fn written_plan(&mut self, used: Use, rows: usize) -> Result<Ready> {
        let wanted = Wanted::written(used, rows);
        self.plans.get(wanted, &self.decoder, self.draft.as_ref(), &mut *self.backend)
    }

    /// What became of a round: texts go on, and what there is to learn is learned.
    fn take_round(&mut self, flight: Flight, events: &mut Events) -> Result<()> {
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
        let is_drafted = flight.kind == Kind::Drafted;
        let drafting = if is_drafted { outcome.fates.len() } else { 0 };
        self.step_sum = Beside { rows: outcome.nodes.len(), tokens: 0.0, drafting };
        for fate in &outcome.fates {
            // One that was cancelled meanwhile is no one's; nor is the next that has its slot.
            let index = self.seqs.iter().position(|s| s.slot == fate.slot);
            let Some(index) = index else { continue };
            let Some((_, decision)) = flight.members.iter().find(|m| m.0 == self.seqs[index].id) else {
                continue;
            };
            let (seq, round) = (&self.seqs[index], &mut self.rounds[index]);
            if is_drafted {
                round.injected = seq.committed;
            }
            residence.is_over |= fate.doubt.is_some();
            if fate.doubt == Some(0) {
                continue;
            }
            (round.decision, round.plain) = (Some(*decision), why_plain(round.policy.mode(), decision));
            retrace(seq, round, outcome, fate)?;
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
            residence.wanted = (residence.wanted * WANTED_DECAY).max(f64::from(outcome.wanted_rows));
        }
        if !flight.is_first && drafting > 0 {
            self.cost.learn_drafts(drafting, outcome.draft_seconds);
        }
        if !flight.is_first && !outcome.nodes.is_empty() {
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
                let is_its = flight.members.iter().any(|m| m.0 == seq.id);
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

fn resident(seq: &Sequence, round: &Round) -> Resident {
    let mut stop_ids = [NO_TOKEN; MAX_STOP_IDS];
    stop_ids.iter_mut().zip(&seq.request.stop_ids).for_each(|(to, id)| *to = *id);
    Resident {
        slot: seq.slot,
        committed: seq.committed as u32,
        injected: round.injected as u32,
        stored_grid: seq.stored_grid,
        root: seq.tokens[seq.committed],
        limit: seq.limit as u32,
        stop_ids,
        drawing: seq.request.sampling.drawing,
        forced: round.forced.map(|forced| forced.pace()),
        is_active: true,
    }
}

fn member(kind: Kind, seq: &Sequence, round: &Round, decision: &Decision) -> Member {
    let (depth, nodes) = if kind == Kind::Drafted { round.tree.most() } else { (0, 0) };
    Member {
        slot: seq.slot,
        nodes: decision.limit.min(nodes) as u32,
        depth,
        is_chain: decision.is_chain(),
        is_fixed: decision.is_fixed,
        trust: round.drafter.learned().map_or(Default::default(), Calibration::trust_in_draft),
    }
}

/// As few sizes as there are plans.
fn plain_size(writers: usize) -> Size {
    let rows = bucket_for(writers).unwrap_or(MAX_RESIDENTS);
    Size { seqs: rows, rows, drafted: None }
}

/// What the device can choose by itself, and nothing that the host must see first.
fn can_reside(seq: &Sequence, round: &mut Round, listed_room: usize) -> bool {
    // With what rounds under way can count, and the next.
    seq.history.stays_within(listed_room, AHEAD * MAX_ENTERING)
        && seq.logprobs.is_none()
        && seq.request.stop_ids.len() <= MAX_STOP_IDS
        && round.tree.gate().is_none()
        // What was found in the text is the host's to propose, where that is more than the last tree has brought.
        && (round.decision.is_some_and(|d| d.is_plain())
            || round.drafter.unaided_tokens() <= (round.forecast.tokens - 1.0).max(0.0))
}

/// The tree that was verified, as the host would have made it. What lies behind a node that nothing was chosen after is left
/// out, so that this node is the last of its path.
fn retrace(seq: &Sequence, round: &mut Round, outcome: &Outcome, fate: &Fate) -> Result<()> {
    let nodes = outcome.nodes_of(fate);
    round.tree.clear(seq.tokens[seq.tokens.len() - 1]);
    let until = fate.doubt.map_or(nodes.len(), |doubt| doubt as usize);
    for node in &nodes[1..until] {
        let above = nodes[node.parent as usize].log_weight;
        round.tree.push_believed(node.parent, node.token, node.logp, node.log_weight - above, Source::Draft);
    }
    round.forecast = Forecast::of(&round.tree);
    let is_same = nodes[0].token == round.tree.nodes()[0].token && round.tree.len() == until;
    let said = || format!("a round verified another text than slot {} has", fate.slot);
    if is_same { Ok(()) } else { Err(BackendError::Device(said()).into()) }
}
