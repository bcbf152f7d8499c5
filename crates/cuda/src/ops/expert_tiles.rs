//! Experts whose weights lie in tiles, and with them the one that every row has beside those it chose: further blocks of the same launches,
//! where nothing waits for it.

use overdraft_plan::{Act, Choice, ExpertAdd, ExpertGlu, MatrixId, Op, Plan, Weights};

use super::folded_norm::FoldedNorm;
use super::{Cx, glu_params, kernel_params, linear, prompt_linear};
use crate::driver::Result;
use crate::linear::{ImageShape, LinearKernels, NextNorm, Rows, TileView};
use crate::repack::{CELL_COLS, MXFP4, STAGE_INPUT_BYTES, TILE_OUTPUTS};

/// Of `expert_tiles.cuh`: warps of a block, and the shared memory that its kernels have by themselves, at most.
const WARPS: usize = 8;
const STATIC_BYTES: usize = 9 << 10;
/// Stages that have inputs where they come a stage ahead.
const STAGES_AHEAD: usize = 2;
/// Of `expert_sum`: warps of a block, and columns of a warp.
const SUM_WARPS: usize = 4;
const SUM_COLS: usize = 128;

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

/// `ExpertInput` of `expert_inputs.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Input {
    x: u64,
    x_pairs: u32,
    cols: u32,
    n_cells: u32,
    pad: u32,
}

/// `ExpertProduct` of `expert_tiles.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Product {
    input: Input,
    out: u64,
    parts: [StackParams; 2],
    format: u32,
    stage_bytes: u32,
    n_stages: u32,
    n_out: u32,
}

impl Product {
    /// With matrices that lie as this one does. So many pairs of a row and an expert read one row of `x`.
    fn new(view: &TileView, [x, out]: [u64; 2], [x_pairs, cols, n_out]: [usize; 3]) -> Self {
        let n_cells = cols.div_ceil(CELL_COLS) as u32;
        Self {
            input: Input { x, x_pairs: x_pairs as u32, cols: cols as u32, n_cells, pad: 0 },
            out,
            parts: [StackParams::default(); 2],
            format: view.format,
            stage_bytes: view.stage_bytes as u32,
            n_stages: view.n_stages as u32,
            n_out: n_out as u32,
        }
    }
}

kernel_params!(TileParams {
    n_rows: u64,
    choices: u64,
    products: [Product; 2],
    n_shared_rows: u64,
    shared_blocks: u32,
    n_experts: u32,
    n_inputs: u32,
    k: u32,
    paired: u32,
    glu_kind: u32,
    alpha: f32,
    limit: f32,
});

/// `SharedPart` of `expert_tiles.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SharedPart {
    parts: u64,
    gates: u64,
    n_rows: u64,
}

/// `NextNorm` of `expert_tiles.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NextParams {
    n_rows: u64,
    weight: u64,
    squares: u64,
    tap: u64,
    image: u64,
    shape: ImageShape,
    pad: u32,
}

impl NextParams {
    fn new(cx: &Cx<'_>, fast: &dyn LinearKernels, norm: &FoldedNorm) -> Self {
        let rows = cx.rows_written(norm.out(), fast);
        if rows.bucket == 0 {
            return Self::default();
        }
        let NextNorm { weight, squares, tap, image: (image, shape) } = norm.next(cx, fast, rows);
        Self { n_rows: rows.count, weight, squares, tap, image, shape, pad: 0 }
    }
}

kernel_params!(SumParams {
    n_rows: u64,
    parts: u64,
    choices: u64,
    stream: u64,
    k: u32,
    hidden: u32,
    shared: SharedPart,
    next: NextParams,
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

    pub(super) fn launch(&self, cx: &Cx<'_>, shared: Option<&Shared<'_>>) -> Result<()> {
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
        n_experts: 0,
        n_inputs: 0,
        k: cx.k(choice) as u32,
        paired: 0,
        glu_kind: 0,
        alpha: 0.0,
        limit: 0.0,
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
    let fits = |blocks: usize, tiles: usize, n_inputs: usize| {
        blocks * (room_bytes(stage_bytes, tiles, n_inputs) + STATIC_BYTES) <= cx.gpu.device.max_shared_bytes
    };
    let tiles = if bucket > 8 && fits(1, 2, STAGES_AHEAD) { 2 } else { 1 };
    let kernel = match (views().all(|view| view.is_common || view.format == MXFP4), tiles) {
        (true, 1) => ("expert_tiles", "expert_tiles_1"),
        (true, _) => ("expert_tiles", "expert_tiles_2"),
        (false, 1) => ("expert_tiles_all", "expert_tiles_all_1"),
        (false, _) => ("expert_tiles_all", "expert_tiles_all_2"),
    };
    let shared_blocks = shared.map_or(0, |rows| rows.bucket.div_ceil(8 * tiles));
    let stack = &params.products[0].parts[0];
    let (n_pairs, n_experts) =
        (bucket * params.k as usize, stack.n_tiles as usize * TILE_OUTPUTS / stack.stride as usize);
    let outputs = TILE_OUTPUTS * if params.paired == 1 { WARPS / 2 } else { WARPS };
    let n_out = params.products[..n_products].iter().map(|product| product.n_out as usize).max().unwrap_or(0);
    let grid = [shared_blocks + n_pairs.min(n_experts), n_out.div_ceil(outputs), 1];
    // Where there are more blocks than multiprocessors, two have to find room on one.
    let beside = (grid[0] * grid[1]).div_ceil(cx.gpu.device.n_multiprocessors).min(2);
    let n_stages =
        params.products[..n_products].iter().map(|product| product.n_stages as usize).max().unwrap_or(1);
    let n_inputs = match tiles {
        1 => inputs_at_once(n_stages, beside, |blocks, n_inputs| fits(blocks, 1, n_inputs)),
        _ => STAGES_AHEAD,
    };
    let params = TileParams {
        n_shared_rows: shared.map_or(0, |rows| rows.count),
        shared_blocks: shared_blocks as u32,
        n_experts: if n_experts < n_pairs { n_experts as u32 } else { 0 },
        n_inputs: n_inputs as u32,
        ..params
    };
    cx.launch(kernel, grid, 32 * WARPS as u32, room_bytes(stage_bytes, tiles, n_inputs), &params)
}

/// Shared memory of a block: two stages of each warp's weights, and inputs of some.
fn room_bytes(stage_bytes: usize, tiles: usize, n_inputs: usize) -> usize {
    2 * WARPS * stage_bytes + n_inputs * tiles * STAGE_INPUT_BYTES
}

/// Of how many stages inputs are brought at once: of all or half of them, where so many blocks have room for that, else of as many as one has room
/// for. (With a quarter a row's step of a 30B-A3B took 6 % longer, with one block in place of two 9 % with 16 rows, nothing with one.)
fn inputs_at_once(n_stages: usize, blocks: usize, fits: impl Fn(usize, usize) -> bool) -> usize {
    let in_parts =
        |blocks, most| (1..=most).map(|n| n_stages.div_ceil(n)).find(|n_inputs| fits(blocks, *n_inputs));
    in_parts(blocks, 2).or_else(|| in_parts(1, n_stages)).unwrap_or(1)
}

/// A layer's second half: what each chosen expert adds to the stream, their sum, and a norm behind it that linear ops read. Returns how many ops of
/// `behind` that was.
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

    let folded = cx.weights.fast().zip(FoldedNorm::behind(cx, op.stream, behind));
    let next = folded.as_ref().map(|(fast, norm)| NextParams::new(cx, *fast, norm));
    let params = SumParams {
        n_rows: cx.count(op.h),
        parts: cx.act(op.parts),
        choices: cx.choice(op.choice),
        stream: cx.act(op.stream),
        k: k as u32,
        hidden: hidden as u32,
        shared: shared.map_or_else(SharedPart::default, |s| s.part(cx)),
        next: next.unwrap_or_default(),
    };
    let grid = [hidden.div_ceil(SUM_COLS * SUM_WARPS), cx.capacity(op.h) as usize, 1];
    cx.launch(("expert_tiles", "expert_sum"), grid, 32 * SUM_WARPS as u32, 0, &params)?;
    if cx.plan().written_before_prompts.is_some() {
        shared.map_or(Ok(()), |s| s.add_to_prompts(cx))?;
        folded.as_ref().map_or(Ok(()), |(fast, norm)| norm.launch(cx, *fast))?;
    }
    Ok(usize::from(folded.is_some()))
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
        add(cx, self.sum, &self.stack, behind, Some(self))
    }

    /// Its own ops over rows of prompts.
    fn add_to_prompts(&self, cx: &Cx<'_>) -> Result<()> {
        let Some(fast) = cx.weights.fast() else { return Ok(()) };
        self.own.iter().try_for_each(|op| {
            let held = linear::held(cx, op).expect("its matrices are in tiles");
            prompt_linear::launch(cx, fast, op, &held)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_come_at_once_as_room_allows() {
        let cases = [(16, 8), (15, 4), (8, 4), (7, 4), (4, 4), (3, 3), (2, 2), (1, 1), (0, 1)];
        for (room, n) in cases {
            let fits = |blocks: usize, n: usize| blocks * n <= room;
            assert_eq!(inputs_at_once(8, 2, fits), n, "two blocks, room for {room}");
        }
        assert_eq!(inputs_at_once(8, 1, |_, n| n <= 7), 4, "one block");
        assert_eq!(inputs_at_once(0, 1, |_, _| true), 0, "no stages");
    }
}
