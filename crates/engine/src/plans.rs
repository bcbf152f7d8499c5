//! Recorded plans, by what they are for and how many rows they hold; recorded when first needed.

use overdraft_models::{Decoder, Draft, DraftPlan, RecordOptions};
use overdraft_plan::{Act, Backend, Choice, Plan, PlanId, bucket_for};

use crate::engine::EngineConfig;
use crate::error::Result;
use crate::propose::INJECT_ROWS;
use crate::spec::policy::Mode;

/// Rows of a step that can have logits: a vocabulary of 250 000 takes 1 MB a row.
pub(crate) const MAX_LOGIT_ROWS: usize = 64;
/// Rows of a step with trees at most. Of a 27B hybrid's every row, 5 MB are kept for a commit.
pub(crate) const TREE_ROWS: usize = 128;
/// Sequences from which on they need more than [`MAX_LOGIT_ROWS`], where rows are cheap: 16 that draft would have 3 drafted
/// nodes each.
const MANY: usize = 8;
/// Rows of a draft's pass at most, where there are so many sequences: those of 16 with blocks of 16.
const MANY_BLOCK_ROWS: usize = 256;
/// Rows of a draft's pass from which on it is computed as prompts are, where those have kernels of their own: what a draft says
/// changes no text, and these are faster for many rows.
const APART: usize = 128;
/// Candidates a draft offers per position. The 64 heaviest paths of a tree hardly ever use a token past the 16th.
pub(crate) const CANDIDATES: usize = 16;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Rows of prompts, and of sequences that write beside them: every row is sure, and enters the draft's context.
    Read,
    /// As [`Self::Read`], with trees below what is written.
    Mixed,
    /// Rows of sequences that write: roots and drafted trees.
    Write,
    /// Waiting taps enter the draft's context.
    Inject,
    /// Blocks of anchor and masks through the draft.
    Block,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    used: Use,
    bucket: usize,
    written: Option<usize>,
    pub(crate) id: PlanId,
    pub(crate) logits: Act,
    /// Of [`Use::Block`].
    pub(crate) candidates: Option<Choice>,
    /// The token drawn from each row of logits, where those are far to read: 1 MB a row for a vocabulary of 250 000.
    pub(crate) drawn: Option<Choice>,
}

#[cfg(test)]
impl Ready {
    /// Of no plan at all.
    pub(crate) fn for_test() -> Self {
        let (used, id) = (Use::Write, PlanId(0));
        Self { used, bucket: 1, written: None, id, logits: Act(0), candidates: None, drawn: None }
    }
}

/// Which plan a step needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) used: Use,
    /// Which no step lets exceed the largest bucket.
    pub(crate) rows: usize,
    /// Of those, rows of sequences that write.
    pub(crate) written: usize,
}

impl Wanted {
    /// Without rows of prompts.
    pub(crate) fn written(used: Use, rows: usize) -> Self {
        Self { used, rows, written: rows }
    }
}

pub(crate) struct Plans {
    ready: Vec<Ready>,
    /// Rows of a step that can have logits.
    pub(crate) logit_rows: usize,
    /// Of a backend that has kernels of their own for prompts: sequences that can write while another reads.
    beside: Option<usize>,
}

impl Plans {
    /// `exact`: rows of prompts are computed as written ones are.
    pub(crate) fn new(backend: &dyn Backend, exact: bool, max_seqs: usize) -> Self {
        let beside = (backend.reads_apart() && !exact).then_some(max_seqs - 1);
        let logit_rows = if backend.is_far() && max_seqs >= MANY { TREE_ROWS } else { MAX_LOGIT_ROWS };
        Self { ready: Vec::new(), logit_rows, beside }
    }

    /// [`overdraft_plan::Plan::written_before_prompts`]. A prompt alone, which is what most steps with prompts hold, has a
    /// plan without kernels for written rows.
    fn written_room(&self, wanted: Wanted, bucket: usize) -> Option<usize> {
        let beside = self.beside?;
        let most = match wanted.used {
            Use::Block if bucket >= APART => return Some(0),
            Use::Read => beside,
            // Written rows all have logits.
            Use::Mixed => self.logit_rows,
            Use::Write | Use::Inject | Use::Block => return None,
        };
        Some(if wanted.written == 0 { 0 } else { most.min(bucket) })
    }

    /// Rows of a draft's pass at most.
    pub(crate) fn block_rows(&self) -> usize {
        if self.logit_rows > MAX_LOGIT_ROWS { MANY_BLOCK_ROWS } else { self.logit_rows }
    }

    /// Whether a draft's pass over so many rows is computed as prompts are.
    pub(crate) fn is_block_apart(&self, rows: usize) -> bool {
        let bucket = bucket_for(rows).unwrap_or(rows);
        self.written_room(Wanted::written(Use::Block, rows), bucket).is_some()
    }

    /// Sequences of one pass of a draft whose blocks have so many rows, of which `depths` are looked at.
    pub(crate) fn seqs_of_pass(&self, block: usize, depths: usize) -> usize {
        (self.logit_rows / depths.max(1)).min(self.block_rows() / block).max(1)
    }

    /// How many are ready. A step that had to record one says nothing of what steps cost, nor does a plan's first run.
    pub(crate) fn n_ready(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn get(
        &mut self,
        wanted: Wanted,
        decoder: &Decoder,
        draft: Option<&Draft>,
        backend: &mut dyn Backend,
    ) -> Result<Ready> {
        let Wanted { used, rows, .. } = wanted;
        let bucket = bucket_for(rows).expect("a step never exceeds the largest bucket");
        let written = self.written_room(wanted, bucket);
        let is_it = |r: &&Ready| r.used == used && r.bucket == bucket && r.written == written;
        if let Some(ready) = self.ready.iter().find(is_it) {
            return Ok(*ready);
        }
        let Recorded { plan, candidates, drawn } =
            self.record(used, bucket, written, decoder, draft, backend);
        let logits = plan.logits;
        let id = backend.prepare(plan)?;
        let ready = Ready { used, bucket, written, id, logits, candidates, drawn };
        self.ready.push(ready);
        Ok(ready)
    }

    /// The largest plans that steps will ask for: what their buffers are sized by.
    pub(crate) fn largest(
        &self,
        config: &EngineConfig,
        decoder: &Decoder,
        draft: Option<&Draft>,
        backend: &dyn Backend,
    ) -> Vec<Plan> {
        let record = |(used, rows): (Use, usize)| {
            let bucket = bucket_for(rows)?;
            let written = self.written_room(Wanted::written(used, rows), bucket);
            Some(self.record(used, bucket, written, decoder, draft, backend).plan)
        };
        self.largest_uses(config, draft.is_some()).into_iter().filter_map(record).collect()
    }

    /// What they are for, and their rows.
    pub(crate) fn largest_uses(&self, config: &EngineConfig, has_draft: bool) -> Vec<(Use, usize)> {
        let mut all = vec![(Use::Read, config.step_rows), (Use::Write, self.logit_rows)];
        if config.token_gap.is_some() && config.draft_mode != Mode::Off && config.max_seqs > 1 {
            all.push((Use::Mixed, TREE_ROWS));
        }
        if has_draft {
            all.extend([(Use::Inject, INJECT_ROWS), (Use::Block, self.block_rows())]);
        }
        all
    }

    fn record(
        &self,
        used: Use,
        bucket: usize,
        written: Option<usize>,
        decoder: &Decoder,
        draft: Option<&Draft>,
        backend: &dyn Backend,
    ) -> Recorded {
        let taps = draft.map(Draft::taps).unwrap_or_default();
        let options = RecordOptions {
            bucket,
            logit_rows: bucket.min(self.logit_rows),
            taps: &taps,
            speculative: match used {
                Use::Write => bucket > 1 && bucket <= self.logit_rows,
                Use::Mixed => true,
                _ => false,
            },
        };
        let (mut plan, candidates) = match (used, draft) {
            (Use::Inject, Some(draft)) => (draft.record_injection(decoder, bucket), None),
            (Use::Block, Some(draft)) => {
                let DraftPlan { plan, candidates } =
                    draft.record_block(bucket, options.logit_rows, decoder.hyper.vocab, CANDIDATES);
                (plan, Some(candidates))
            }
            (Use::Read | Use::Mixed, Some(draft)) => (draft.record_reading(decoder, options), None),
            _ => (decoder.record(options), None),
        };
        plan.written_before_prompts = written;
        plan.logits_apart = used == Use::Block && written.is_some();
        let of_target = matches!(used, Use::Read | Use::Mixed | Use::Write);
        let drawn = (of_target && (backend.is_far() || backend.has_rounds())).then(|| plan.sample());
        Recorded { plan, candidates, drawn }
    }
}

/// A plan before a backend has it.
struct Recorded {
    plan: Plan,
    candidates: Option<Choice>,
    drawn: Option<Choice>,
}
