//! Products with weight matrices, on weights as files hold them.

use overdraft_plan::{Act, Glu, LinearOut, MatrixId, VectorId};

use super::{Cx, glu_params, kernel_params};
use crate::driver::Result;
use crate::weights::RawView;

/// `MAX_PARTS` of `linear_simple.cu`.
const MAX_PARTS: usize = 8;
/// `TILE_ROWS` of `dot.cuh`.
const TILE_ROWS: usize = 8;
/// Outputs of a block: a warp each.
const OUTPUTS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    weight: RawView,
    bias: u64,
    out: u64,
    first_output: u32,
    pad: u32,
}

impl Part {
    const NONE: Self = Self { weight: RawView::NONE, bias: 0, out: 0, first_output: 0, pad: 0 };
}

kernel_params!(LinearSimple {
    n_rows: u64,
    x: u64,
    gate: u64,
    cols: u32,
    n_parts: u32,
    n_outputs: u32,
    kind: u32,
    glu_kind: u32,
    alpha: f32,
    limit: f32,
    pad: u32,
    parts: [Part; MAX_PARTS],
});

const STORE: u32 = 0;
const ADD: u32 = 1;
const GLU: u32 = 2;

fn params(cx: &Cx<'_>, x: Act, kind: u32) -> LinearSimple {
    LinearSimple {
        n_rows: cx.count(x),
        x: cx.act(x),
        gate: 0,
        cols: cx.width(x) as u32,
        n_parts: 1,
        n_outputs: 0,
        kind,
        glu_kind: 0,
        alpha: 0.0,
        limit: 0.0,
        pad: 0,
        parts: [Part::NONE; MAX_PARTS],
    }
}

fn launch(cx: &Cx<'_>, x: Act, params: &LinearSimple) -> Result<()> {
    let grid =
        [(params.n_outputs as usize).div_ceil(OUTPUTS), (cx.capacity(x) as usize).div_ceil(TILE_ROWS), 1];
    cx.launch(("linear_simple", "linear_simple"), grid, 256, 0, params)
}

fn part(cx: &Cx<'_>, weight: MatrixId, bias: Option<VectorId>, out: Act, first_output: u32) -> Part {
    let weight = cx.weights.raw(weight);
    Part { weight, bias: cx.weights.opt_vector(bias), out: cx.act(out), first_output, pad: 0 }
}

/// All outputs of one input in one launch.
pub(super) fn linear(cx: &Cx<'_>, x: Act, outs: &[LinearOut]) -> Result<()> {
    for outs in outs.chunks(MAX_PARTS) {
        let mut params = params(cx, x, STORE);
        params.n_parts = outs.len() as u32;
        for (place, out) in params.parts.iter_mut().zip(outs) {
            *place = part(cx, out.weight, out.bias, out.out, params.n_outputs);
            params.n_outputs += place.weight.rows;
        }
        launch(cx, x, &params)?;
    }
    Ok(())
}

pub(super) fn linear_add(
    cx: &Cx<'_>,
    x: Act,
    weight: MatrixId,
    bias: Option<VectorId>,
    gate: Option<Act>,
    stream: Act,
) -> Result<()> {
    let mut params = params(cx, x, ADD);
    params.parts[0] = part(cx, weight, bias, stream, 0);
    params.n_outputs = params.parts[0].weight.rows;
    params.gate = cx.opt_act(gate);
    launch(cx, x, &params)
}

pub(super) fn linear_glu(cx: &Cx<'_>, x: Act, [gate, up]: [MatrixId; 2], glu: Glu, out: Act) -> Result<()> {
    let mut params = params(cx, x, GLU);
    params.parts[0] = part(cx, gate, None, out, 0);
    params.parts[1] = part(cx, up, None, out, 0);
    params.n_parts = 2;
    params.n_outputs = params.parts[0].weight.rows;
    (params.glu_kind, params.alpha, params.limit) = glu_params(glu);
    launch(cx, x, &params)
}
