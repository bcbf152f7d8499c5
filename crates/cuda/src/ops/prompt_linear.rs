//! Rows of prompts in linear ops: kernels of their own, whatever stands beside them. Which rows of an op run on which kernels is
//! decided here.

use overdraft_plan::{Act, Op, Plan, RowSet};

use super::linear::{Held, held};
use super::{Cx, written};
use crate::driver::Result;
use crate::linear::{LinearKernels, PromptImage, PromptInput, Rows};

/// What a linear op reads.
pub(crate) fn input(op: &Op) -> Option<Act> {
    match op {
        Op::Linear { x, .. } | Op::LinearAdd { x, .. } | Op::LinearGlu { x, .. } => Some(*x),
        _ => None,
    }
}

/// Whether the op's rows of prompts run on kernels of their own. Heads are for chosen rows, few at a time but for a draft's; routers must choose for a
/// prompt as close to the definitions as they do for what is written.
pub(crate) fn is_apart(plan: &Plan, op: &Op) -> bool {
    plan.written_before_prompts.is_some() && can_be_apart(plan, op)
}

/// The same for a plan with prompts.
pub(super) fn can_be_apart(plan: &Plan, op: &Op) -> bool {
    let feeds_router = |outs: &[overdraft_plan::LinearOut]| {
        plan.ops.iter().any(|op| matches!(op, Op::Route(r) if outs.iter().any(|o| o.out == r.logits)))
    };
    input(op).is_some_and(|x| plan.act(x).rows == RowSet::Step || plan.logits_apart)
        && !matches!(op, Op::Linear { outs, .. } if feeds_router(outs))
}

/// Rows that an op with input `x` runs on the kernels for written ones, at most.
pub(super) fn rows_of_op(plan: &Plan, op: &Op, x: Act, fast: &dyn LinearKernels) -> usize {
    if is_apart(plan, op) { written_rows(plan, fast) } else { plan.capacity(plan.act(x).rows) }
}

/// Rows of `x` that some op reads as written ones, at most: those an image is made of.
pub(crate) fn imaged_rows(plan: &Plan, x: Act, fast: &dyn LinearKernels) -> usize {
    let readers = plan.ops.iter().filter(|op| input(op) == Some(x));
    readers.map(|op| rows_of_op(plan, op, x, fast)).max().unwrap_or(0)
}

/// Room for written rows before prompts, in whole groups of the launches it takes, as images are laid out.
fn written_rows(plan: &Plan, fast: &dyn LinearKernels) -> usize {
    let group = 8 * fast.image_shape(plan.bucket, 1).group_tiles as usize;
    plan.written_before_prompts.map_or(plan.bucket, |n| n.next_multiple_of(group).min(plan.bucket))
}

/// Bytes for the image of any one input.
pub(crate) fn image_bytes(plan: &Plan, fast: Option<&dyn LinearKernels>) -> usize {
    let Some(fast) = fast else { return 0 };
    let apart = plan.ops.iter().filter(|op| is_apart(plan, op)).filter_map(input);
    apart.map(|x| fast.prompt_image_bytes(plan.bucket, plan.act(x).width)).max().unwrap_or(0)
}

impl Cx<'_> {
    /// Rows of `x` that its image has.
    pub(super) fn rows_of_image(&self, x: Act, fast: &dyn LinearKernels) -> Rows {
        let bucket = imaged_rows(self.plan(), x, fast);
        let count = if bucket < self.capacity(x) as usize { self.step.written() } else { self.count(x) };
        Rows { bucket, count }
    }

    /// Rows of an op that run on the kernels for written ones.
    pub(super) fn rows_of_op(&self, op: &Op, x: Act, fast: &dyn LinearKernels) -> Rows {
        if is_apart(self.plan(), op) {
            return self.rows_written(x, fast);
        }
        Rows { bucket: self.capacity(x) as usize, count: self.count(x) }
    }

    /// Rows of `x` that ops whose rows of prompts are apart have as written ones.
    pub(super) fn rows_written(&self, x: Act, fast: &dyn LinearKernels) -> Rows {
        let has_prompts = self.plan().written_before_prompts.is_some();
        let count = if has_prompts { self.step.written() } else { self.count(x) };
        Rows { bucket: written_rows(self.plan(), fast), count }
    }
}

/// Rows of prompts of `x`, whose image is the one there is.
fn prompt_input(cx: &Cx<'_>, x: Act) -> PromptInput {
    PromptInput {
        x: cx.act(x),
        image: cx.base + cx.memory.prompt_image as u64,
        cols: cx.width(x),
        bucket: cx.capacity(x) as usize,
        count: cx.count(x),
        written: cx.step.written(),
    }
}

/// Where the op that makes `out` writes the image of its rows of prompts too. From now on that counts as made.
pub(super) fn image_to_make(cx: &Cx<'_>, fast: &dyn LinearKernels, out: Act) -> PromptImage {
    cx.prompt_image.set(Some(out));
    fast.prompt_image(&prompt_input(cx, out))
}

/// The same if it is a norm that makes `out`, and what reads that next is an op with rows of prompts apart.
pub(super) fn image_for_reader(cx: &Cx<'_>, out: Act, behind: &[Op]) -> PromptImage {
    let next = behind.iter().find(|op| input(op).is_some() || written(op).contains(&out));
    let reads = |op: &Op| input(op) == Some(out) && is_apart(cx.plan(), op) && held(cx, op).is_some();
    match cx.weights.fast() {
        Some(fast) if next.is_some_and(reads) => image_to_make(cx, fast, out),
        _ => PromptImage::default(),
    }
}

/// The op over the rows of prompts, if they are apart.
pub(super) fn launch(cx: &Cx<'_>, fast: &dyn LinearKernels, op: &Op, held: &Held) -> Result<()> {
    if !is_apart(cx.plan(), op) {
        return Ok(());
    }
    let x = held.x;
    let input = prompt_input(cx, x);
    if cx.prompt_image.replace(Some(x)) != Some(x) {
        fast.make_prompt_image(cx.gpu, &input)?;
    }
    fast.launch_prompts(cx.gpu, &input, &held.parts, held.epilogue)
}
