//! A norm, and with it the router that reads it and what rows choose by that: one launch, in which neither waits for the other.

use overdraft_formats::DType;
use overdraft_plan::{Act, LinearOut, Op, Plan, RmsNorm, Route, Weights};

use super::expert_tiles::{LAYER_OPS, Shared};
use super::row_ops::{self, Norm};
use super::{Cx, experts, kernel_params, prompt_linear, written};
use crate::driver::Result;

/// Of `router.cu`: outputs of a block, and matrices of a launch.
const OUTPUTS: usize = 8;
const MAX_PARTS: usize = 2;
/// Rows of a block, where there are few and where there are many: each block reads its weights once.
const ROWS: [usize; 2] = [8, 32];
const MANY_ROWS: usize = 128;
/// A norm, a product, a choice.
const OPS: usize = 3;

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
    router: experts::Router,
    done: u64,
});

struct Found<'a> {
    x: Act,
    norm: RmsNorm,
    out: Act,
    outs: &'a [LinearOut],
    route: &'a Route,
}

impl<'a> Found<'a> {
    /// The norm that `ops` begins with and a router behind it, if the kernel takes both: what they are decides, never how many rows
    /// there are, so that a row's choice is the same in every plan.
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
        is_taken.then_some(Self { x: *x, norm: *norm, out: *out, outs, route })
    }
}

/// Whether the op is a router's product whose weights are wanted as files hold them.
pub(super) fn takes(plan: &Plan, weights: &Weights, op: &Op) -> bool {
    let Op::Linear { outs, .. } = op else { return false };
    let is_its = |router: Found<'_>| router.outs.iter().zip(outs).all(|(a, b)| a.weight == b.weight);
    (0..plan.ops.len()).any(|at| Found::at(plan, weights, &plan.ops[at..]).is_some_and(is_its))
}

/// Counters of blocks that are done with some rows.
pub(crate) fn n_counters(plan: &Plan) -> usize {
    let of = |op: &Op| match op {
        Op::Route(route) => {
            let rows = plan.capacity(plan.act(route.logits).rows);
            rows.div_ceil(rows_a_block(rows))
        }
        _ => 0,
    };
    plan.ops.iter().map(of).max().unwrap_or(0)
}

fn rows_a_block(bucket: usize) -> usize {
    ROWS[usize::from(bucket >= MANY_ROWS)]
}

/// The norm that `ops` begins with, and a router and a choice behind it. Returns how many ops that was.
pub(super) fn launch(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [first @ Op::Norm { x, norm, out, tap }, ..] = ops else { return Ok(0) };
    cx.forget_images(first);
    let Some(router) = Found::at(cx.plan(), cx.weights.host(), ops) else {
        return row_ops::norm(cx, *x, *norm, *out, *tap, &ops[1..]).map(|()| 1);
    };
    cx.forget_images(&ops[1]);
    let part = |o: &LinearOut| {
        let weight = cx.weights.raw(o.weight);
        let bias = cx.weights.opt_vector(o.bias);
        RouterPart { weight: weight.data, bias, out: cx.act(o.out), n_out: weight.rows, pad: 0 }
    };
    let mut parts = [RouterPart::default(); MAX_PARTS];
    parts.iter_mut().zip(router.outs).for_each(|(place, o)| *place = part(o));
    let n_outputs: u32 = parts.iter().map(|p| p.n_out).sum();
    let behind = &ops[OPS..];
    // Written rows of an expert that all have are none of the linear ops'.
    let n_taken = if Shared::at(cx, behind).is_some() { LAYER_OPS } else { 0 };
    let image = if is_input(&behind[n_taken..], router.out) {
        cx.image_to_make(router.out)
    } else {
        Default::default()
    };
    let of_prompts = prompt_linear::image_for_reader(cx, router.out, behind);
    let rows = cx.capacity(router.x) as usize;
    let rows_a_block = rows_a_block(rows);
    let n_blocks = (n_outputs as usize).div_ceil(OUTPUTS) * rows.div_ceil(rows_a_block);
    let params = NormRouter {
        norm: row_ops::norm_params(cx, router.x, router.norm, (Some(router.out), None), image, of_prompts),
        parts,
        n_outputs,
        n_blocks: n_blocks as u32,
        rows_a_block: rows_a_block as u32,
        pad: 0,
        router: experts::router(cx, router.route),
        done: cx.counters,
    };
    let kernel = if cx.width(router.x) <= 2048 { "norm_and_route_2" } else { "norm_and_route_4" };
    cx.launch(("router", kernel), [n_blocks + rows, 1, 1], 256, 0, &params).map(|()| OPS)
}

/// Whether a linear op reads it before it is written again.
fn is_input(ops: &[Op], act: Act) -> bool {
    let until = ops.iter().position(|op| written(op).contains(&act)).unwrap_or(ops.len());
    ops[..until].iter().any(|op| prompt_linear::input(op) == Some(act))
}
