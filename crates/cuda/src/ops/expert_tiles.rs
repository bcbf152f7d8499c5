//! Experts whose weights lie in tiles, and with them the one that every row has beside those it chose: further blocks of the same launches,
//! where nothing waits for it.

use overdraft_plan::{Act, Choice, ExpertAdd, ExpertGlu, MatrixId, Op, Plan, Weights};

use super::experts::Router;
use super::{Cx, glu_params, kernel_params, linear, prompt_linear, row_ops};
use crate::driver::Result;
use crate::linear::{LinearKernels, Rows, TileView};
use crate::repack::{CELL_BYTES, CELL_COLS, MXFP4, TILE_OUTPUTS};

/// Of `expert_tiles.cuh`: warps of a block, and shared memory its kernels have besides, at most.
const WARPS: usize = 8;
const STATIC_BYTES: usize = 9 << 10;

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

/// `ExpertProduct` of `expert_tiles.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Product {
    x: u64,
    out: u64,
    parts: [StackParams; 2],
    format: u32,
    stage_bytes: u32,
    n_stages: u32,
    n_cells: u32,
    x_pairs: u32,
    cols: u32,
    n_out: u32,
    pad: u32,
}

impl Product {
    /// With matrices that lie as this one does. So many pairs of a row and an expert read one row of `x`.
    fn new(view: &TileView, [x, out]: [u64; 2], [x_pairs, cols, n_out]: [usize; 3]) -> Self {
        Self {
            x,
            out,
            parts: [StackParams::default(); 2],
            format: view.format,
            stage_bytes: view.stage_bytes as u32,
            n_stages: view.n_stages as u32,
            n_cells: cols.div_ceil(CELL_COLS) as u32,
            x_pairs: x_pairs as u32,
            cols: cols as u32,
            n_out: n_out as u32,
            pad: 0,
        }
    }
}

kernel_params!(TileParams {
    n_rows: u64,
    choices: u64,
    products: [Product; 2],
    n_shared_rows: u64,
    shared_blocks: u32,
    k: u32,
    paired: u32,
    glu_kind: u32,
    alpha: f32,
    limit: f32,
    router: Router,
});
/// `SharedPart` of `shared_part.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct SharedPart {
    parts: u64,
    gates: u64,
    n_rows: u64,
}

kernel_params!(SumParams {
    n_rows: u64,
    parts: u64,
    choices: u64,
    stream: u64,
    k: u32,
    hidden: u32,
    shared: SharedPart,
});

/// Whether experts begin and end with tiles of 16 outputs.
pub(super) fn are_whole_tiles(sizes: &[usize]) -> bool {
    sizes.iter().all(|size| size.is_multiple_of(TILE_OUTPUTS))
}

pub(super) fn glu_has_tiles(op: &ExpertGlu, weights: &Weights) -> bool {
    are_pair(weights, op.gate, op.up) && are_whole_tiles(&[op.stride, op.up_row, op.width])
}

fn are_pair(weights: &Weights, gate: MatrixId, up: MatrixId) -> bool {
    weights.matrix(gate).dtype == weights.matrix(up).dtype
}

/// A layer's first half: the experts' gate and up matrices.
pub(super) struct Gated<'a> {
    op: &'a ExpertGlu,
    gate: TileView,
    up: TileView,
}

impl<'a> Gated<'a> {
    pub(super) fn at(cx: &Cx<'_>, op: &'a ExpertGlu) -> Option<Self> {
        Some(Self { op, gate: cx.weights.tiles(op.gate)?, up: cx.weights.tiles(op.up)? })
    }

    /// `router`: by whose logits rows choose, where they have not.
    pub(super) fn launch(&self, cx: &Cx<'_>, router: Router, shared: Option<&Shared<'_>>) -> Result<()> {
        let Self { op, gate, up } = self;
        let (glu_kind, alpha, limit) = glu_params(op.glu);
        let bias = |id| cx.weights.opt_vector(id);
        let parts = [
            StackParams::new(gate, bias(op.gate_bias), op.stride, 0),
            StackParams::new(up, bias(op.up_bias), op.stride, op.up_row),
        ];
        let sizes = [cx.k(op.choice), cx.width(op.x), op.width];
        let chosen = Product { parts, ..Product::new(gate, [cx.act(op.x), cx.act(op.out)], sizes) };
        let views = [Some(gate), shared.map(|s| &s.gate)];
        let of_shared = shared.map(|s| (s.gated(cx), s.rows));
        let params = TileParams {
            paired: 1,
            glu_kind,
            alpha,
            limit,
            router,
            ..tile_params(cx, op.x, op.choice, [Some(chosen), of_shared.map(|(product, _)| product)])
        };
        launch(cx, views, cx.capacity(op.x) as usize, of_shared.map(|(_, rows)| rows), params)
    }
}

/// All but what a gated pair has besides.
fn tile_params(cx: &Cx<'_>, x: Act, choice: Choice, products: [Option<Product>; 2]) -> TileParams {
    TileParams {
        n_rows: cx.count(x),
        choices: cx.choice(choice),
        products: products.map(Option::unwrap_or_default),
        n_shared_rows: 0,
        shared_blocks: 0,
        k: cx.k(choice) as u32,
        paired: 0,
        glu_kind: 0,
        alpha: 0.0,
        limit: 0.0,
        router: Router::default(),
    }
}

/// `views`: a matrix of each product. `shared`: the rows of the second.
fn launch(
    cx: &Cx<'_>,
    views: [Option<&TileView>; 2],
    bucket: usize,
    shared: Option<Rows>,
    params: TileParams,
) -> Result<()> {
    let views = || views.into_iter().flatten();
    // A plan of prompts has no rows for the second, but the kernel is one for all plans.
    let shared = shared.filter(|rows| rows.bucket > 0);
    let n_products = 1 + usize::from(shared.is_some());
    let stage_bytes = views().take(n_products).map(|view| view.stage_bytes).max().unwrap_or(0);
    // Two stages of each warp's weights and of the inputs: `sum_rows` of `expert_tiles.cuh`.
    let shared_bytes = |tiles: usize| 2 * (WARPS * stage_bytes + 2 * tiles * CELL_BYTES);
    let has_room = shared_bytes(2) + STATIC_BYTES <= cx.gpu.device.max_shared_bytes;
    let tiles = if bucket > 8 && has_room { 2 } else { 1 };
    let kernel = match (views().all(|view| view.is_common || view.format == MXFP4), tiles) {
        (true, 1) => ("expert_tiles", "expert_tiles_1"),
        (true, _) => ("expert_tiles", "expert_tiles_2"),
        (false, 1) => ("expert_tiles_all", "expert_tiles_all_1"),
        (false, _) => ("expert_tiles_all", "expert_tiles_all_2"),
    };
    let shared_blocks = shared.map_or(0, |rows| rows.bucket.div_ceil(8 * tiles));
    let params = TileParams {
        n_shared_rows: shared.map_or(0, |rows| rows.count),
        shared_blocks: shared_blocks as u32,
        ..params
    };
    let outputs = TILE_OUTPUTS * if params.paired == 1 { WARPS / 2 } else { WARPS };
    let n_out = params.products[..n_products].iter().map(|product| product.n_out as usize).max().unwrap_or(0);
    let grid = [shared_blocks + bucket * params.k as usize, n_out.div_ceil(outputs), 1];
    cx.launch(kernel, grid, 32 * WARPS as u32, shared_bytes(tiles), &params)
}

/// A layer's second half: what each chosen expert adds to the stream, their sum, and the norm of that where `behind` begins with one, made
/// by the sum's kernel with the bits of two. Returns how many ops of `behind` that was.
pub(super) fn add(
    cx: &Cx<'_>,
    op: &ExpertAdd,
    down: &TileView,
    behind: &[Op],
    shared: Option<&Shared<'_>>,
) -> Result<usize> {
    let (k, hidden) = (cx.k(op.choice), cx.width(op.stream));
    let stack = StackParams::new(down, cx.weights.opt_vector(op.bias), hidden, 0);
    let chosen = Product {
        parts: [stack, StackParams::default()],
        ..Product::new(down, [cx.act(op.h), cx.act(op.parts)], [1, cx.width(op.h) / k, hidden])
    };
    let of_shared = shared.map(|s| s.down(cx, hidden));
    let params = tile_params(cx, op.h, op.choice, [Some(chosen), of_shared]);
    let views = [Some(down), shared.map(|s| &s.down)];
    launch(cx, views, cx.capacity(op.h) as usize, shared.map(|s| s.rows), params)?;

    let shared = shared.map_or_else(SharedPart::default, |s| s.part(cx));
    if let [norm_op @ Op::Norm { x, norm, out, tap }, readers @ ..] = behind
        && *x == op.stream
        && row_ops::makes_images(cx, *x)
    {
        cx.forget_images(norm_op);
        let sum = row_ops::Sum { parts: op.parts, choice: op.choice, shared };
        return row_ops::sum_norm(cx, sum, *x, *norm, *out, *tap, readers).map(|()| 1);
    }
    let params = SumParams {
        n_rows: cx.count(op.h),
        parts: cx.act(op.parts),
        choices: cx.choice(op.choice),
        stream: cx.act(op.stream),
        k: k as u32,
        hidden: hidden as u32,
        shared,
    };
    let grid = [hidden.div_ceil(256), cx.capacity(op.h) as usize, 1];
    cx.launch(("expert_tiles", "expert_sum"), grid, 256, 0, &params).map(|()| 0)
}

/// The expert that every row has: a gated pair and a gated sum behind the experts' ops, of which written rows have theirs made by the experts'
/// launches. Rows of prompts keep to the kernels for them.
pub(super) struct Shared<'a> {
    /// Of those that rows choose.
    sum: &'a ExpertAdd,
    stack: TileView,
    own: &'a [Op],
    x: Act,
    h: Act,
    gates: Act,
    gate: TileView,
    up: TileView,
    down: TileView,
    /// That are written.
    rows: Rows,
}

/// Of [`Shared`]: the experts' two ops and its own.
pub(super) const LAYER_OPS: usize = 4;

impl<'a> Shared<'a> {
    /// What the ops and their weights are decides, never how many rows there are: a row's bits are the same in every plan.
    pub(super) fn at(cx: &Cx<'_>, ops: &'a [Op]) -> Option<Self> {
        let fast = cx.weights.fast()?;
        let [Op::ExpertGlu(experts), Op::ExpertAdd(sum), own @ ..] = ops else { return None };
        let [pair @ Op::LinearGlu { x, gate, up, glu, out }, add, ..] = own else { return None };
        let Op::LinearAdd { x: h, weight: down, bias: None, gate: Some(gates), stream } = add else {
            return None;
        };
        let is_one = (x, glu, out, stream) == (&experts.x, &experts.glu, h, &sum.stream)
            && experts.choice == sum.choice
            && experts.out == sum.h;
        // One launch writes what two did.
        let is_apart = ![experts.out, sum.parts, *x, *gates].contains(out);
        let sizes = [cx.width(*out), cx.width(*stream)];
        if !is_one || !is_apart || !are_whole_tiles(&sizes) || !are_pair(cx.weights.host(), *gate, *up) {
            return None;
        }
        let tiles = |id: MatrixId| cx.weights.tiles(id);
        Some(Self {
            sum,
            stack: tiles(sum.down)?,
            own: &own[..2],
            x: *x,
            h: *out,
            gates: *gates,
            gate: tiles(*gate)?,
            up: tiles(*up)?,
            down: tiles(*down)?,
            rows: cx.rows_of_op(pair, *x, fast),
        })
    }

    fn gated(&self, cx: &Cx<'_>) -> Product {
        let width = cx.width(self.h);
        Product {
            parts: [&self.gate, &self.up].map(|view| StackParams::new(view, 0, width, 0)),
            ..Product::new(&self.gate, [cx.act(self.x), cx.act(self.h)], [1, cx.width(self.x), width])
        }
    }

    fn down(&self, cx: &Cx<'_>, hidden: usize) -> Product {
        let part = cx.base + cx.memory.shared_parts as u64;
        Product {
            parts: [StackParams::new(&self.down, 0, hidden, 0), StackParams::default()],
            ..Product::new(&self.down, [cx.act(self.h), part], [1, cx.width(self.h), hidden])
        }
    }

    fn part(&self, cx: &Cx<'_>) -> SharedPart {
        let parts = cx.base + cx.memory.shared_parts as u64;
        // None: a plan of prompts.
        let parts = if self.rows.bucket == 0 { 0 } else { parts };
        SharedPart { parts, gates: cx.act(self.gates), n_rows: self.rows.count }
    }

    /// The layer's second half, and a norm that `behind` begins with. Returns how many ops of `behind` that was.
    pub(super) fn add(&self, cx: &Cx<'_>, behind: &[Op]) -> Result<usize> {
        let has_prompts = prompt_linear::is_apart(cx.plan(), &self.own[0]);
        // A norm is of rows that have everything.
        let behind = if has_prompts { &[] } else { behind };
        let n_ops = add(cx, self.sum, &self.stack, behind, Some(self))?;
        let Some(fast) = cx.weights.fast().filter(|_| has_prompts) else { return Ok(n_ops) };
        for op in self.own {
            let held = linear::held(cx, op).expect("its matrices are in tiles");
            prompt_linear::launch(cx, fast, op, &held)?;
        }
        Ok(n_ops)
    }
}

/// Bytes for what shared experts add to written rows.
pub(crate) fn shared_bytes(plan: &Plan, fast: Option<&dyn LinearKernels>) -> usize {
    let Some(fast) = fast else { return 0 };
    let of = |ops: &[Op]| match ops {
        [Op::ExpertAdd(sum), pair @ Op::LinearGlu { x, .. }, Op::LinearAdd { gate: Some(_), stream, .. }]
            if *stream == sum.stream =>
        {
            4 * plan.act(*stream).width * prompt_linear::rows_of_op(plan, pair, *x, fast)
        }
        _ => 0,
    };
    plan.ops.windows(3).map(of).max().unwrap_or(0)
}
