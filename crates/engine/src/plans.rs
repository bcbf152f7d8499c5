//! Recorded plans, by what they are for and how many rows they hold; recorded when first needed.

use overdraft_models::{Decoder, Draft, DraftPlan, RecordOptions};
use overdraft_plan::{Act, Backend, Choice, PlanId, bucket_for};

use crate::error::Result;

/// Rows of a step that can have logits: a vocabulary of 250 000 takes 1 MB a row.
pub(crate) const MAX_LOGIT_ROWS: usize = 64;
/// Rows of a step that has both trees and prompts. Of a 27B hybrid's every row, 5 MB are kept for a commit.
pub(crate) const MIXED_ROWS: usize = 128;
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
    /// Of a backend that has kernels of their own for prompts: sequences that can write while another reads.
    beside: Option<usize>,
}

impl Plans {
    /// `exact`: rows of prompts are computed as written ones are.
    pub(crate) fn new(backend: &dyn Backend, exact: bool, max_seqs: usize) -> Self {
        let beside = (backend.reads_apart() && !exact).then_some(max_seqs - 1);
        Self { ready: Vec::new(), beside }
    }

    /// [`overdraft_plan::Plan::written_before_prompts`]. A prompt alone, which is what most steps with prompts hold, has a
    /// plan without kernels for written rows.
    fn written_room(&self, wanted: Wanted, bucket: usize) -> Option<usize> {
        let beside = self.beside?;
        let most = match wanted.used {
            Use::Read => beside,
            // Written rows all have logits.
            Use::Mixed => MAX_LOGIT_ROWS,
            Use::Write | Use::Inject | Use::Block => return None,
        };
        Some(if wanted.written == 0 { 0 } else { most.min(bucket) })
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
        let (mut plan, candidates) = record(used, bucket, decoder, draft);
        plan.written_before_prompts = written;
        let logits = plan.logits;
        let of_target = matches!(used, Use::Read | Use::Mixed | Use::Write);
        let drawn = (of_target && (backend.is_far() || backend.has_rounds())).then(|| plan.sample());
        let id = backend.prepare(plan)?;
        let ready = Ready { used, bucket, written, id, logits, candidates, drawn };
        self.ready.push(ready);
        Ok(ready)
    }
}

pub(crate) fn record(
    used: Use,
    bucket: usize,
    decoder: &Decoder,
    draft: Option<&Draft>,
) -> (overdraft_plan::Plan, Option<Choice>) {
    let taps = draft.map(Draft::taps).unwrap_or_default();
    let options = RecordOptions {
        bucket,
        logit_rows: bucket.min(MAX_LOGIT_ROWS),
        taps: &taps,
        speculative: match used {
            Use::Write => bucket > 1 && bucket <= MAX_LOGIT_ROWS,
            Use::Mixed => true,
            _ => false,
        },
    };
    match (used, draft) {
        (Use::Inject, Some(draft)) => (draft.record_injection(decoder, bucket), None),
        (Use::Block, Some(draft)) => {
            let DraftPlan { plan, candidates } =
                draft.record_block(bucket, options.logit_rows, decoder.hyper.vocab, CANDIDATES);
            (plan, Some(candidates))
        }
        (Use::Read | Use::Mixed, Some(draft)) => (draft.record_reading(decoder, options), None),
        _ => (decoder.record(options), None),
    }
}
