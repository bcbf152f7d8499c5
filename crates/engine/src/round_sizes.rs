//! Kinds of rounds that the backend runs by itself: what each has room for. Each is recorded once, and a device makes a graph of it, which
//! takes longer than many rounds; so there are few, one that has more room runs in place of one that is seldom wanted, and those that
//! texts will want most likely are made before the first of them.

use std::time::Duration;

use overdraft_plan::{
    MAX_DRAFT_DEPTH, MAX_RESIDENTS, MAX_ROUND_ROWS, RoundBlock, RoundDraft, RoundId, RoundSpec, Terms,
    bucket_for,
};

use crate::engine::{Engine, SLACK};
use crate::error::Result;
use crate::plans::{CANDIDATES, Ready, Use, Wanted};
use crate::propose::{INJECT_ROWS, MAX_WAITING};
use crate::resident::FOLLOWERS;
use crate::spec::policy::Mode;

// Each combination of these is a round of its own to be recorded, and a device keeps 32 as graphs. Its first two runs are launched
// and captured, node by node. With 28 kinds of a lone text an H200 idled 41 % of 8 prompts of HumanEval under `auto`, 128 ms of 313,
// which is taken to be for that (160 kinds: 43 %; 2 % under a chain of 7, which is one kind).
/// Depths of a draft are asked for in steps of so many.
const DEPTH_STEP: usize = 8;
/// Rows to verify.
const ROWS: [usize; 9] = [4, 8, 16, 24, 32, 48, 64, 96, MAX_ROUND_ROWS];
/// Rows of waiting taps.
const ENTERING: [usize; 4] = [24, 64, 128, INJECT_ROWS];
/// Counts of sequences that rounds are recorded for, and of those that draft where others do not.
const SEQS: [usize; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, MAX_RESIDENTS];
const SOME: [usize; 4] = [1, 4, 8, MAX_RESIDENTS];
/// Nodes and depths of a lone text's rounds under `auto` that are made ready before it.
const ALONE: [(usize, usize); 6] = [(31, 16), (15, 16), (63, 16), (7, 8), (15, 8), (31, 8)];
/// How often a kind is wanted, with another in its place, before it is recorded.
const WISHES: u32 = 16;
/// Seconds lost to another in its place after which it is recorded sooner. (A 27B's first rounds of a kind, launched one by one on an H200, took 15 ms where others of
/// the kind took 18, and 22 to 25 where those took 23 to 27: recording hides behind the device.)
const RECORDING: f64 = 0.01;
/// What of a round is lost where another has room for more taps, passes or depths. (On an H200 rounds of sixteen texts of a 27B took 20.8 ms with room for 512 taps and
/// 15 depths, and 18.1 with 64 and 8.)
const DRAFT_ROOM_LOSS: f64 = 0.1;
/// How many times the rows that are wanted such another may have.
const MOST_TIMES: usize = 4;

fn at_least(sizes: &[usize], n: usize) -> usize {
    sizes.iter().copied().find(|size| *size >= n).unwrap_or(n)
}

/// What a round has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    seqs: usize,
    pub(crate) rows: usize,
    draft: Option<DraftSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DraftSize {
    /// Rows of waiting taps.
    entering: usize,
    block: Option<BlockSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSize {
    /// Sequences that draft.
    seqs: usize,
    pub(crate) depths: usize,
}

impl BlockSize {
    /// For so many of those that write, as deep as asked or somewhat deeper.
    pub(crate) fn new(drafting: usize, writers: usize, depths: usize, all: usize) -> Self {
        let seqs = at_least(&SEQS, writers);
        let some = at_least(&SOME, drafting).min(seqs);
        let seqs = if drafting == writers { seqs } else { some };
        Self { seqs, depths: depths.next_multiple_of(DEPTH_STEP).min(all) }
    }
}

impl Size {
    /// As few as there are plans. So many rows of taps enter; without any there is no draft in it.
    pub(crate) fn plain(writers: usize, entering: usize) -> Self {
        let rows = bucket_for(writers).unwrap_or(MAX_RESIDENTS);
        let draft = DraftSize { entering: at_least(&ENTERING, entering), block: None };
        Self { seqs: rows, rows, draft: (entering > 0).then_some(draft) }
    }

    /// There are trees, by passes of the draft or without; of `rows` there are at most so many.
    pub(crate) fn with_trees(
        writers: usize,
        rows: usize,
        most_rows: usize,
        entering: usize,
        block: Option<BlockSize>,
    ) -> Self {
        let seqs = at_least(&SEQS, writers);
        let draft = DraftSize { entering: at_least(&ENTERING, entering), block };
        let rows = at_least(&ROWS, rows.max(seqs + 1)).min(most_rows);
        Self { seqs, rows, draft: (entering > 0 || block.is_some()).then_some(draft) }
    }

    /// [`RoundSpec::has_trees`]
    pub(crate) fn has_trees(&self) -> bool {
        self.block().is_some() || self.rows > self.seqs
    }

    pub(crate) fn block(&self) -> Option<BlockSize> {
        self.draft?.block
    }

    /// Whether a round of this size can run in place of one of another that has the same parts.
    fn covers(&self, other: &Self) -> bool {
        let has_room = self.seqs >= other.seqs && (other.rows..=MOST_TIMES * other.rows).contains(&self.rows);
        has_room
            && self.has_trees() == other.has_trees()
            && match (self.draft, other.draft) {
                (None, None) => true,
                (Some(mine), Some(wanted)) => {
                    mine.entering >= wanted.entering
                        && match (mine.block, wanted.block) {
                            (None, None) => true,
                            (Some(mine), Some(wanted)) => {
                                mine.seqs >= wanted.seqs && mine.depths >= wanted.depths
                            }
                            _ => false,
                        }
                }
                _ => false,
            }
    }

    /// Whether a round with so many rows takes about as long as one with all that there is room for. With far more room than rows it is a step of neither. (Sixteen texts
    /// of a 27B with 64 rows took 22 ms on an H200 in a round for 96, and 15 in one for 64: once that had been learned, 64 seemed too dear.)
    pub(crate) fn is_filled_by(&self, rows: usize) -> bool {
        rows > 0 && bucket_for(rows) == bucket_for(self.rows)
    }

    /// What room costs, dearest first.
    fn room(&self) -> [usize; 5] {
        let (entering, block) = self.draft.map_or((0, None), |draft| (draft.entering, draft.block));
        let (seqs, depths) = block.map_or((0, 0), |block| (block.seqs, block.depths));
        [self.rows, seqs, depths, entering, self.seqs]
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) id: RoundId,
    pub(crate) size: Size,
    pub(crate) verify: Ready,
}

/// Those that are ready, and how often others were wanted.
#[derive(Default)]
pub(crate) struct Kinds {
    ready: Vec<Prepared>,
    wishes: Vec<Wish>,
}

/// For a kind that is not there: how often another ran in its place, and seconds that cost.
struct Wish {
    size: Size,
    times: u32,
    lost: f64,
}

impl Kinds {
    fn find(&self, size: Size) -> Option<Prepared> {
        self.ready.iter().find(|p| p.size == size).copied()
    }

    /// One that can run in its place, while it was not wanted often and little was lost so. `seconds` of so many rows to verify, if known.
    fn in_place_of(&mut self, size: Size, seconds: impl Fn(usize) -> Option<f64>) -> Option<Prepared> {
        let roomy = self.ready.iter().filter(|p| p.size.covers(&size)).min_by_key(|p| p.size.room())?;
        let at = self.wishes.iter().position(|wish| wish.size == size).unwrap_or_else(|| {
            self.wishes.push(Wish { size, times: 0, lost: 0.0 });
            self.wishes.len() - 1
        });
        let wish = &mut self.wishes[at];
        if wish.times >= WISHES || wish.lost >= RECORDING {
            return None;
        }
        wish.times += 1;
        let whole = seconds(roomy.size.rows).unwrap_or(0.0);
        wish.lost += (whole - seconds(size.rows).unwrap_or(whole)).max(0.0);
        wish.lost += if roomy.size.draft == size.draft { 0.0 } else { DRAFT_ROOM_LOSS * whole };
        Some(*roomy)
    }
}

impl Engine {
    /// A round of a size, or of one with more room, and whether it was recorded just now.
    pub(crate) fn prepared_round(&mut self, kinds: &mut Kinds, size: Size) -> Result<(Prepared, bool)> {
        let seconds = |rows| self.cost.step_seconds(rows);
        match kinds.find(size).or_else(|| kinds.in_place_of(size, seconds)) {
            Some(prepared) => Ok((prepared, false)),
            None => Ok((self.record_round(kinds, size)?, true)),
        }
    }

    fn record_round(&mut self, kinds: &mut Kinds, size: Size) -> Result<Prepared> {
        let draft = size.draft.map(|draft| self.round_draft(draft)).transpose()?;
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
        kinds.ready.push(prepared);
        Ok(prepared)
    }

    fn round_draft(&mut self, size: DraftSize) -> Result<RoundDraft> {
        let inject = self.written_plan(Use::Inject, size.entering)?.id;
        let block = size.block.map(|block| self.round_block(block)).transpose()?;
        Ok(RoundDraft { inject, block })
    }

    fn round_block(&mut self, BlockSize { seqs, depths }: BlockSize) -> Result<RoundBlock> {
        let settings = &self.draft.as_ref().expect("only with a draft is there something to draft").settings;
        let (size, mask_token) = (settings.block_size, settings.mask_token);
        // As many passes as it takes, and as few sequences in each.
        let passes = seqs.div_ceil(self.plans.seqs_of_pass(size, depths));
        let per_pass = seqs.div_ceil(passes);
        let plan = self.written_plan(Use::Block, per_pass * size)?;
        Ok(RoundBlock {
            plan: plan.id,
            candidates: plan.candidates.expect("a block plan has candidates"),
            size,
            is_apart: self.plans.is_block_apart(per_pass * size),
            mask_token,
            seqs,
            depths,
            n_candidates: CANDIDATES.min(self.decoder.hyper.vocab),
            per_pass,
        })
    }

    fn written_plan(&mut self, used: Use, rows: usize) -> Result<Ready> {
        self.plan_for(Wanted::written(used, rows))
    }

    fn plan_for(&mut self, wanted: Wanted) -> Result<Ready> {
        self.plans.get(wanted, &self.decoder, self.draft.as_ref(), &mut *self.backend)
    }

    /// Makes ready what the first texts will most likely want, as far as that goes in about this time: rounds of nobody, twice each,
    /// which load kernels and make graphs. Changes no text. Nothing to do for backends without rounds, or where texts are being
    /// written already.
    pub fn warm_up(&mut self, limit: Duration) -> Result<()> {
        if !self.has_room_for_rounds() || !self.seqs.is_empty() {
            return Ok(());
        }
        let started = self.clock.now();
        // Buffers grow with the largest plan, and what graphs there are is lost when they move.
        for (used, rows) in self.plans.largest_uses(&self.config, self.draft.is_some()) {
            self.plan_for(Wanted::written(used, rows))?;
        }
        let mut residence = std::mem::take(&mut self.residence);
        let warmed = self.likely_sizes().into_iter().try_for_each(|size| {
            if self.clock.now() - started > limit || residence.kinds.find(size).is_some() {
                return Ok(());
            }
            let prepared = self.record_round(&mut residence.kinds, size)?;
            for _ in 0..2 {
                self.backend.run_round(prepared.id, self.state, &Terms::default())?;
                self.backend.take_outcome(&mut residence.outcome)?;
            }
            Ok(())
        });
        self.residence = residence;
        warmed
    }

    /// Of one text and of as many as there can be, with more room before less: what comes first runs in place of what comes never.
    fn likely_sizes(&self) -> Vec<Size> {
        let most = self.config.max_seqs.min(MAX_RESIDENTS);
        let mut sizes = Vec::new();
        let counts = if most > 1 { vec![1, most] } else { vec![1] };
        sizes.extend(counts.iter().map(|n| Size::plain(*n, 0)));
        let all = self.draft.as_ref().map_or(0, |d| d.settings.n_drafts().min(MAX_DRAFT_DEPTH));
        if all == 0 || self.config.draft_mode == Mode::Off {
            return sizes;
        }
        let drafted = |writers: usize, drafting: usize, nodes: usize, depths: usize| {
            let rows = writers + nodes;
            // Others may enter beside one that tries.
            let entering = if drafting < writers { INJECT_ROWS } else { drafting * (1 + depths) };
            Size::with_trees(
                writers,
                rows,
                self.round_rows(),
                entering,
                Some(BlockSize::new(drafting, writers, depths, all)),
            )
        };
        if self.config.draft_mode == Mode::Auto {
            sizes.extend(counts.iter().map(|n| Size::plain(*n, n * MAX_WAITING)));
        }
        match self.config.budget.filter(|_| self.config.draft_mode != Mode::Auto) {
            Some(nodes) => sizes.extend(counts.iter().map(|n| drafted(*n, *n, n * nodes, all))),
            None => {
                sizes.extend(ALONE.map(|(nodes, depths)| drafted(1, 1, nodes, depths.min(all))));
                if most > 1 {
                    let next = bucket_for(most + 1).unwrap_or(most + 1);
                    sizes.push(drafted(most, 1, next - most, all));
                    sizes.push(drafted(most, most, MAX_ROUND_ROWS - most, all));
                }
            }
        }
        if self.config.draft_mode == Mode::Auto && self.config.lookup {
            let rows = |n: usize| (2 * n).max(MAX_DRAFT_DEPTH + 1);
            let following = |n, entering| Size::with_trees(n, rows(n), self.round_rows(), entering, None);
            let few = counts.iter().filter(|n| **n <= FOLLOWERS);
            sizes.extend(few.flat_map(|n| [following(*n, 0), following(*n, n * MAX_WAITING)]));
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = 15;

    fn drafted(writers: usize, drafting: usize, rows: usize, entering: usize, depths: usize) -> Size {
        let block = BlockSize::new(drafting, writers, depths, ALL);
        Size::with_trees(writers, rows, MAX_ROUND_ROWS, entering, Some(block))
    }

    #[test]
    fn a_round_runs_in_place_of_one_with_the_same_parts_and_less_room() {
        let sixteen = drafted(16, 16, 128, 272, ALL);
        for (what, roomy, wanted, is_covered) in [
            ("fewer rows, texts and depths", sixteen, drafted(10, 10, 60, 100, 4), true),
            ("some draft of many", sixteen, drafted(16, 3, 40, 20, 4), true),
            ("far fewer rows, which it would compute", sixteen, drafted(16, 16, 17, 20, 4), false),
            ("more texts that draft", drafted(16, 1, 24, 512, ALL), drafted(16, 2, 24, 24, ALL), false),
            ("more depths", drafted(1, 1, 16, 17, 8), drafted(1, 1, 16, 17, 9), false),
            ("more taps", drafted(4, 4, 64, 24, 8), drafted(4, 4, 64, 25, 8), false),
            ("nobody drafts", sixteen, Size::plain(16, 0), false),
            ("taps enter, and nobody drafts", sixteen, Size::plain(16, 256), false),
            ("no taps enter", Size::plain(16, 256), Size::plain(16, 0), false),
            ("fewer taps enter", Size::plain(16, 256), Size::plain(12, 16), true),
            ("fewer write plainly", Size::plain(16, 0), Size::plain(5, 0), true),
        ] {
            assert_eq!(roomy.covers(&wanted), is_covered, "{what}: {roomy:?} {wanted:?}");
        }
    }

    #[test]
    fn a_rounds_time_says_what_its_rows_cost_where_they_fill_it() {
        for (rows, room, is_filled) in
            [(64, 64, true), (49, 64, true), (48, 64, false), (64, 96, false), (0, 4, false)]
        {
            assert_eq!(drafted(1, 1, room, 24, ALL).is_filled_by(rows), is_filled, "{rows} rows of {room}");
        }
        assert!(Size::plain(5, 0).is_filled_by(5));
    }

    #[test]
    fn those_that_draft_have_passes_and_the_others_none() {
        for (drafting, writers, seqs) in
            [(1, 1, 1), (5, 5, 5), (7, 7, 8), (1, 16, 1), (2, 16, 4), (9, 12, 12)]
        {
            assert_eq!(BlockSize::new(drafting, writers, 8, ALL).seqs, seqs, "{drafting} of {writers}");
        }
    }

    #[test]
    fn a_kind_that_is_wanted_often_is_recorded() {
        let ready = |size| Prepared { id: RoundId(0), size, verify: Ready::for_test() };
        let (tight, roomy) = (drafted(16, 16, 96, 128, ALL), drafted(16, 16, 128, 272, ALL));
        let wanted = drafted(12, 12, 90, 100, 8);
        let mut kinds = Kinds { ready: vec![ready(roomy), ready(tight)], ..Kinds::default() };
        assert!(kinds.find(wanted).is_none());
        for time in 0..WISHES {
            let found = kinds.in_place_of(wanted, |_| None).map(|p| p.size);
            assert_eq!(found, Some(tight), "the one with the least room, the {time}th time");
        }
        assert!(kinds.in_place_of(wanted, |_| None).is_none(), "from now on one of its own");
        assert!(kinds.in_place_of(drafted(1, 1, 4, 17, 8), |_| None).is_none(), "nothing that is near");
    }

    #[test]
    fn a_kind_is_recorded_as_soon_as_others_in_its_place_have_cost_more() {
        let ready = |size| Prepared { id: RoundId(0), size, verify: Ready::for_test() };
        // Milliseconds of a row to verify, rows and depths that are wanted, and how often 128 rows and all depths run in their place.
        for (a_row, rows, depths, times) in [
            (0.2, 64, ALL, 1),
            (0.1, 64, ALL, 2),
            (0.1, 96, ALL, 4),
            (0.1, 96, 8, 3),
            (0.2, 128, 8, 4),
            (0.001, 96, 8, WISHES),
        ] {
            let (roomy, wanted) = (drafted(16, 16, 128, 128, ALL), drafted(16, 16, rows, 128, depths));
            let mut kinds = Kinds { ready: vec![ready(roomy)], ..Kinds::default() };
            let seconds = |rows: usize| Some(1e-3 * a_row * rows as f64);
            let stood_in = (0..).take_while(|_| kinds.in_place_of(wanted, seconds).is_some()).count();
            assert_eq!(stood_in, times as usize, "{rows} rows at {a_row} ms");
        }
    }
}
