//! Norms; and, for written rows, with a norm the router that reads it, by one launch: neither waits for the other.
//!
//! Each block of that reads all its rows by itself, so rows of prompts keep to the linear kernels: 2048 of them, for 513 outputs of 2048 columns,
//! would be 1 GB a layer from L2.

use overdraft_formats::DType;
use overdraft_plan::{Act, LinearOut, Op, Plan, RmsNorm, Weights};

use super::expert_tiles::{LAYER_OPS, Shared};
use super::row_ops::{self, Norm};
use super::{Cx, kernel_params, linear, prompt_linear, written};
use crate::driver::Result;
use crate::linear::Rows;

/// Of `router.cu`: outputs of a block, and matrices of a launch.
const OUTPUTS: usize = 8;
const MAX_PARTS: usize = 2;
/// Rows of a block, where there are few and where there are many: each block reads its weights once.
const ROWS: [usize; 2] = [8, 32];
const MANY_ROWS: usize = 128;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RouterPart {
    weight: u64,
    bias: u64,
    out: u64,
    n_out: u32,
    pad: u32,
}

kernel_params!(NormRouter {
    norm: Norm,
    parts: [RouterPart; MAX_PARTS],
    n_outputs: u32,
    n_blocks: u32,
    rows_a_block: u32,
    pad: u32,
});

struct Router<'a> {
    x: Act,
    norm: RmsNorm,
    out: Act,
    outs: &'a [LinearOut],
}

impl<'a> Router<'a> {
    /// The norm that `ops` begins with and a router behind it, if the kernel takes both for written rows: what they are decides, never how
    /// many rows there are, so that a row's choice is the same in every plan.
    fn at(plan: &Plan, weights: &Weights, ops: &'a [Op]) -> Option<Self> {
        let [Op::Norm { x, norm, out, tap: None }, Op::Linear { x: input, outs }, Op::Route(route), ..] = ops
        else {
            return None;
        };
        let width = plan.act(*x).width;
        let is_taken = input == out
            && outs.len() <= MAX_PARTS
            && outs.iter().any(|o| o.out == route.logits)
            && outs.iter().all(|o| weights.matrix(o.weight).dtype == DType::F32)
            && width.is_multiple_of(4)
            && width <= row_ops::NARROW_NORM;
        is_taken.then_some(Self { x: *x, norm: *norm, out: *out, outs })
    }
}

/// Whether the op is a router's product whose weights the kernel wants as files hold them.
pub(super) fn takes(plan: &Plan, weights: &Weights, op: &Op) -> bool {
    let Op::Linear { outs, .. } = op else { return false };
    if plan.written_before_prompts == Some(0) {
        return false;
    }
    let is_its = |router: Router<'_>| router.outs.iter().zip(outs).all(|(a, b)| a.weight == b.weight);
    (0..plan.ops.len()).any(|at| Router::at(plan, weights, &plan.ops[at..]).is_some_and(is_its))
}

/// The norm that `ops` begins with, and the router behind it, if there is one. Returns how many ops that was.
pub(super) fn launch(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [first @ Op::Norm { x, norm, out, tap }, behind @ ..] = ops else { return Ok(0) };
    cx.forget_images(first);
    let router = Router::at(cx.plan(), cx.weights.host(), ops);
    match (router, cx.plan().written_before_prompts) {
        (Some(router), None) => {
            cx.forget_images(&behind[0]);
            let rows = Rows { bucket: cx.capacity(router.x) as usize, count: cx.count(router.x) };
            router.launch(cx, rows, true, behind).map(|()| 2)
        }
        (Some(router), Some(written)) if written > 0 => {
            row_ops::norm(cx, *x, *norm, *out, *tap, behind)?;
            let n_ops = linear::launch(cx, behind)?;
            // Of written rows these logits take the place of those.
            let rows = Rows { bucket: written, count: cx.step.written() };
            router.launch(cx, rows, false, &[]).map(|()| 1 + n_ops)
        }
        _ => row_ops::norm(cx, *x, *norm, *out, *tap, behind).map(|()| 1),
    }
}

impl Router<'_> {
    /// Logits of these rows and, if it `norms`, their norm for `behind`.
    fn launch(&self, cx: &Cx<'_>, rows: Rows, norms: bool, behind: &[Op]) -> Result<()> {
        let part = |o: &LinearOut| {
            let weight = cx.weights.raw(o.weight);
            let bias = cx.weights.opt_vector(o.bias);
            RouterPart { weight: weight.data, bias, out: cx.act(o.out), n_out: weight.rows, pad: 0 }
        };
        let mut parts = [RouterPart::default(); MAX_PARTS];
        parts.iter_mut().zip(self.outs).for_each(|(place, o)| *place = part(o));
        let n_outputs: u32 = parts.iter().map(|p| p.n_out).sum();
        // Written rows of an expert that all have are none of the linear ops'.
        let n_taken = behind.get(2..).and_then(|ops| Shared::at(cx, ops)).map_or(0, |_| 2 + LAYER_OPS);
        let image = if is_input(behind.get(n_taken..).unwrap_or_default(), self.out) {
            cx.image_to_make(self.out)
        } else {
            Default::default()
        };
        let rows_a_block = ROWS[usize::from(rows.bucket >= MANY_ROWS)];
        let n_blocks = (n_outputs as usize).div_ceil(OUTPUTS) * rows.bucket.div_ceil(rows_a_block);
        let none = Default::default();
        let norm = row_ops::norm_params(cx, self.x, self.norm, (Some(self.out), None), image, none);
        let params = NormRouter {
            norm: norm.of_rows(rows.count),
            parts,
            n_outputs,
            n_blocks: n_blocks as u32,
            rows_a_block: rows_a_block as u32,
            pad: 0,
        };
        let kernel = if cx.width(self.x) <= 2048 { "norm_and_route_2" } else { "norm_and_route_4" };
        let n_norms = if norms { rows.bucket } else { 0 };
        cx.launch(("router", kernel), [n_blocks + n_norms, 1, 1], 256, 0, &params)
    }
}

/// Whether a linear op reads it before it is written again.
fn is_input(ops: &[Op], act: Act) -> bool {
    let until = ops.iter().position(|op| written(op).contains(&act)).unwrap_or(ops.len());
    ops[..until].iter().any(|op| prompt_linear::input(op) == Some(act))
}
