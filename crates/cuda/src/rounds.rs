//! Whole rounds as one graph: the plans of a draft and a target with kernels between them that make each step's data from what
//! the one before left (`kernels/round.cu`). The host sends what it has a say in, and reads outcomes from pinned memory.

mod words;

use std::collections::VecDeque;

use overdraft_plan::draw::Adjustment;
use overdraft_plan::{
    MAX_DRAFT_DEPTH, MAX_LISTED, MAX_RESIDENTS, MAX_ROUND_ROWS, MAX_ROUND_TREE, Outcome, PAGE, PlanId,
    Resident, RoundBlock, RoundId, RoundSpec, StateId, Terms,
};

use crate::backend::Cuda;
use crate::driver::{CudaError, DeviceBuffer, Event, Graph, PinnedBuffer, Result};
use crate::linear::Gpu;
use crate::ops::commit::{self, Accepted, CommitTables};
use crate::ops::{self, Cx, kernel_params};
use crate::plan_memory::CHOICE_BYTES;
use crate::step_data::{ADJUSTMENT, StepLayout, StepView, drawing_words, pack_listed};
use words::{BETWEEN, OUTCOME, RESIDENT, TERMS, pack, unpack};

/// Outcomes and terms that have places of their own: more than are asked for and not taken. `RING` of `round.cu`, which
/// counts rounds too.
const RING: usize = 4;
/// Candidates of a sequence that `round_tree` has room for.
const CANDIDATES: usize = MAX_DRAFT_DEPTH * 16;
/// `Trees` of `round.cu`.
const TREE_BYTES: usize = 8 * (MAX_ROUND_ROWS + 1)
    + MAX_RESIDENTS
        * (4 * CANDIDATES + 4 * MAX_DRAFT_DEPTH + 7 * MAX_ROUND_TREE + 2 + MAX_ROUND_TREE * MAX_DRAFT_DEPTH);

kernel_params!(RoundParams {
    step: StepView,
    residents: u64,
    terms: u64,
    sent: u64,
    between: u64,
    choices: u64,
    outcomes: u64,
    accepted: u64,
    block: u32,
    mask_token: u32,
    depths: u32,
    k: u32,
    first_member: u32,
    most_members: u32,
    rows: u32,
    max_pages: u32,
    seqs: u32,
    drawings: u32,
    block_is_apart: u32,
    is_first: u32,
    drafting: u32,
    has_trees: u32,
});

struct Prepared {
    spec: RoundSpec,
    state: StateId,
    /// Its kernels are loaded, which a capture may not do.
    has_run: bool,
    graph: Option<Graph>,
    tables: Option<CommitTables>,
    /// How many rounds had been asked for when it was last one of them.
    last_asked: usize,
}

struct RoundMemory {
    /// By slot.
    residents: DeviceBuffer,
    /// `[slot, class, max_pages]`, and behind them lists of tokens that bias and penalties change, `[MAX_RESIDENTS, MAX_LISTED]`:
    /// kernels know both by one address.
    tables: DeviceBuffer,
    max_pages: usize,
    /// Words of page tables.
    lists_at: usize,
    /// Whose turn it is among the places of lists.
    next_list: usize,
    terms: DeviceBuffer,
    between: DeviceBuffer,
    accepted: DeviceBuffer,
    /// Of all sequences, where one pass of the draft is not for all of them.
    candidates: DeviceBuffer,
    /// Terms as kernels read them, and outcomes as they write them.
    sent: PinnedBuffer,
    outcomes: PinnedBuffer,
    done: [Event; RING],
}

/// Graphs come before what they use.
#[derive(Default)]
pub(crate) struct Rounds {
    prepared: Vec<Prepared>,
    memory: Option<RoundMemory>,
    /// Rounds asked for and not yet taken, with the plan each verified by.
    under_way: VecDeque<PlanId>,
    /// Rounds asked for so far.
    asked: usize,
}

/// Graphs kept at most: each has a node for every launch of three plans.
const GRAPHS: usize = 32;

impl Rounds {
    /// Makes room for another graph. The driver keeps one that still runs until it is done.
    fn forget_oldest(&mut self) {
        let kept = || self.prepared.iter().filter(|r| r.graph.is_some());
        if kept().count() < GRAPHS {
            return;
        }
        if let Some(oldest) = kept().map(|r| r.last_asked).min() {
            self.prepared.iter_mut().filter(|r| r.last_asked == oldest).for_each(|r| r.graph = None);
        }
    }

    /// Buffers have moved.
    pub(crate) fn forget(&mut self) {
        for round in &mut self.prepared {
            (round.graph, round.tables) = (None, None);
        }
    }
}

impl RoundMemory {
    fn new(gpu: Gpu<'_>, slots: usize, n_classes: usize, positions: usize) -> Result<Self> {
        let device = gpu.device;
        // A round of nobody finds what is there.
        let buffer = |what, words: usize| {
            let buffer = DeviceBuffer::new(device, what, 4 * words)?;
            gpu.queue.clear(&buffer, 0, 4 * words)?;
            Ok::<_, CudaError>(buffer)
        };
        let max_pages = positions.div_ceil(PAGE);
        let lists_at = slots * n_classes * max_pages;
        let event = || Event::new(device);
        Ok(Self {
            residents: buffer("residents", slots * RESIDENT)?,
            tables: buffer("page tables", lists_at + MAX_RESIDENTS * MAX_LISTED * ADJUSTMENT)?,
            max_pages,
            lists_at,
            next_list: 0,
            terms: buffer("terms of a round", TERMS)?,
            between: buffer("a round", BETWEEN)?,
            accepted: DeviceBuffer::new(device, "accepted rows", size_of::<Accepted>() * MAX_RESIDENTS)?,
            candidates: DeviceBuffer::new(device, "candidates", CHOICE_BYTES * CANDIDATES * MAX_RESIDENTS)?,
            sent: PinnedBuffer::new(device, 4 * TERMS * RING)?,
            outcomes: PinnedBuffer::new(device, 4 * OUTCOME * RING)?,
            done: [event()?, event()?, event()?, event()?],
        })
    }
}

impl Cuda {
    pub(crate) fn make_round(&mut self, spec: RoundSpec, state: StateId) -> Result<RoundId> {
        self.device.make_current()?;
        let (kept, rounds) = (&self.states[state.0 as usize], &self.rounds.prepared);
        let is_for_another = rounds.iter().any(|r| r.state != state || r.spec.positions != spec.positions);
        let refuse = |why: String| Err(CudaError::Unsupported { what: "a round".into(), why });
        if is_for_another {
            return refuse("it is for another state than those before it".into());
        }
        let block = spec.draft.and_then(|draft| draft.block);
        let (depths, k) = block.map_or((0, 0), |block| (block.depths, block.n_candidates));
        if spec.seqs > MAX_RESIDENTS || depths * k > CANDIDATES {
            return refuse(format!(
                "{} sequences of {depths} depths with {k} candidates each, at most {MAX_RESIDENTS} and {CANDIDATES} of both",
                spec.seqs
            ));
        }
        if self.rounds.memory.is_none() {
            let memory = RoundMemory::new(
                Gpu { device: &self.device, queue: &self.queue },
                kept.slots,
                kept.pages.len(),
                spec.positions,
            )?;
            self.rounds.memory = Some(memory);
        }
        self.rounds.prepared.push(Prepared {
            spec,
            state,
            has_run: false,
            graph: None,
            tables: None,
            last_asked: 0,
        });
        Ok(RoundId(self.rounds.prepared.len() as u32 - 1))
    }

    /// Sends words to where the rounds find them, behind what was asked for before.
    fn tell(
        &mut self,
        words: impl Fn(&mut [u32]) -> usize,
        at: usize,
        n: usize,
        is_table: bool,
    ) -> Result<()> {
        self.device.make_current()?;
        if self.outbox.is_full() {
            self.drain()?;
        }
        let Some(memory) = &self.rounds.memory else { return Err(no_round()) };
        let block = self.outbox.take(&self.device, 4 * n)?;
        // SAFETY: the outbox gives out no block that the device may be reading.
        let filled = words(unsafe { block.words_mut() });
        let to = if is_table { &memory.tables } else { &memory.residents };
        self.is_busy = true;
        // SAFETY: as above; the block is used again only once the queue has been waited for.
        unsafe { self.queue.send_part(block, 0, to, 4 * at, 4 * filled) }
    }

    pub(crate) fn tell_resident(&mut self, r: &Resident, listed: &[Adjustment]) -> Result<()> {
        let list_at = self.tell_listed(r, listed)?;
        let (tokens, owed) = r.forced.map_or((0, 0), |pace| (pace.tokens, pace.owed));
        let known =
            [r.committed, r.injected, r.stored_grid, r.root, r.limit, u32::from(r.is_active), tokens, owed];
        let fill = |words: &mut [u32]| {
            words[..8].copy_from_slice(&known);
            words[8..16].copy_from_slice(&r.stop_ids);
            words[16..RESIDENT].copy_from_slice(&drawing_words(
                &r.drawing,
                list_at as u32,
                listed.len() as u32,
            ));
            RESIDENT
        };
        self.tell(fill, r.slot as usize * RESIDENT, RESIDENT, false)
    }

    /// Sends the list of a sequence that has or will have one, in the place that was told of longest ago; returns where it lies.
    fn tell_listed(&mut self, r: &Resident, listed: &[Adjustment]) -> Result<usize> {
        if listed.is_empty() && !r.drawing.has_penalties() {
            return Ok(0);
        }
        if listed.len() > MAX_LISTED {
            return Err(CudaError::Unsupported {
                what: format!("a round with {} tokens that bias and penalties change", listed.len()),
                why: format!("there is room for {MAX_LISTED}"),
            });
        }
        let Some(memory) = &mut self.rounds.memory else { return Err(no_round()) };
        let at = memory.lists_at + memory.next_list * MAX_LISTED * ADJUSTMENT;
        memory.next_list = (memory.next_list + 1) % MAX_RESIDENTS;
        let words = listed.len() * ADJUSTMENT;
        if words > 0 {
            self.tell(|to| pack_listed(listed, to), at, words, true)?;
        }
        Ok(at)
    }

    pub(crate) fn tell_tables(
        &mut self,
        state: StateId,
        slot: u32,
        tables: &mut dyn Iterator<Item = &[u32]>,
    ) -> Result<()> {
        let n_classes = self.states[state.0 as usize].pages.len();
        let max_pages = self.rounds.memory.as_ref().map_or(0, |m| m.max_pages);
        for (class, table) in tables.enumerate().take(n_classes) {
            let table = &table[..table.len().min(max_pages)];
            let fill = |words: &mut [u32]| {
                words[..table.len()].copy_from_slice(table);
                table.len()
            };
            self.tell(fill, (slot as usize * n_classes + class) * max_pages, table.len(), true)?;
        }
        Ok(())
    }

    pub(crate) fn ask_for_round(&mut self, id: RoundId, terms: &Terms) -> Result<()> {
        self.device.make_current()?;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Prepared { spec, state, .. } = self.rounds.prepared[id.0 as usize];
        if self.rounds.under_way.len() == RING {
            return Err(CudaError::Unsupported {
                what: "another round".into(),
                why: format!("{RING} wait to be taken"),
            });
        }
        // Kernels look at no more than the round has room for.
        if terms.members.len() > spec.seqs {
            return Err(CudaError::Unsupported {
                what: format!("a round with {} texts", terms.members.len()),
                why: format!("it was made for {}", spec.seqs),
            });
        }
        let place = self.rounds.asked % RING;
        self.rounds.asked += 1;
        let Some(memory) = &mut self.rounds.memory else { return Ok(()) };
        // SAFETY: the round that was sent from this place has been taken.
        pack(terms, &mut unsafe { memory.sent.words_mut() }[place * TERMS..][..TERMS]);
        self.mirror.clear();
        self.last_run = Some(spec.verify);
        self.is_busy = true;
        if self.rounds.prepared[id.0 as usize].tables.is_none() {
            let tables = CommitTables::new(&self.cx(spec.verify, state))?;
            self.rounds.prepared[id.0 as usize].tables = Some(tables);
        }
        self.rounds.prepared[id.0 as usize].last_asked = self.rounds.asked;
        let round = &self.rounds.prepared[id.0 as usize];
        if !round.has_run {
            self.launch_round(round)?;
        } else if let Some(graph) = &round.graph {
            self.queue.replay(graph)?;
        } else {
            let graph = self.queue.capture(|| self.launch_round(round))?;
            self.queue.replay(&graph)?;
            self.rounds.forget_oldest();
            self.rounds.prepared[id.0 as usize].graph = Some(graph);
        }
        self.rounds.prepared[id.0 as usize].has_run = true;
        if let Some(memory) = &self.rounds.memory {
            self.queue.mark(&memory.done[place])?;
        }
        self.rounds.under_way.push_back(spec.verify);
        Ok(())
    }

    fn launch_round(&self, round: &Prepared) -> Result<()> {
        let (Some(memory), Some(tables)) = (&self.rounds.memory, &round.tables) else { return Ok(()) };
        let (spec, at) = (&round.spec, memory.tables.ptr());
        let cx = |plan| {
            let cx = self.cx(plan, round.state);
            Cx { step: cx.step.with_tables(at), n_seqs: spec.seqs.min(cx.n_seqs), ..cx }
        };
        let verify = cx(spec.verify);
        let layout = StepLayout::new(verify.plan().bucket, verify.state.pages.len());
        let params = RoundParams {
            step: verify.step,
            residents: memory.residents.ptr(),
            terms: memory.terms.ptr(),
            sent: memory.sent.ptr() as u64,
            between: memory.between.ptr(),
            choices: 0,
            outcomes: memory.outcomes.ptr() as u64,
            accepted: memory.accepted.ptr(),
            block: 0,
            mask_token: 0,
            depths: 0,
            k: 0,
            first_member: 0,
            most_members: 0,
            rows: spec.rows as u32,
            max_pages: memory.max_pages as u32,
            seqs: spec.seqs as u32,
            drawings: layout.drawings_without_tables() as u32,
            block_is_apart: 0,
            is_first: 1,
            drafting: 0,
            has_trees: u32::from(spec.has_trees()),
        };
        let block = spec.draft.and_then(|draft| draft.block);
        let params = match spec.draft {
            Some(draft) => {
                let inject = cx(draft.inject);
                self.make_step(
                    &inject,
                    "round_inject",
                    256,
                    0,
                    &RoundParams { step: inject.step, ..params },
                )?;
                ops::launch_all(&inject)?;
                RoundParams { is_first: 0, ..params }
            }
            None => params,
        };
        let params = match &block {
            Some(block) => self.launch_blocks(block, &cx(block.plan), &params)?,
            None => params,
        };
        self.make_step(&verify, "round_tree", 512, TREE_BYTES, &params)?;
        ops::launch_all(&verify)?;
        if !spec.has_trees() {
            // Roots are all there is to keep.
            commit::keep_sure_taps(&verify)?;
        }
        let params = RoundParams { choices: verify.choice(spec.chosen), ..params };
        verify.launch(("round", "round_accept"), [1, 1, 1], 512, 0, &params)?;
        if !spec.has_trees() {
            return Ok(());
        }
        commit::commit_found(&verify, tables, memory.accepted.ptr())
    }

    /// The draft's passes; returns how trees are made of what comes of them.
    fn launch_blocks(&self, block: &RoundBlock, cx: &Cx<'_>, params: &RoundParams) -> Result<RoundParams> {
        let Some(memory) = &self.rounds.memory else { return Err(no_round()) };
        let n_choices = block.depths * block.n_candidates;
        let passes = block.seqs.div_ceil(block.per_pass);
        let found = cx.choice(block.candidates);
        let params = RoundParams {
            choices: if passes == 1 { found } else { memory.candidates.ptr() },
            block: block.size as u32,
            mask_token: block.mask_token,
            depths: block.depths as u32,
            k: block.n_candidates as u32,
            most_members: block.per_pass as u32,
            block_is_apart: u32::from(block.is_apart),
            drafting: block.seqs as u32,
            ..*params
        };
        for pass in 0..passes {
            let first_member = (pass * block.per_pass) as u32;
            let of_pass = RoundParams { step: cx.step, first_member, ..params };
            self.make_step(cx, "round_block", 256, 0, &of_pass)?;
            ops::launch_all(&cx.again())?;
            if passes > 1 {
                let n = block.per_pass.min(block.seqs - pass * block.per_pass);
                let to = params.choices + (pass * block.per_pass * n_choices * CHOICE_BYTES) as u64;
                // SAFETY: the plan's candidates lie in the arena, room for all sequences' elsewhere.
                unsafe { self.queue.copy(found, to, n * n_choices * CHOICE_BYTES) }?;
            }
        }
        Ok(params)
    }

    /// Launches a kernel that makes a step's data. Others read that before they wait for the one ahead of them, so nothing
    /// overlaps it.
    fn make_step(
        &self,
        cx: &Cx<'_>,
        kernel: &'static str,
        threads: u32,
        shared: usize,
        params: &RoundParams,
    ) -> Result<()> {
        let launched = cx.launch(("round", kernel), [1, 1, 1], threads, shared, params);
        self.queue.set_apart();
        launched
    }

    pub(crate) fn take_round(&mut self, outcome: &mut Outcome) -> Result<()> {
        self.device.make_current()?;
        outcome.clear();
        let place = (self.rounds.asked - self.rounds.under_way.len()) % RING;
        let (Some(verify), Some(memory)) = (self.rounds.under_way.pop_front(), &self.rounds.memory) else {
            return Err(no_round());
        };
        memory.done[place].wait()?;
        // SAFETY: the round has been waited for, and the next that writes here is yet to be asked for.
        let words = &unsafe { memory.outcomes.read::<u32>(OUTCOME * RING) }[place * OUTCOME..][..OUTCOME];
        let [begun, drafted, ended] = unpack(words, outcome);
        if let Some(watch) = &mut self.watch {
            watch.took_round(begun, ended);
        }
        let memory = &mut self.plans[verify.0 as usize].memory;
        (memory.n_rows, memory.n_logits) = (outcome.nodes.len(), outcome.nodes.len());
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
        (outcome.draft_seconds, outcome.step_seconds) = (seconds(begun, drafted), seconds(drafted, ended));
        Ok(())
    }
}

fn no_round() -> CudaError {
    CudaError::Unsupported { what: "a round".into(), why: "none was prepared and asked for".into() }
}
