//! A norm that its neighbours make, so that it takes no launch of its own.
//!
//! That is one behind a sum, where only linear ops read it: the sum's ends write the image of the stream times the norm's weights, and
//! whoever reads that divides its own sums. Whether it is so is a matter of the plan's ops alone, never of rows or prompts: a written
//! row gets the same bits in every plan.

use overdraft_plan::{Act, Op, RmsNorm};

use super::linear::held;
use super::{Cx, prompt_linear, reads, row_ops, written};
use crate::driver::Result;
use crate::linear::{LinearKernels, NextNorm, Rows};

pub(super) struct FoldedNorm {
    norm: RmsNorm,
    x: Act,
    out: Act,
    tap: Option<Act>,
    /// Linear ops read it before another input's rows of prompts (its product's, or a norm's that writes them ahead) take the place of its image.
    is_read_at_once: bool,
}

impl FoldedNorm {
    /// The norm behind the sum that `ops` begins with, if the fast kernels hold that and every op that reads the norm's result.
    pub(super) fn at(cx: &Cx<'_>, ops: &[Op]) -> Option<Self> {
        let [sum @ Op::LinearAdd { stream, .. }, behind @ ..] = ops else { return None };
        Self::is_held(cx, sum).then(|| Self::behind(cx, *stream, behind)).flatten()
    }

    fn is_held(cx: &Cx<'_>, op: &Op) -> bool {
        prompt_linear::can_be_apart(cx.plan(), op) && held(cx, op).is_some()
    }

    /// The norm that `ops` begins with, of a sum that has just been made in `stream`.
    pub(super) fn behind(cx: &Cx<'_>, stream: Act, ops: &[Op]) -> Option<Self> {
        let [Op::Norm { x, norm, out, tap }, rest @ ..] = ops else { return None };
        // Of prompts alone nothing is written: no image but theirs.
        let has_image = cx.memory.image(*out).is_some() || cx.plan().written_before_prompts == Some(0);
        if *x != stream || !has_image {
            return None;
        }
        let (mut is_read, mut is_replaced, mut is_read_at_once) = (false, false, true);
        for op in rest {
            if reads(op, *out) {
                is_read = true;
                is_read_at_once &= !is_replaced;
                if prompt_linear::input(op) != Some(*out) || !Self::is_held(cx, op) {
                    return None;
                }
            } else {
                is_replaced |= prompt_linear::input(op).is_some();
            }
            if written(op).contains(out) {
                break;
            }
        }
        is_read.then_some(Self { norm: *norm, x: *x, out: *out, tap: *tap, is_read_at_once })
    }

    pub(super) fn out(&self) -> Act {
        self.out
    }

    /// What the sum's launch over these rows makes of it. From now on its image counts as made.
    pub(super) fn next(&self, cx: &Cx<'_>, fast: &dyn LinearKernels, rows: Rows) -> NextNorm {
        cx.made_undivided(self.out, self.norm.eps);
        let place = |at: Option<usize>| at.map_or(0, |at| cx.base + at as u64);
        NextNorm {
            weight: cx.weights.vector(self.norm.weight),
            squares: place(cx.memory.squares(self.out)),
            tap: cx.opt_act(self.tap),
            image: (place(cx.memory.image(self.out)), fast.image_shape(rows.bucket, cx.width(self.out))),
        }
    }

    /// Rows of prompts get theirs from the kernel, with their image; so do written ones, for nobody.
    pub(super) fn launch(&self, cx: &Cx<'_>, fast: &dyn LinearKernels) -> Result<()> {
        let makes_image = row_ops::makes_images(cx, self.x);
        cx.prompt_image.set(cx.prompt_image.get().filter(|act| *act != self.out));
        let of_prompts =
            if makes_image { prompt_linear::image_to_make(cx, fast, self.out) } else { Default::default() };
        let out = Some(self.out).filter(|_| !(makes_image && self.is_read_at_once));
        row_ops::norm_and_image(cx, self.x, self.norm, (out, self.tap), Default::default(), of_prompts)
    }
}
