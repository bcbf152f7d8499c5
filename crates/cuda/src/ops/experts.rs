//! Mixture of experts: who is chosen, and the chosen experts' layers.

use overdraft_plan::{ExpertAdd, ExpertGlu, Route, RouteRule};

use super::{Cx, glu_params, kernel_params};
use crate::driver::Result;
use crate::weights::RawView;

/// `MAX_EXPERTS` of `route.cu`.
pub(crate) const MAX_EXPERTS: usize = 1024;
/// Outputs of a block: a warp each.
const OUTPUTS: usize = 8;

kernel_params!(RouteParams {
    n_rows: u64,
    logits: u64,
    choices: u64,
    n_experts: u32,
    k: u32,
    rule: u32,
    pad: u32,
});
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

pub(super) fn route(cx: &Cx<'_>, op: &Route) -> Result<()> {
    let rule = match op.rule {
        RouteRule::SoftmaxRenormalised => 0,
        RouteRule::Softmax => 1,
        RouteRule::TopThenSoftmax => 2,
    };
    let params = RouteParams {
        n_rows: cx.count(op.logits),
        logits: cx.act(op.logits),
        choices: cx.choice(op.choice),
        n_experts: op.n_experts as u32,
        k: cx.k(op.choice) as u32,
        rule,
        pad: 0,
    };
    cx.launch(("route", "route"), [cx.capacity(op.logits) as usize, 1, 1], 32, 0, &params)
}

pub(super) fn glu(cx: &Cx<'_>, op: &ExpertGlu) -> Result<()> {
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

pub(super) fn add(cx: &Cx<'_>, op: &ExpertAdd) -> Result<()> {
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
