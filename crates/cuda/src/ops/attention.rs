//! Head norms, rotation and the write to pages; then attention itself.

use overdraft_plan::{Attention, AttentionPrepare, RmsNorm, RopeStyle};

use super::{Cx, kernel_params};
use crate::driver::{CudaError, Result};
use crate::linear::ImageShape;
use crate::step_data::StepView;

/// `SPLITS` of `attention.cu`: enough that one row of a model with four key heads fills a large GPU.
const SPLITS: usize = 32;
/// Rows of a launch: bounds the partial results, which a prompt's 512 rows would make 800 MB of.
const ROWS: usize = 64;
/// Channels of a head at most: a thread each.
const MAX_HEAD_DIM: usize = 256;

kernel_params!(PrepareParams {
    step: StepView,
    q: u64,
    k: u64,
    v: u64,
    angles: u64,
    q_norm: u64,
    k_norm: u64,
    kv: u64,
    q_eps: f32,
    k_eps: f32,
    heads: u32,
    kv_heads: u32,
    d: u32,
    q_stride: u32,
    rotary: u32,
    pairs: u32,
    class: u32,
    kv_is_f16: u32,
});
kernel_params!(AttentionParams {
    step: StepView,
    q: u64,
    out: u64,
    kv: u64,
    sinks: u64,
    partials: u64,
    done: u64,
    image: u64,
    scale: f32,
    first_row: u32,
    heads: u32,
    kv_heads: u32,
    d: u32,
    q_stride: u32,
    window: u32,
    see_ahead: u32,
    class: u32,
    kv_is_f16: u32,
    gated: u32,
    head_blocks: u32,
    shape: ImageShape,
    pad: u32,
});

pub(super) fn check(op: &Attention) -> Result<()> {
    let d = op.head_dim;
    // A lane takes as many channels side by side as `chunk` says, and a head is a whole number of such shares.
    if d > MAX_HEAD_DIM || !d.is_multiple_of(chunk(d)) {
        let why =
            format!("a head of {d} channels is neither up to 32 nor a multiple of 8 up to {MAX_HEAD_DIM}");
        return Err(CudaError::Unsupported { what: "attention".into(), why });
    }
    Ok(())
}

/// Channels of a key that a lane takes.
fn chunk(head_dim: usize) -> usize {
    head_dim.div_ceil(32).next_power_of_two()
}

/// Query heads of a block, and how many blocks the heads that share a key head make.
fn grouping(op: &Attention) -> (usize, usize) {
    let group = op.heads / op.kv_heads;
    let heads = group.next_power_of_two().min(8);
    (heads, group.div_ceil(heads))
}

pub(crate) fn partial_bytes(op: &Attention, bucket: usize) -> usize {
    4 * bucket.min(ROWS) * op.heads * SPLITS * (op.head_dim + 2)
}

pub(crate) fn n_counters(op: &Attention, bucket: usize) -> usize {
    bucket.min(ROWS) * op.kv_heads * grouping(op).1
}

pub(super) fn prepare(cx: &Cx<'_>, op: &AttentionPrepare) -> Result<()> {
    let layer = cx.state.attention(op.layer);
    let norm = |n: Option<RmsNorm>| (cx.weights.opt_vector(n.map(|n| n.weight)), n.map_or(0.0, |n| n.eps));
    let ((q_norm, q_eps), (k_norm, k_eps)) = (norm(op.q_norm), norm(op.k_norm));
    let params = PrepareParams {
        step: cx.step,
        q: cx.opt_act(op.q),
        k: cx.act(op.k),
        v: cx.act(op.v),
        angles: cx.act(op.angles),
        q_norm,
        k_norm,
        kv: layer.kv.ptr(),
        q_eps,
        k_eps,
        heads: op.heads as u32,
        kv_heads: op.kv_heads as u32,
        d: op.head_dim as u32,
        q_stride: (op.head_dim * if op.gated { 2 } else { 1 }) as u32,
        rotary: op.rotary_dims as u32,
        pairs: u32::from(op.style == RopeStyle::Pairs),
        class: layer.shape.class as u32,
        kv_is_f16: cx.state.kv_is_f16(),
    };
    let units = if op.q.is_some() { op.heads } else { 0 } + 2 * op.kv_heads;
    let grid = [cx.capacity(op.k) as usize, units.div_ceil(4), 1];
    cx.launch(("attention_prepare", "attention_prepare"), grid, 128, 4 * 4 * op.head_dim, &params)
}

pub(super) fn attention(cx: &Cx<'_>, op: &Attention) -> Result<()> {
    let layer = cx.state.attention(op.layer);
    let (heads, blocks) = grouping(op);
    // Heads are whole blocks of the image, or the image has a kernel of its own.
    let (image, shape) =
        if op.head_dim.is_multiple_of(128) { cx.image_to_make(op.out) } else { Default::default() };
    let mut params = AttentionParams {
        step: cx.step,
        q: cx.act(op.q),
        out: cx.act(op.out),
        kv: layer.kv.ptr(),
        sinks: cx.weights.opt_vector(op.sinks),
        partials: cx.base + cx.memory.partials as u64,
        done: cx.counters,
        image,
        scale: op.scale,
        first_row: 0,
        heads: op.heads as u32,
        kv_heads: op.kv_heads as u32,
        d: op.head_dim as u32,
        q_stride: (op.head_dim * if op.gated { 2 } else { 1 }) as u32,
        window: op.window.unwrap_or(0),
        see_ahead: u32::from(op.see_ahead),
        class: layer.shape.class as u32,
        kv_is_f16: cx.state.kv_is_f16(),
        gated: u32::from(op.gated),
        head_blocks: blocks as u32,
        shape,
        pad: 0,
    };
    let bucket = cx.capacity(op.q) as usize;
    for first in (0..bucket).step_by(ROWS) {
        params.first_row = first as u32;
        let grid = [SPLITS, op.kv_heads * blocks, (bucket - first).min(ROWS)];
        cx.launch(("attention", entry(heads, chunk(op.head_dim))), grid, 256, 0, &params)?;
    }
    Ok(())
}

fn entry(heads: usize, chunk: usize) -> &'static str {
    const NAMES: [[&str; 4]; 4] = [
        ["attention_1_1", "attention_1_2", "attention_1_4", "attention_1_8"],
        ["attention_2_1", "attention_2_2", "attention_2_4", "attention_2_8"],
        ["attention_4_1", "attention_4_2", "attention_4_4", "attention_4_8"],
        ["attention_8_1", "attention_8_2", "attention_8_4", "attention_8_8"],
    ];
    NAMES[heads.ilog2() as usize][chunk.ilog2() as usize]
}
