//! Rounds made of a backend's own plans, with the host between their parts: how a backend without rounds of its own runs one.

use std::collections::VecDeque;
use std::time::Instant;

use crate::backend::{Backend, BackendError, PlanId, StateId};
use crate::draw::{Adjustment, Drawing};
use crate::op::NO_TOKEN;
use crate::round::{
    DraftPart, Fate, Found, MAX_LISTED, MAX_STOP_IDS, Member, Outcome, Resident, RoundBlock, RoundId,
    RoundNode, RoundSpec, Terms,
};
use crate::round_definition::{accept, cut, follow, grow};
use crate::step::{NO_PARENT, Step};

struct Kept {
    resident: Resident,
    listed: Vec<Adjustment>,
    tables: Vec<Vec<u32>>,
}

/// Rounds of a backend that has none of its own, one after the other, when they are asked for.
#[derive(Default)]
pub struct HostRounds {
    specs: Vec<RoundSpec>,
    /// By slot.
    kept: Vec<Option<Kept>>,
    done: VecDeque<Outcome>,
    spare: Vec<Outcome>,
    step: Step,
    paths: Vec<Vec<u32>>,
    /// Tokens of a list at most, where that is not [`MAX_LISTED`].
    pub(crate) listed_room: Option<usize>,
}

impl HostRounds {
    pub fn listed_room(&self) -> usize {
        self.listed_room.unwrap_or(MAX_LISTED)
    }

    pub fn prepare(&mut self, spec: RoundSpec) -> RoundId {
        self.specs.push(spec);
        RoundId(self.specs.len() as u32 - 1)
    }

    pub fn set_resident(&mut self, resident: &Resident, listed: &[Adjustment]) {
        let kept = self.kept_mut(resident.slot);
        kept.resident = *resident;
        kept.listed.clear();
        kept.listed.extend_from_slice(listed);
    }

    pub fn set_tables<'t>(&mut self, slot: u32, tables: impl Iterator<Item = &'t [u32]>) {
        let kept = self.kept_mut(slot);
        kept.tables.clear();
        kept.tables.extend(tables.map(<[u32]>::to_vec));
    }

    fn kept_mut(&mut self, slot: u32) -> &mut Kept {
        let at = slot as usize;
        if self.kept.len() <= at {
            self.kept.resize_with(at + 1, || None);
        }
        self.kept[at].get_or_insert_with(|| Kept {
            resident: Resident {
                slot,
                committed: 0,
                injected: 0,
                stored_grid: 0,
                root: 0,
                limit: 0,
                stop_ids: [NO_TOKEN; MAX_STOP_IDS],
                drawing: Drawing::default(),
                forced: None,
                is_active: false,
            },
            listed: Vec::new(),
            tables: Vec::new(),
        })
    }

    /// The outcome of the oldest round that was not taken yet; without one, that of a round of nobody.
    pub fn take(&mut self, outcome: &mut Outcome) {
        let done = self.done.pop_front().unwrap_or_default();
        self.spare.push(std::mem::replace(outcome, done));
    }

    pub fn run(
        &mut self,
        backend: &mut dyn Backend,
        round: RoundId,
        state: StateId,
        terms: &Terms,
    ) -> Result<(), BackendError> {
        let spec = self.specs[round.0 as usize];
        let started = Instant::now();
        let mut outcome = self.spare.pop().unwrap_or_default();
        outcome.clear();
        let is_on = |m: &&Member| {
            let kept = self.kept.get(m.slot as usize).and_then(Option::as_ref);
            kept.is_some_and(|k| k.resident.is_active)
        };
        let members: Vec<Member> = terms.members.iter().filter(is_on).copied().collect();
        let has_trees = spec.has_trees();
        let bare = |m: &Member| if has_trees { *m } else { Member { found: Found::NOTHING, ..*m } };
        let mut trees: Vec<Vec<RoundNode>> =
            members.iter().map(|m| follow(&self.kept(m).resident, &bare(m))).collect();
        if let Some(draft) = &spec.draft {
            self.inject(backend, draft.inject, state, &members)?;
            if let Some(block) = &draft.block {
                self.draft(backend, block, state, &members, &mut trees)?;
            }
        }
        let (counts, wanted) = cut(&members, &trees, terms, spec.rows);
        outcome.draft_seconds = started.elapsed().as_secs_f64();
        let verifying = Instant::now();
        self.lay_trees(&members, &trees, &counts, &mut outcome);
        outcome.wanted_rows = wanted;
        if !members.is_empty() {
            backend.run(spec.verify, state, &self.step)?;
            backend.wait()?;
            let chosen = backend.read_choices(spec.verify, spec.chosen);
            outcome.nodes.iter_mut().zip(chosen).for_each(|(node, chosen)| node.chosen = *chosen);
            self.paths.resize(members.len(), Vec::new());
            let residents = members.iter().map(|m| m.slot as usize);
            for ((fate, path), slot) in outcome.fates.iter_mut().zip(&mut self.paths).zip(residents) {
                let nodes = &outcome.nodes[fate.first as usize..][..fate.n_nodes as usize];
                if let Some(kept) = &mut self.kept[slot] {
                    accept(&mut kept.resident, &mut kept.listed, nodes, fate, path);
                }
                path.iter_mut().for_each(|row| *row += fate.first);
            }
            backend.commit(spec.verify, state, &self.step, &self.paths);
        }
        let longest = members.iter().map(|member| self.kept(member).listed.len()).max().unwrap_or(0);
        if longest > self.listed_room() {
            let why = format!("it has room for {}", self.listed_room());
            return Err(BackendError::Unsupported { what: format!("a list of {longest} tokens"), why });
        }
        outcome.step_seconds = verifying.elapsed().as_secs_f64();
        self.done.push_back(outcome);
        Ok(())
    }

    fn kept(&self, member: &Member) -> &Kept {
        self.kept[member.slot as usize].as_ref().expect("only those that are known take part")
    }

    fn inject(
        &mut self,
        backend: &mut dyn Backend,
        plan: PlanId,
        state: StateId,
        members: &[Member],
    ) -> Result<(), BackendError> {
        let mut step = std::mem::take(&mut self.step);
        step.clear();
        let entering = || members.iter().filter(|m| m.part != DraftPart::Apart);
        for member in entering() {
            let Kept { resident, tables, .. } = self.kept(member);
            let waiting = resident.committed - resident.injected;
            if waiting > 0 {
                let tables = tables.iter().map(Vec::as_slice);
                let s = step.add_seq(resident.slot, resident.injected, waiting, 0, tables);
                // What enters are taps; which tokens they belong to is of no concern to them.
                (0..waiting).fold(NO_PARENT, |parent, _| step.push(s, 0, parent));
            }
        }
        let ran = if step.n_rows() > 0 { backend.run(plan, state, &step) } else { Ok(()) };
        self.step = step;
        for member in entering() {
            let resident = &mut self.kept_mut(member.slot).resident;
            resident.injected = resident.committed;
        }
        ran
    }

    /// The draft's block for each member that drafts, and the trees that come of it.
    fn draft(
        &mut self,
        backend: &mut dyn Backend,
        block: &RoundBlock,
        state: StateId,
        members: &[Member],
        trees: &mut [Vec<RoundNode>],
    ) -> Result<(), BackendError> {
        let drafting = members.iter().zip(trees).filter(|(m, _)| m.part == DraftPart::Drafts);
        let mut drafting: Vec<_> = drafting.take(block.seqs).collect();
        for batch in drafting.chunks_mut(block.per_pass) {
            let mut step = std::mem::take(&mut self.step);
            step.clear();
            if block.is_apart {
                step.begin_prompts();
            }
            for (member, _) in batch.iter() {
                let Kept { resident, tables, .. } = self.kept(member);
                let tables = tables.iter().map(Vec::as_slice);
                let s = step.add_seq(resident.slot, resident.committed, block.size as u32, 0, tables);
                let mut parent = step.push(s, resident.root, NO_PARENT);
                for j in 1..block.size {
                    parent = step.push(s, block.mask_token, parent);
                    if j <= block.depths {
                        step.want_logits(parent);
                    }
                }
            }
            let ran = backend.run(block.plan, state, &step).and_then(|()| backend.wait());
            self.step = step;
            ran?;
            let all = backend.read_choices(block.plan, block.candidates);
            for ((member, tree), mine) in batch.iter_mut().zip(all.chunks(block.depths * block.n_candidates))
            {
                **tree = grow(&self.kept(member).resident, member, mine, block.n_candidates);
            }
        }
        Ok(())
    }

    fn lay_trees(
        &mut self,
        members: &[Member],
        trees: &[Vec<RoundNode>],
        counts: &[usize],
        outcome: &mut Outcome,
    ) {
        let mut step = std::mem::take(&mut self.step);
        step.clear();
        for ((member, tree), count) in members.iter().zip(trees).zip(counts) {
            let Kept { resident, listed, tables } = self.kept(member);
            let tables = tables.iter().map(Vec::as_slice);
            let s = step.add_seq(resident.slot, resident.committed, 1, resident.stored_grid, tables);
            step.draw(s, resident.drawing, listed);
            let first = step.n_rows() as u32;
            for node in &tree[..=*count] {
                let parent = if node.parent == NO_PARENT { NO_PARENT } else { first + node.parent };
                let row = step.push(s, node.token, parent);
                step.want_logits(row);
                outcome.nodes.push(*node);
            }
            outcome.fates.push(Fate {
                slot: resident.slot,
                first,
                n_nodes: *count as u32 + 1,
                n_accepted: 0,
                doubt: None,
                committed: resident.committed,
            });
        }
        self.step = step;
    }
}
