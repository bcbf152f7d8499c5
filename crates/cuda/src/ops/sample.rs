//! Tokens drawn where the logits lie.

use overdraft_plan::{Act, Choice};

use super::{Cx, kernel_params, row_ops};
use crate::driver::Result;
use crate::step_data::StepView;

/// `1 << TOKEN_BITS` of `sample.cu`.
pub(crate) const MAX_VOCAB: usize = 1 << 24;

kernel_params!(Sample { step: StepView, logits: u64, choices: u64, vocab: u32, pad: u32 });

pub(super) fn sample(cx: &Cx<'_>, logits: Act, choice: Choice) -> Result<()> {
    let params = Sample {
        step: cx.step,
        logits: cx.act(logits),
        choices: cx.choice(choice),
        vocab: cx.width(logits) as u32,
        pad: 0,
    };
    cx.launch(("sample", "sample"), row_ops::row_blocks(cx, logits), row_ops::ROW_THREADS, 0, &params)
}
