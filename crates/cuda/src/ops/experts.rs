//! Mixture of experts: who is chosen, and the chosen experts' layers, on weights in tiles where their shapes allow it, else as files hold them.

use overdraft_plan::{ExpertAdd, ExpertGlu, Op, Route, RouteRule};

use super::expert_tiles::{self, Gated, LAYER_OPS, Shared};
use super::{Cx, glu_params, kernel_params};
use crate::driver::Result;
use crate::weights::RawView;

/// `MAX_EXPERTS` of `route.cuh`.
pub(crate) const MAX_EXPERTS: usize = 1024;
/// Of a row: with 2048 rows, `MAX_CHOOSERS` of `expert_tiles.cuh`, 16 bits number them all.
pub(crate) const MAX_CHOSEN: usize = 32;
/// Outputs of a block: a warp each.
const OUTPUTS: usize = 8;

/// `Router` of `route.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Router {
    logits: u64,
    choices: u64,
    n_experts: u32,
    k: u32,
    rule: u32,
    pad: u32,
}

kernel_params!(RouteParams { n_rows: u64, router: Router });
kernel_params!(GluParams {
    n_rows: u64,
    x: u64,
    choices: u64,
    out: u64,
    gate: RawView,
    up: RawView,
    gate_bias: u64,
    up_bias: u64,
    k: u32,
    cols: u32,
    width: u32,
    stride: u32,
    up_row: u32,
    glu_kind: u32,
    alpha: f32,
    limit: f32,
});
kernel_params!(AddParams {
    n_rows: u64,
    h: u64,
    choices: u64,
    stream: u64,
    down: RawView,
    bias: u64,
    k: u32,
    width: u32,
    hidden: u32,
    pad: u32,
});

pub(super) fn router(cx: &Cx<'_>, op: &Route) -> Router {
    let rule = match op.rule {
        RouteRule::SoftmaxRenormalised => 0,
        RouteRule::Softmax => 1,
        RouteRule::TopThenSoftmax => 2,
    };
    Router {
        logits: cx.act(op.logits),
        choices: cx.choice(op.choice),
        n_experts: op.n_experts as u32,
        k: cx.k(op.choice) as u32,
        rule,
        pad: 0,
    }
}

/// A choice by logits that no launch beside them makes.
pub(super) fn route(cx: &Cx<'_>, op: &Route) -> Result<()> {
    let params = RouteParams { n_rows: cx.count(op.logits), router: router(cx, op) };
    cx.launch(("route", "route"), [cx.capacity(op.logits) as usize, 1, 1], 32, 0, &params)
}

/// The experts' first half, with which `ops` begin; where all rows have an expert besides, the whole layer and a norm behind it. Returns how many
/// ops that was.
pub(super) fn first_half(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [first @ Op::ExpertGlu(op), ..] = ops else { return Ok(0) };
    cx.forget_images(first);
    let Some(gated) = Gated::at(cx, op) else { return glu_as_in_files(cx, op).map(|()| 1) };
    let shared = Shared::at(cx, ops);
    gated.launch(cx, shared.as_ref())?;
    let Some(shared) = shared else { return Ok(1) };
    ops[..LAYER_OPS].iter().for_each(|op| cx.forget_images(op));
    shared.add(cx, &ops[LAYER_OPS..]).map(|n_norms| LAYER_OPS + n_norms)
}

fn glu_as_in_files(cx: &Cx<'_>, op: &ExpertGlu) -> Result<()> {
    let (glu_kind, alpha, limit) = glu_params(op.glu);
    let k = cx.k(op.choice);
    let params = GluParams {
        n_rows: cx.count(op.x),
        x: cx.act(op.x),
        choices: cx.choice(op.choice),
        out: cx.act(op.out),
        gate: cx.weights.raw(op.gate),
        up: cx.weights.raw(op.up),
        gate_bias: cx.weights.opt_vector(op.gate_bias),
        up_bias: cx.weights.opt_vector(op.up_bias),
        k: k as u32,
        cols: cx.width(op.x) as u32,
        width: op.width as u32,
        stride: op.stride as u32,
        up_row: op.up_row as u32,
        glu_kind,
        alpha,
        limit,
    };
    let grid = [op.width.div_ceil(OUTPUTS), cx.capacity(op.x) as usize * k, 1];
    cx.launch(("experts", "expert_glu"), grid, 256, 0, &params)
}

/// The sum that `ops` begins with, and the norm of it, if that is next. Returns how many ops that was.
pub(super) fn add(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [first @ Op::ExpertAdd(op), behind @ ..] = ops else { return Ok(0) };
    cx.forget_images(first);
    match cx.weights.tiles(op.down) {
        Some(down) => expert_tiles::add(cx, op, &down, behind, None).map(|n| 1 + n),
        None => add_as_in_files(cx, op).map(|()| 1),
    }
}

fn add_as_in_files(cx: &Cx<'_>, op: &ExpertAdd) -> Result<()> {
    let k = cx.k(op.choice);
    let hidden = cx.width(op.stream);
    let params = AddParams {
        n_rows: cx.count(op.h),
        h: cx.act(op.h),
        choices: cx.choice(op.choice),
        stream: cx.act(op.stream),
        down: cx.weights.raw(op.down),
        bias: cx.weights.opt_vector(op.bias),
        k: k as u32,
        width: (cx.width(op.h) / k) as u32,
        hidden: hidden as u32,
        pad: 0,
    };
    let grid = [hidden.div_ceil(OUTPUTS), cx.capacity(op.h) as usize, 1];
    cx.launch(("experts", "expert_add"), grid, 256, 0, &params)
}
