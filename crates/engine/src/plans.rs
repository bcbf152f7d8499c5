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
    pub(crate) id: PlanId,
    pub(crate) logits: Act,
    /// Of [`Use::Block`].
    pub(crate) candidates: Option<Choice>,
    /// The best token of each row of logits, where those are far to read: 1 MB a row for a vocabulary of 250 000.
    pub(crate) best: Option<Choice>,
}

#[derive(Default)]
pub(crate) struct Plans {
    ready: Vec<Ready>,
}

impl Plans {
    /// How many are ready. A step that had to record one says nothing of what steps cost, nor does a plan's first run.
    pub(crate) fn n_ready(&self) -> usize {
        self.ready.len()
    }

    /// The plan for `rows` rows, which no step lets exceed the largest bucket.
    pub(crate) fn get(
        &mut self,
        used: Use,
        rows: usize,
        decoder: &Decoder,
        draft: Option<&Draft>,
        backend: &mut dyn Backend,
    ) -> Result<Ready> {
        let bucket = bucket_for(rows).expect("a step never exceeds the largest bucket");
        if let Some(ready) = self.ready.iter().find(|r| r.used == used && r.bucket == bucket) {
            return Ok(*ready);
        }
        let (mut plan, candidates) = record(used, bucket, decoder, draft);
        let logits = plan.logits;
        let of_target = matches!(used, Use::Read | Use::Mixed | Use::Write);
        let best = (of_target && backend.is_far()).then(|| plan.choose_best());
        let id = backend.prepare(plan)?;
        let ready = Ready { used, bucket, id, logits, candidates, best };
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
