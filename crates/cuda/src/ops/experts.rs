//! Mixture of experts: who is chosen, and the chosen experts' layers, on weights in tiles where their shapes allow it.

use overdraft_plan::{Act, Choice, ExpertAdd, ExpertGlu, Op, Route, RouteRule, Weights};

use super::{Cx, glu_params, kernel_params, row_ops};
use crate::driver::Result;
use crate::linear::TileView;
use crate::repack::{CELL_BYTES, CELL_COLS, MXFP4, TILE_OUTPUTS};
use crate::weights::RawView;

/// `MAX_EXPERTS` of `route.cuh`.
pub(crate) const MAX_EXPERTS: usize = 1024;
/// Outputs of a block: a warp each.
const OUTPUTS: usize = 8;
/// Of `expert_tiles.cuh`: warps of a block, rows whose experts a launch may choose itself, and shared memory its kernels have besides, at
/// most.
const WARPS: usize = 8;
const MAX_CHOOSING: usize = 64;
/// Rows times logits, at most, where a launch chooses itself: every block of every row's experts reads all logits. With 16 rows and 10 of 512
/// experts in 8 blocks each that is 42 MB of loads, of which blocks of a multiprocessor share most: by count, not measured, no more than
/// the launch that is saved, which takes about 2.5 us. It grows by the square of the rows.
const MAX_CHOOSING_READS: usize = 16 * 16 * 512;
const STATIC_BYTES: usize = 9 << 10;

/// `Router` of `route.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Router {
    logits: u64,
    choices: u64,
    n_experts: u32,
    k: u32,
    rule: u32,
    pad: u32,
}

kernel_params!(RouteParams { n_rows: u64, router: Router });
/// `ExpertMatrix` of `expert_tiles.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct StackParams {
    tiles: u64,
    scales: u64,
    bias: u64,
    n_tiles: u32,
    stride: u32,
    first: u32,
    pad: u32,
}

impl StackParams {
    fn new(stack: &TileView, bias: u64, stride: usize, first: usize) -> Self {
        let (n_tiles, stride, first) = (stack.n_tiles as u32, stride as u32, first as u32);
        Self { tiles: stack.tiles, scales: stack.scales, bias, n_tiles, stride, first, pad: 0 }
    }
}

kernel_params!(TileParams {
    n_rows: u64,
    x: u64,
    choices: u64,
    out: u64,
    parts: [StackParams; 2],
    format: u32,
    stage_bytes: u32,
    n_stages: u32,
    n_cells: u32,
    k: u32,
    x_pairs: u32,
    cols: u32,
    n_out: u32,
    paired: u32,
    glu_kind: u32,
    alpha: f32,
    limit: f32,
    router: Router,
});
kernel_params!(SumParams { n_rows: u64, parts: u64, choices: u64, stream: u64, k: u32, hidden: u32 });
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

fn router(cx: &Cx<'_>, op: &Route) -> Router {
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

/// The choice that `ops` begins with, by the launch of the experts' first half, if that is next and there are few rows and logits. Returns
/// how many ops that was.
pub(super) fn route(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [Op::Route(op), behind @ ..] = ops else { return Ok(0) };
    let router = router(cx, op);
    let rows = cx.capacity(op.logits) as usize;
    if rows <= MAX_CHOOSING
        && rows * rows * op.n_experts <= MAX_CHOOSING_READS
        && let [glu @ Op::ExpertGlu(experts), ..] = behind
        && experts.choice == op.choice
        && let (Some(gate), Some(up)) = (cx.weights.tiles(experts.gate), cx.weights.tiles(experts.up))
    {
        cx.forget_images(glu);
        return glu_in_tiles(cx, experts, [&gate, &up], router).map(|()| 2);
    }
    let params = RouteParams { n_rows: cx.count(op.logits), router };
    cx.launch(("route", "route"), [rows, 1, 1], 32, 0, &params).map(|()| 1)
}

/// Whether experts begin and end with tiles of 16 outputs.
pub(super) fn are_whole_tiles(sizes: &[usize]) -> bool {
    sizes.iter().all(|size| size.is_multiple_of(TILE_OUTPUTS))
}

pub(super) fn glu_has_tiles(op: &ExpertGlu, weights: &Weights) -> bool {
    weights.matrix(op.gate).dtype == weights.matrix(op.up).dtype
        && are_whole_tiles(&[op.stride, op.up_row, op.width])
}

/// All but what a gated pair has besides.
fn tile_params(
    cx: &Cx<'_>,
    stack: &TileView,
    x: Act,
    choice: Choice,
    [x_pairs, cols]: [usize; 2],
) -> TileParams {
    TileParams {
        n_rows: cx.count(x),
        x: cx.act(x),
        choices: cx.choice(choice),
        out: 0,
        parts: [StackParams::default(); 2],
        format: stack.format,
        stage_bytes: stack.stage_bytes as u32,
        n_stages: stack.n_stages as u32,
        n_cells: cols.div_ceil(CELL_COLS) as u32,
        k: cx.k(choice) as u32,
        x_pairs: x_pairs as u32,
        cols: cols as u32,
        n_out: 0,
        paired: 0,
        glu_kind: 0,
        alpha: 0.0,
        limit: 0.0,
        router: Router::default(),
    }
}

fn launch_tiles(cx: &Cx<'_>, stack: &TileView, bucket: usize, params: &TileParams) -> Result<()> {
    // Two stages of each warp's weights and of the inputs: `sum_rows` of `expert_tiles.cuh`.
    let shared = |tiles: usize| 2 * (WARPS * stack.stage_bytes + 2 * tiles * CELL_BYTES);
    let has_room = shared(2) + STATIC_BYTES <= cx.gpu.device.max_shared_bytes;
    let tiles = if bucket > 8 && has_room { 2 } else { 1 };
    let kernel = match (stack.is_common || stack.format == MXFP4, tiles) {
        (true, 1) => ("expert_tiles", "expert_tiles_1"),
        (true, _) => ("expert_tiles", "expert_tiles_2"),
        (false, 1) => ("expert_tiles_all", "expert_tiles_all_1"),
        (false, _) => ("expert_tiles_all", "expert_tiles_all_2"),
    };
    let outputs = TILE_OUTPUTS * if params.paired == 1 { WARPS / 2 } else { WARPS };
    let grid = [bucket * params.k as usize, (params.n_out as usize).div_ceil(outputs), 1];
    cx.launch(kernel, grid, 32 * WARPS as u32, shared(tiles), params)
}

/// `router`: by whose logits rows choose, where they have not.
fn glu_in_tiles(cx: &Cx<'_>, op: &ExpertGlu, [gate, up]: [&TileView; 2], router: Router) -> Result<()> {
    let (glu_kind, alpha, limit) = glu_params(op.glu);
    let bias = |id| cx.weights.opt_vector(id);
    let params = TileParams {
        out: cx.act(op.out),
        parts: [
            StackParams::new(gate, bias(op.gate_bias), op.stride, 0),
            StackParams::new(up, bias(op.up_bias), op.stride, op.up_row),
        ],
        n_out: op.width as u32,
        paired: 1,
        glu_kind,
        alpha,
        limit,
        router,
        ..tile_params(cx, gate, op.x, op.choice, [cx.k(op.choice), cx.width(op.x)])
    };
    launch_tiles(cx, gate, cx.capacity(op.x) as usize, &params)
}

/// What each chosen expert adds, not yet added.
fn parts_in_tiles(cx: &Cx<'_>, op: &ExpertAdd, down: &TileView) -> Result<()> {
    let (k, hidden) = (cx.k(op.choice), cx.width(op.stream));
    let params = TileParams {
        out: cx.act(op.parts),
        parts: [StackParams::new(down, cx.weights.opt_vector(op.bias), hidden, 0), StackParams::default()],
        n_out: hidden as u32,
        ..tile_params(cx, down, op.h, op.choice, [1, cx.width(op.h) / k])
    };
    launch_tiles(cx, down, cx.capacity(op.h) as usize, &params)
}

fn add_parts(cx: &Cx<'_>, op: &ExpertAdd) -> Result<()> {
    let hidden = cx.width(op.stream);
    let params = SumParams {
        n_rows: cx.count(op.h),
        parts: cx.act(op.parts),
        choices: cx.choice(op.choice),
        stream: cx.act(op.stream),
        k: cx.k(op.choice) as u32,
        hidden: hidden as u32,
    };
    let grid = [hidden.div_ceil(256), cx.capacity(op.h) as usize, 1];
    cx.launch(("expert_tiles", "expert_sum"), grid, 256, 0, &params)
}

pub(super) fn glu(cx: &Cx<'_>, op: &ExpertGlu) -> Result<()> {
    if let (Some(gate), Some(up)) = (cx.weights.tiles(op.gate), cx.weights.tiles(op.up)) {
        return glu_in_tiles(cx, op, [&gate, &up], Router::default());
    }
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

/// The sum that `ops` begins with, and the norm of it, if that is next: one kernel adds the experts' parts and makes
/// the norm of what comes of it, with the bits of two. Returns how many ops that was.
pub(super) fn add(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [Op::ExpertAdd(op), behind @ ..] = ops else { return Ok(0) };
    let Some(down) = cx.weights.tiles(op.down) else {
        cx.forget_images(&ops[0]);
        return add_as_in_files(cx, op).map(|()| 1);
    };
    let norm = match behind {
        [Op::Norm { x, norm, out, tap }, ..] if *x == op.stream && row_ops::makes_images(cx, *x) => {
            Some((*norm, *out, *tap))
        }
        _ => None,
    };
    let n_ops = 1 + usize::from(norm.is_some());
    ops[..n_ops].iter().for_each(|op| cx.forget_images(op));
    parts_in_tiles(cx, op, &down)?;
    match norm {
        Some((norm, out, tap)) => row_ops::sum_norm(cx, (op.parts, op.choice), op.stream, norm, out, tap)?,
        None => add_parts(cx, op)?,
    }
    Ok(n_ops)
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
