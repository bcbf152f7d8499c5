//! The gated delta rule: its inputs, the rule, and the rows it keeps.

use overdraft_plan::{GRID, KeptRows, KeyHeadRule, Recurrent, RecurrentPrepare, WINDOW_ROWS};

use super::{Cx, kernel_params};
use crate::driver::Result;
use crate::step_data::StepView;

/// `COLUMNS` of `recurrent.cu`.
const COLUMNS: usize = 32;

kernel_params!(PrepareParams {
    step: StepView,
    qkv: u64,
    b: u64,
    a: u64,
    conv: u64,
    decay: u64,
    dt_bias: u64,
    kept: u64,
    out: u64,
    gates: u64,
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
        out: cx.act(op.out),
        gates: cx.act(op.gates),
        key_heads: shape.key_heads as u32,
        value_heads: shape.value_heads as u32,
        key_dim: shape.key_dim as u32,
        value_dim: shape.value_dim as u32,
    };
    let grid = [cx.capacity(op.qkv) as usize, (2 * shape.key_heads + shape.value_heads).div_ceil(4), 1];
    cx.launch(("recurrent_prepare", "recurrent_prepare"), grid, 128, 0, &params)
}

pub(super) fn recurrent(cx: &Cx<'_>, op: &Recurrent) -> Result<()> {
    let layer = cx.state.recurrent(op.layer);
    let shape = layer.shape;
    let params = RecurrentParams {
        step: cx.step,
        prepared: cx.act(op.prepared),
        gates: cx.act(op.gates),
        window: layer.window.ptr(),
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
    let shared = 4 * shape.key_dim * (2 * COLUMNS + GRID + 2);
    let grid = [shape.value_dim.div_ceil(COLUMNS), shape.value_heads, n_seqs];
    cx.launch(("recurrent", "recurrent"), grid, 128, shared, &params)?;
    let rows = KeptRows {
        layer: op.layer,
        prepared: op.prepared,
        preconv: op.preconv,
        gates: op.gates,
        delta: op.delta,
    };
    let params = KeepParams { step: cx.step, layer: KeptLayer::new(cx, &rows) };
    let grid = [(cx.capacity(op.prepared) as usize).min(WINDOW_ROWS), n_seqs, 1];
    cx.launch(("recurrent", "recurrent_keep"), grid, 256, 0, &params)
}
