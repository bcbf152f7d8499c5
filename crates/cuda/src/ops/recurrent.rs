//! The gated delta rule: its inputs, the rule, and the rows it keeps.

use overdraft_plan::{
    Act, KeptRows, KeyHeadRule, Plan, Recurrent, RecurrentPrepare, RecurrentState, RmsNorm, WINDOW_ROWS,
};

use super::{Cx, kernel_params};
use crate::driver::{CudaError, Result};
use crate::linear::ImageShape;
use crate::step_data::StepView;

/// Of `recurrent.cu`.
const COLUMNS: usize = 32;
const PARTS: usize = 4;
const REACH: usize = 32;
const TILE: usize = 16;
const RING: usize = 64;
/// Key channels the largest kernel has registers for.
const MAX_KEY_DIM: usize = 128;
/// Blocks that share a row's keeping.
const KEEP_SHARES: usize = 8;

pub(crate) fn check(shape: &RecurrentState) -> Result<()> {
    if shape.key_dim <= MAX_KEY_DIM {
        return Ok(());
    }
    let why = format!("its key heads have {} channels, at most {MAX_KEY_DIM}", shape.key_dim);
    Err(CudaError::Unsupported { what: "a recurrent layer".into(), why })
}

/// Bytes of the products of keys that `recurrent_prepare` leaves for `recurrent`. There are no more key heads than value
/// heads.
pub(crate) fn dot_bytes(plan: &Plan, op: &RecurrentPrepare) -> usize {
    8 * REACH * plan.bucket * plan.act(op.b).width
}

/// `Room` of `recurrent.cu`.
fn shared_bytes(key_dim: usize) -> usize {
    let table = WINDOW_ROWS + RING;
    4 * (TILE * 2 * key_dim
        + TILE * 2 * PARTS * COLUMNS
        + TILE * REACH * 4
        + table * COLUMNS
        + table
        + 5 * TILE)
}

kernel_params!(PrepareParams {
    step: StepView,
    qkv: u64,
    b: u64,
    a: u64,
    conv: u64,
    decay: u64,
    dt_bias: u64,
    kept: u64,
    window: u64,
    out: u64,
    gates: u64,
    dots: u64,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
});
kernel_params!(RecurrentParams {
    step: StepView,
    prepared: u64,
    gates: u64,
    window: u64,
    dots: u64,
    delta: u64,
    out: u64,
    state: u64,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    pad: u32,
});
kernel_params!(
    /// `KeptLayer` of `keep.cuh`.
    KeptLayer {
        prepared: u64,
        preconv: u64,
        gates: u64,
        delta: u64,
        window: u64,
        conv: u64,
        key_heads: u32,
        value_heads: u32,
        key_dim: u32,
        value_dim: u32,
    }
);
kernel_params!(KeepParams { step: StepView, layer: KeptLayer });
kernel_params!(GatedNormKeep {
    step: StepView,
    layer: KeptLayer,
    x: u64,
    gate: u64,
    weight: u64,
    out: u64,
    image: u64,
    eps: f32,
    heads: u32,
    head_dim: u32,
    shape: ImageShape,
});

impl KeptLayer {
    pub(crate) fn new(cx: &Cx<'_>, rows: &KeptRows) -> Self {
        let layer = cx.state.recurrent(rows.layer);
        Self {
            prepared: cx.act(rows.prepared),
            preconv: cx.act(rows.preconv),
            gates: cx.act(rows.gates),
            delta: cx.act(rows.delta),
            window: layer.window.ptr(),
            conv: layer.conv.ptr(),
            key_heads: layer.shape.key_heads as u32,
            value_heads: layer.shape.value_heads as u32,
            key_dim: layer.shape.key_dim as u32,
            value_dim: layer.shape.value_dim as u32,
        }
    }

    /// The words of it, for a table in device memory.
    pub(crate) fn words(&self) -> Vec<u32> {
        let pointers = [self.prepared, self.preconv, self.gates, self.delta, self.window, self.conv];
        let split = |p: u64| [p as u32, (p >> 32) as u32];
        let sizes = [self.key_heads, self.value_heads, self.key_dim, self.value_dim];
        pointers.into_iter().flat_map(split).chain(sizes).collect()
    }
}

pub(super) fn prepare(cx: &Cx<'_>, op: &RecurrentPrepare) -> Result<()> {
    let layer = cx.state.recurrent(op.layer);
    let shape = layer.shape;
    let params = PrepareParams {
        step: cx.step,
        qkv: cx.act(op.qkv),
        b: cx.act(op.b),
        a: cx.act(op.a),
        conv: cx.weights.vector(op.conv),
        decay: cx.weights.vector(op.decay),
        dt_bias: cx.weights.vector(op.dt_bias),
        kept: layer.conv.ptr(),
        window: layer.window.ptr(),
        out: cx.act(op.out),
        gates: cx.act(op.gates),
        dots: cx.base + cx.memory.dots as u64,
        key_heads: shape.key_heads as u32,
        value_heads: shape.value_heads as u32,
        key_dim: shape.key_dim as u32,
        value_dim: shape.value_dim as u32,
    };
    // Blocks of key heads take sequences and the others rows; there are no more sequences than rows.
    let grid = [shape.key_heads + shape.value_heads.div_ceil(16), cx.capacity(op.qkv) as usize, 1];
    cx.launch(("recurrent_prepare", "recurrent_prepare"), grid, 512, 0, &params)
}

pub(super) fn recurrent(cx: &Cx<'_>, op: &Recurrent) -> Result<()> {
    let layer = cx.state.recurrent(op.layer);
    let shape = layer.shape;
    let params = RecurrentParams {
        step: cx.step,
        prepared: cx.act(op.prepared),
        gates: cx.act(op.gates),
        window: layer.window.ptr(),
        dots: cx.base + cx.memory.dots as u64,
        delta: cx.act(op.delta),
        out: cx.act(op.out),
        state: layer.s.ptr(),
        key_heads: shape.key_heads as u32,
        value_heads: shape.value_heads as u32,
        key_dim: shape.key_dim as u32,
        value_dim: shape.value_dim as u32,
        tiled: u32::from(op.rule == KeyHeadRule::Tiled),
        pad: 0,
    };
    // A sequence has at least one row, so there are no more of them than rows, nor than slots.
    let n_seqs = (cx.capacity(op.prepared) as usize).min(cx.state.slots);
    let (entry, room) =
        if shape.key_dim <= 64 { ("recurrent_64", 64) } else { ("recurrent_128", MAX_KEY_DIM) };
    let grid = [shape.value_dim.div_ceil(COLUMNS), shape.value_heads, n_seqs];
    cx.launch(("recurrent", entry), grid, 32 * PARTS as u32, shared_bytes(room), &params)
}

fn kept_layer(cx: &Cx<'_>, op: &Recurrent) -> KeptLayer {
    let rows = KeptRows {
        layer: op.layer,
        prepared: op.prepared,
        preconv: op.preconv,
        gates: op.gates,
        delta: op.delta,
    };
    KeptLayer::new(cx, &rows)
}

/// Sure rows enter the kept window, once all heads are done with it.
pub(super) fn keep(cx: &Cx<'_>, op: &Recurrent) -> Result<()> {
    let params = KeepParams { step: cx.step, layer: kept_layer(cx, op) };
    let grid = [cx.capacity(op.prepared) as usize, KEEP_SHARES, 1];
    cx.launch(("recurrent", "recurrent_keep"), grid, 256, 0, &params)
}

/// [`keep`] together with the gated norm of what the op gave.
pub(super) fn gated_norm_keep(
    cx: &Cx<'_>,
    op: &Recurrent,
    gate: Act,
    norm: RmsNorm,
    head_dim: usize,
    out: Act,
) -> Result<()> {
    let heads = cx.width(op.out) / head_dim;
    // A head is a block of the image, or the image has a kernel of its own.
    let (image, shape) = if head_dim == 128 { cx.image_to_make(out) } else { Default::default() };
    let params = GatedNormKeep {
        step: cx.step,
        layer: kept_layer(cx, op),
        x: cx.act(op.out),
        gate: cx.act(gate),
        weight: cx.weights.vector(norm.weight),
        out: cx.act(out),
        image,
        eps: norm.eps,
        heads: heads as u32,
        head_dim: head_dim as u32,
        shape,
    };
    let grid = [cx.capacity(op.prepared) as usize, heads.div_ceil(4), 1];
    cx.launch(("recurrent", "gated_norm_keep"), grid, 128, 0, &params)
}
