//! Rounds that the backend runs by itself, from waiting taps to commit. The engine asks for the next one before it has
//! looked at the last, so that a device never waits for it: what it decides (who takes part, how much is drafted) comes a
//! round late, what a text is never depends on it.
//!
//! Those that draft and those that do not share a round. Of the latter what was found in the text itself is verified, as far as the text
//! has gone along with it, and taps that have waited long enter the draft's context in it. Everything else is a step of `round.rs`: while prompts are read, and for texts whose tokens
//! the host has to choose. Before one, what was asked for is taken to its end.

mod fates;

use std::collections::VecDeque;
use std::time::Instant;

use overdraft_plan::{
    DraftPart, Found, MAX_DRAFT_DEPTH, MAX_ENTERING, MAX_RESIDENTS, MAX_ROUND_ROWS, MAX_STOP_IDS, Member,
    NO_TOKEN, Outcome, PAGE, Resident, TAP_ROWS, Terms,
};

use crate::engine::{Engine, SLACK};
use crate::error::Result;
use crate::event::{Events, Witness};
use crate::plans::{Ready, Use};
use crate::propose::MAX_WAITING;
use crate::request::SeqId;
use crate::round::{Part, Round};
use crate::round_sizes::{BlockSize, Kinds, Size};
use crate::sequence::Sequence;
use crate::spec::budget::Beside;
use crate::spec::policy::{Mode, Round as Decision};
use crate::spec::together::Together;
use crate::spec::tree::Source;

/// Rounds asked for and not yet taken, at most.
const AHEAD: usize = 2;
/// Positions past what the host knows to be committed that such rounds can touch.
pub(crate) const FURTHEST: usize = AHEAD * MAX_ENTERING + SLACK;
/// Taps of a text that does not draft enter with those of others when so many wait: so that texts which begin one by one come to
/// enter together, and most rounds have none.
const MAY_ENTER: usize = MAX_WAITING / 2;
/// Tokens found in a text that a round follows where its taps go on waiting, at most: with what the one before it leaves, all have
/// places to wait.
const FOLLOWED: usize = 7;
/// Texts at once up to which those of `auto` that do not draft follow what was found in them. The rows hold up all, and few find
/// anything: batches of the demo pair on an H200 wrote 1.42 of plain speed with two texts (1.25 by steps), but 0.94 with five and 0.81
/// with sixteen, and without following 0.96 and 0.93. Between two and five it was not measured.
pub(crate) const FOLLOWERS: usize = 4;

/// What was asked of a sequence in a round.
#[derive(Clone, Copy)]
struct Asked {
    id: SeqId,
    slot: u32,
    decision: Decision,
    part: DraftPart,
    /// Tokens that it can commit in it.
    most: usize,
}

/// A round that was asked for.
struct Flight {
    size: Size,
    verify: Ready,
    /// The first of its size, in which kernels may be loaded: its time says nothing of what rows cost.
    is_first: bool,
    members: Vec<Asked>,
}

/// A sequence that the backend knows, and pages of each of its tables that it was told of.
struct Known {
    id: SeqId,
    pages: usize,
}

#[derive(Default)]
pub(crate) struct Residence {
    pub(crate) kinds: Kinds,
    flights: VecDeque<Flight>,
    known: Vec<Known>,
    /// The backend knows less of a sequence than the host must: all comes to its end first.
    is_over: bool,
    /// Rows lately wanted for verify, by all.
    wanted: f64,
    /// What was found in texts that do not draft is worth its rows.
    is_following: bool,
    /// Those that could draft, and follow what was found in place of it.
    instead: Vec<usize>,
    /// When the last round was taken.
    taken: Option<Instant>,
    pub(crate) terms: Terms,
    pub(crate) outcome: Outcome,
    chosen: Vec<(u32, f32)>,
    parts: Vec<Part>,
    spare: Vec<Vec<Asked>>,
}

impl Residence {
    /// Taps of a sequence that wait when the next round begins, where each of those under way leaves so many more.
    fn waiting(&self, seq: &Sequence, round: &Round, left: impl Fn(&Asked) -> usize) -> usize {
        let asked = self.flights.iter().filter_map(|f| f.members.iter().find(|m| m.id == seq.id));
        asked.fold(seq.committed - round.injected, |waiting, asked| {
            left(asked) + if asked.part == DraftPart::Apart { waiting } else { 0 }
        })
    }

    /// As many as there can be.
    fn most_waiting(&self, seq: &Sequence, round: &Round) -> usize {
        self.waiting(seq, round, |asked| asked.most)
    }

    /// As many as there are at least: a round commits one.
    fn surely_waiting(&self, seq: &Sequence, round: &Round) -> usize {
        self.waiting(seq, round, |_| 1)
    }

    /// Whether one drafts in a round under way for what there is to learn.
    pub(crate) fn is_trying(&self) -> bool {
        self.flights.iter().flat_map(|f| &f.members).any(|m| m.decision.is_try)
    }

    /// Whether its taps enter in a round under way.
    fn is_entering(&self, id: SeqId) -> bool {
        let mut asked = self.flights.iter().flat_map(|f| &f.members);
        asked.any(|m| m.id == id && m.part != DraftPart::Apart)
    }
}

impl Engine {
    /// The step as rounds of the backend, if it can be, or if there are some to be taken before another can be.
    pub(crate) fn resident_step(&mut self, used: Use, events: &mut Events) -> Result<bool> {
        let started = self.clock.now();
        if used == Use::Write && self.decide_round() {
            if self.residence.flights.is_empty() {
                self.ask_for_round()?;
                self.residence.taken = Some(started);
            }
            // Logits are there to be looked at only until the next round.
            if self.config.witness == Witness::None {
                self.ask_for_round()?;
            }
        }
        let Some(flight) = self.residence.flights.pop_front() else { return Ok(false) };
        self.take_round(flight, events)?;
        Ok(true)
    }

    /// Whether the next round can be the backend's. Decides what each who writes does in it.
    fn decide_round(&mut self) -> bool {
        let is_entering = self.residence.flights.is_empty();
        self.residence.is_over &= !is_entering;
        let writers = self.seqs.iter().filter(|s| s.is_writing()).count();
        let fits =
            self.has_room_for_rounds() && (1..=MAX_RESIDENTS).contains(&writers) && !self.residence.is_over;
        if !fits {
            return false;
        }
        let beside = Beside { rows: writers - 1, tokens: (writers - 1) as f64, drafting: 0 };
        let listed_room = self.backend.listed_room();
        let has_draft = self.draft.is_some();
        let Self { seqs, rounds, residence, cost, .. } = self;
        let known = |id| residence.known.iter().any(|k| k.id == id);
        let mut asking = 0;
        for (seq, round) in seqs.iter().zip(rounds.iter_mut()) {
            round.decision = None;
            if !seq.is_writing() {
                continue;
            }
            let decision = round.policy.decide(cost, beside);
            round.decision = Some(decision);
            asking += usize::from(decision.forward);
            let is_known = is_entering || known(seq.id);
            // What rows cost is measured by a step first: by it trees are cut, and drafting is weighed.
            let is_weighed = !decision.is_fixed || round.policy.mode() == Mode::Auto;
            let can_enter = has_draft && round.policy.mode() != Mode::Off;
            let has_taps = !can_enter || residence.most_waiting(seq, round) <= TAP_ROWS;
            if !is_known || !has_taps || !can_reside(seq, round, listed_room) {
                return false;
            }
            if is_weighed && cost.step_seconds(writers).is_none() {
                return false;
            }
        }
        let mut drafting = std::mem::take(&mut self.chosen);
        drafting.clear();
        if asking > 0 {
            self.choose_drafting(&mut drafting, 0, self.round_rows().saturating_sub(writers));
        }
        self.chosen = drafting;
        self.weigh_found(writers);
        true
    }

    /// What was found in texts: one that drafts follows it instead where it promises more than its last tree did, and is free to; all
    /// others do where that is worth the rows, or was insisted on.
    fn weigh_found(&mut self, writers: usize) {
        let Self { rounds, residence, chosen, cost, .. } = self;
        residence.instead.clear();
        let (mut alone, mut is_insisted) = (0.0, false);
        for (index, round) in rounds.iter_mut().enumerate() {
            let Some(decision) = round.decision.filter(|decision| !decision.is_plain()) else { continue };
            let tokens = round.drafter.unaided_tokens();
            if !decision.forward {
                alone += tokens;
                is_insisted |= tokens > 0.0 && round.policy.mode() != Mode::Auto;
            } else if !decision.is_fixed && tokens > (round.forecast.tokens - 1.0).max(0.0) {
                round.decision = Some(decision.without_forward(true));
                residence.instead.push(index);
            }
        }
        chosen.retain(|index| !residence.instead.contains(index));
        let pays = |plain: f64| {
            let with = cost.step_seconds(writers + alone.ceil() as usize).unwrap_or(plain);
            alone * plain > writers as f64 * (with - plain)
        };
        let is_worth_it = writers <= FOLLOWERS && alone > 0.0;
        residence.is_following = is_insisted || is_worth_it && cost.step_seconds(writers).is_none_or(pays);
    }

    pub(crate) fn has_room_for_rounds(&self) -> bool {
        self.backend.has_rounds() && self.config.step_rows >= FURTHEST
    }

    /// Rows that a round can verify: each has logits.
    pub(crate) fn round_rows(&self) -> usize {
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

    fn ask_for_round(&mut self) -> Result<()> {
        let mut residence = std::mem::take(&mut self.residence);
        let asked = self.ask_for(&mut residence);
        self.residence = residence;
        asked
    }

    fn ask_for(&mut self, residence: &mut Residence) -> Result<()> {
        let mut members = residence.spare.pop().unwrap_or_default();
        members.clear();
        residence.terms.members.clear();
        let entering = self.choose_parts(residence, &mut members);
        let writers = members.len();
        let has_trees = residence.terms.members.iter().any(|m| m.nodes > 0 || m.part == DraftPart::Drafts);
        let size = if has_trees {
            let (rows, block) = self.size_with_trees(residence, &mut members);
            Size::with_trees(writers, rows, self.round_rows(), entering, block)
        } else {
            Size::plain(writers, entering)
        };
        let (prepared, is_first) = self.prepared_round(&mut residence.kinds, size)?;
        let deepest = prepared.size.block().map_or(0, |block| block.depths);
        let drafting = members.iter_mut().filter(|m| m.part == DraftPart::Drafts);
        drafting.for_each(|m| m.most = m.most.min(1 + deepest));
        self.tell(residence)?;
        self.backend.run_round(prepared.id, self.state, &residence.terms)?;
        let flight = Flight { size: prepared.size, verify: prepared.verify, is_first, members };
        residence.flights.push_back(flight);
        Ok(())
    }

    /// What the draft has to do with each who writes; returns how many rows of taps may enter its context.
    fn choose_parts(&self, residence: &mut Residence, members: &mut Vec<Asked>) -> usize {
        let has_draft = |round: &Round| self.draft.is_some() && round.policy.mode() != Mode::Off;
        let writers = || {
            let all = self.seqs.iter().zip(&self.rounds).enumerate();
            all.filter(|(_, (seq, round))| seq.is_writing() && round.decision.is_some())
        };
        // Those of which so many wait at least.
        let waits = |residence: &Residence, seq: &Sequence, round: &Round, least: usize| {
            has_draft(round) && residence.surely_waiting(seq, round) >= least
        };
        let any = !self.chosen.is_empty()
            || !residence.instead.is_empty()
            || writers().any(|(_, (seq, round))| waits(residence, seq, round, MAX_WAITING));
        // Rounds under way add at most as many as they have rows.
        let (mut most, mut known) = (0, residence.flights.iter().map(|f| f.size.rows).sum());
        for (index, (seq, round)) in writers() {
            let Some(decision) = round.decision else { continue };
            let waiting = if has_draft(round) { residence.most_waiting(seq, round) } else { 0 };
            let is_instead = residence.instead.contains(&index);
            let part = match self.chosen.contains(&index) {
                true => DraftPart::Drafts,
                // What follows instead keeps up with the draft.
                false if is_instead || any && waits(residence, seq, round, MAY_ENTER) => DraftPart::Enters,
                false => DraftPart::Apart,
            };
            if part != DraftPart::Apart {
                most += waiting;
                known += if residence.is_entering(seq.id) { 0 } else { seq.committed - round.injected };
            }
            let mut member = member(part, seq, round, &decision);
            if is_instead || residence.is_following && part != DraftPart::Drafts && !decision.is_plain() {
                let left = if part == DraftPart::Apart { waiting } else { 0 };
                let most = if is_instead { MAX_DRAFT_DEPTH } else { FOLLOWED };
                follow_found(&mut member, seq, round, &decision, most.min(TAP_ROWS.saturating_sub(left + 1)));
            }
            residence.terms.members.push(member);
            members.push(Asked { id: seq.id, slot: seq.slot, decision, part, most: 1 });
        }
        most.min(known)
    }

    /// Rows of a round with trees, and its passes where some draft; their terms say what rows are worth. Where all trees are free the
    /// draft is asked as deep as they have been lately.
    fn size_with_trees(
        &mut self,
        residence: &mut Residence,
        members: &mut [Asked],
    ) -> (usize, Option<BlockSize>) {
        let terms = &mut residence.terms;
        let drafting = || members.iter().filter(|m| m.part == DraftPart::Drafts).map(|m| m.decision);
        let free = || drafting().filter(|decision| !decision.is_fixed);
        let fixed: usize = terms.members.iter().filter(|m| m.is_fixed).map(|m| m.nodes as usize).sum();
        let rate = free().filter_map(|decision| decision.rate()).reduce(f64::max);
        let (writers, seqs) = (members.len(), drafting().count());
        let is_free = |m: &Asked| !m.decision.is_fixed || m.decision.is_plain();
        let all_free = members.iter().all(is_free);
        let sure = Beside { rows: writers, tokens: writers as f64, drafting: 0 };
        let draft_seconds = if seqs > 0 { self.cost.draft_seconds_of(seqs) } else { None };
        let draft_seconds = draft_seconds.unwrap_or(0.0);
        let room = self.round_rows().saturating_sub(writers);
        let together = Together { cost: &self.cost, sure, draft_seconds, rate, room };
        let expected = self.expected_round(&together, seqs);
        let most = together.expecting(expected).price_rows(terms);
        // Nobody grows a tree only to have it cut.
        for member in terms.members.iter_mut().filter(|m| !m.is_fixed) {
            member.nodes = member.nodes.min((most - writers) as u32);
        }
        for (asked, member) in members.iter_mut().zip(&terms.members) {
            asked.most = 1 + member.depth.min(member.nodes) as usize;
        }
        // What rounds lately wanted, or where those had no trees, what can be expected. (Sixteen texts that began with room for 8 guesses lost so much by it that
        // they wrote plainly for 60 rounds.)
        let lately = residence.wanted.ceil() as usize;
        let wanted = if lately > writers { lately } else { writers + expected.map_or(0, |(_, nodes)| nodes) };
        let rows = (writers + fixed).max(if all_free { wanted } else { 0 });
        let all = self.draft.as_ref().map_or(0, |d| d.settings.n_drafts().min(MAX_DRAFT_DEPTH));
        let depths = if all_free { self.reach.depths(all) } else { all };
        let block = (seqs > 0).then(|| BlockSize::new(seqs, writers, depths, all));
        let most = writers + terms.members.iter().map(|m| m.nodes as usize).sum::<usize>();
        (rows.min(most).max(writers + 1), block)
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

fn member(part: DraftPart, seq: &Sequence, round: &Round, decision: &Decision) -> Member {
    let (depth, nodes) = if part == DraftPart::Drafts { round.tree.most() } else { (0, 0) };
    Member {
        slot: seq.slot,
        part,
        nodes: decision.limit.min(nodes) as u32,
        depth,
        is_chain: decision.is_chain(),
        is_fixed: decision.is_fixed,
        trust: trust_in(round, Source::Draft),
        found: Found::NOTHING,
    }
}

fn trust_in(round: &Round, source: Source) -> [f32; MAX_DRAFT_DEPTH] {
    round.drafter.learned().map_or(Default::default(), |learned| learned.trust_in(source))
}

/// What is taken to follow the text as it is known here, up to so many tokens of it.
fn follow_found(member: &mut Member, seq: &Sequence, round: &Round, decision: &Decision, most: usize) {
    let found = Found { at: seq.committed as u32, ..round.drafter.unaided_path() };
    let (depth, nodes) = round.tree.most();
    if found.n > 0 {
        (member.depth, member.nodes) = (depth.min(most as u32), decision.limit.min(nodes).min(most) as u32);
        (member.trust, member.found) = (trust_in(round, Source::NGram), found);
    }
}

/// What the device can choose by itself, and nothing that the host must see first.
fn can_reside(seq: &Sequence, round: &mut Round, listed_room: usize) -> bool {
    // With what rounds under way can count, and the next.
    seq.history.stays_within(listed_room, AHEAD * MAX_ENTERING)
        && seq.logprobs.is_none()
        && seq.request.stop_ids.len() <= MAX_STOP_IDS
        && round.tree.gate().is_none()
        && round.drafter.suits_rounds()
}
