//! Head norms, rotation and the write to pages; then attention itself.

use overdraft_plan::{Attention, AttentionPrepare, KvType, Op, PAGE, RmsNorm, RopeStyle};

use super::recurrent::Walks;
use super::{Cx, kernel_params};
use crate::driver::{CudaError, Range, Result};
use crate::linear::ImageShape;
use crate::step_data::StepView;

/// `SPLITS` of `attention.cu`: enough that one row of a model with four key heads fills a large GPU.
const SPLITS: usize = 32;
/// Rows of a launch: bounds the partial results, which a prompt's 512 rows would make 800 MB of.
const ROWS: usize = 64;
/// Of the kernels on tensor cores: rows of a launch, and `MAX_CHUNKS` of `attention_parts.cuh`.
const TILE_ROWS: usize = 32;
const MAX_CHUNKS: usize = 124;
/// Tiles of the wider kernels, and of those for prompts.
const WIDE: usize = 3;
const WALK_TILES: usize = 4;
/// From which bucket on prompts' rows have a launch of their own.
const WALK_BUCKET: usize = 128;
/// Channels of a head at most: a thread each.
const MAX_HEAD_DIM: usize = 256;

/// `MAX_LAYERS` of `attention_prepare.cu`.
const MAX_LAYERS: usize = 8;

kernel_params!(
    /// `Keys` of `attention_prepare.cu`: of a layer.
    KeysParams {
        k: u64,
        v: u64,
        norm: u64,
        kv: u64,
        class: u32,
        pad: u32,
    }
);
kernel_params!(PrepareParams {
    step: StepView,
    q: u64,
    angles: u64,
    q_norm: u64,
    q_eps: f32,
    k_eps: f32,
    heads: u32,
    kv_heads: u32,
    d: u32,
    q_stride: u32,
    rotary: u32,
    pairs: u32,
    kv_type: u32,
    pad: u32,
    layers: [KeysParams; MAX_LAYERS],
});
kernel_params!(
    /// `Attention` of `attention_parts.cuh`.
    AttentionParams {
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
        n_rows: u32,
        heads: u32,
        kv_heads: u32,
        d: u32,
        q_stride: u32,
        window: u32,
        see_ahead: u32,
        class: u32,
        kv_type: u32,
        gated: u32,
        head_blocks: u32,
        n_blocks: u32,
        n_counters: u32,
        n_finishers: u32,
        walks: u32,
        shape: ImageShape,
    }
);

impl AttentionParams {
    /// For a launch over no rows yet.
    fn new(cx: &Cx<'_>, op: &Attention) -> Self {
        let layer = cx.state.attention(op.layer);
        let (image, shape) = if makes_image(cx, op) { cx.image_to_make(op.out) } else { Default::default() };
        Self {
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
            n_rows: 0,
            heads: op.heads as u32,
            kv_heads: op.kv_heads as u32,
            d: op.head_dim as u32,
            q_stride: (op.head_dim * if op.gated { 2 } else { 1 }) as u32,
            window: op.window.unwrap_or(0),
            see_ahead: u32::from(op.see_ahead),
            class: layer.shape.class as u32,
            kv_type: cx.state.kv_type(),
            gated: u32::from(op.gated),
            head_blocks: 0,
            n_blocks: 0,
            n_counters: 0,
            n_finishers: 1,
            walks: 0,
            shape,
        }
    }
}

pub(super) fn check(d: usize) -> Result<()> {
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

/// Heads are whole blocks of the image, or pairs of them in one warp are; else the image has a kernel of its own.
fn makes_image(cx: &Cx<'_>, op: &Attention) -> bool {
    op.head_dim.is_multiple_of(128) || has_pairs(op) && runs_in_tiles(cx, op)
}

/// Whether a key head's query heads, two by two, are 128 channels each.
fn has_pairs(op: &Attention) -> bool {
    op.head_dim == 64 && (op.heads / op.kv_heads).is_multiple_of(2)
}

/// Blocks that put a row's chunks together for a key head, each for as many of its query heads: no more than the device runs at once, and
/// where two heads share a block of the image each has both.
fn n_finishers(op: &Attention, bucket: usize, n_multiprocessors: usize) -> usize {
    let group = op.heads / op.kv_heads;
    let fits = |n: &usize| {
        group.is_multiple_of(*n)
            && n * bucket * op.kv_heads <= n_multiprocessors
            && !(has_pairs(op) && (group / n) % 2 == 1)
    };
    (1..=group).rev().find(fits).unwrap_or(1)
}

fn runs_in_tiles(cx: &Cx<'_>, op: &Attention) -> bool {
    cx.state.kv != KvType::F32 && has_tiles(op)
}

/// Whether keys of 16 bits go through tensor cores.
fn has_tiles(op: &Attention) -> bool {
    matches!(op.head_dim, 64 | 128 | 256) && op.heads / op.kv_heads <= 16
}

pub(crate) fn partial_bytes(op: &Attention, bucket: usize) -> usize {
    let simple = bucket.min(ROWS) * SPLITS;
    let tiles = if has_tiles(op) { bucket.min(TILE_ROWS) * MAX_CHUNKS } else { 0 };
    4 * simple.max(tiles) * op.heads * (op.head_dim + 4)
}

pub(crate) fn n_counters(op: &Attention, bucket: usize) -> usize {
    let simple = bucket.min(ROWS) * grouping(op).1;
    // Four for a row and key head of the kernels on tensor cores, and one for all.
    (simple * op.kv_heads).max(4 * bucket.min(TILE_ROWS) * op.kv_heads + 1)
}

/// Whether the two differ in nothing but whose keys and values they are, of which one launch can take several.
fn is_alike(a: &AttentionPrepare, b: &AttentionPrepare) -> bool {
    let shape = |op: &AttentionPrepare| (op.kv_heads, op.head_dim, op.rotary_dims, op.style, op.angles);
    let eps = |op: &AttentionPrepare| op.k_norm.map(|norm| norm.eps);
    a.q.is_none() && b.q.is_none() && shape(a) == shape(b) && eps(a) == eps(b)
}

/// The first of `ops`, and with it those next to it that are alike. Returns how many.
pub(super) fn prepare(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let Some(Op::AttentionPrepare(op)) = ops.first() else { return Ok(0) };
    let also = |other: &Op| matches!(other, Op::AttentionPrepare(other) if is_alike(op, other));
    let n_ops = 1 + ops[1..].iter().take(MAX_LAYERS - 1).take_while(|other| also(other)).count();
    let mut layers = [KeysParams { k: 0, v: 0, norm: 0, kv: 0, class: 0, pad: 0 }; MAX_LAYERS];
    for (to, op) in layers.iter_mut().zip(&ops[..n_ops]) {
        cx.forget_images(op);
        let Op::AttentionPrepare(op) = op else { continue };
        let layer = cx.state.attention(op.layer);
        *to = KeysParams {
            k: cx.act(op.k),
            v: cx.act(op.v),
            norm: cx.weights.opt_vector(op.k_norm.map(|n| n.weight)),
            kv: layer.kv.ptr(),
            class: layer.shape.class as u32,
            pad: 0,
        };
    }
    let eps = |norm: Option<RmsNorm>| norm.map_or(0.0, |norm| norm.eps);
    let params = PrepareParams {
        step: cx.step,
        q: cx.opt_act(op.q),
        angles: cx.act(op.angles),
        q_norm: cx.weights.opt_vector(op.q_norm.map(|n| n.weight)),
        q_eps: eps(op.q_norm),
        k_eps: eps(op.k_norm),
        heads: op.heads as u32,
        kv_heads: op.kv_heads as u32,
        d: op.head_dim as u32,
        q_stride: (op.head_dim * if op.gated { 2 } else { 1 }) as u32,
        rotary: op.rotary_dims as u32,
        pairs: u32::from(op.style == RopeStyle::Pairs),
        kv_type: cx.state.kv_type(),
        pad: 0,
        layers,
    };
    let units = if op.q.is_some() { op.heads } else { 0 } + 2 * op.kv_heads;
    let grid = [cx.capacity(op.k) as usize, units.div_ceil(4), n_ops];
    cx.launch(("attention_prepare", "attention_prepare"), grid, 128, 4 * 4 * op.head_dim, &params)?;
    Ok(n_ops)
}

/// Whether two pages of any head fit the shared memory, as `STAGES` of `attention_tiles.cuh` says.
fn has_room(sm: u32) -> bool {
    matches!(sm, 90 | 100)
}

/// `STAGES` and `Pair` of `attention_tiles.cuh`.
fn page_bytes(d: usize, has_room: bool) -> usize {
    let page = PAGE * (2 * d + 64) + PAGE * (2 * d + 16);
    if d < 256 || has_room { 2 * page } else { page }
}
const PAIR: usize = 40;
/// Weights of a tile's 16 (row, head) pairs for a page, as two numbers.
const WEIGHTS: usize = 2 * 16 * (2 * PAGE + 16);

/// Whether four warps multiply together.
fn has_groups(sm: u32) -> bool {
    sm == 90
}

/// How committed chunks and tails are worked on.
struct ChunkShape {
    /// (Row, head) pairs that share a page.
    pairs: usize,
    threads: u32,
    shared_bytes: usize,
}

impl ChunkShape {
    fn new(sm: u32, d: usize, is_wide: bool) -> Self {
        // Where positions lie, `Ahead` and `Tail`.
        let found = 8 * PAGE + 72 + 72;
        if has_groups(sm) {
            // A group has 32 pairs, or 8; pairs are found by sixteens.
            let (pairs, groups, factors) = if is_wide { (64, 2, 1) } else { (8, 1, 1) };
            let shared_bytes = group_bytes(d, pairs, factors) + pairs.max(16) * PAIR + found;
            return Self { pairs, threads: 128 * (groups + 1), shared_bytes };
        }
        // `Layout` of `attention_tiles.cuh`.
        let tiles = if is_wide { WIDE } else { 1 };
        let of_tile = 64 * d + 16 * 4 * (PAGE + 4) + WEIGHTS + 16 * PAIR;
        let shared_bytes = page_bytes(d, has_room(sm)) + tiles * of_tile + found;
        Self { pairs: 16 * tiles, threads: 256 * tiles as u32, shared_bytes }
    }
}

/// `GroupLayout` of `attention_groups.cuh`: two pages, and of each pair its query and weights as two numbers, shares of their
/// sum, largest scores, factors; barriers.
fn group_bytes(d: usize, pairs: usize, factors: usize) -> usize {
    let pages = 2 * (PAGE / 2 * (4 * d + 64) + PAGE * (2 * d + 16));
    let of_pair = 4 * d + 4 * PAGE + 4 * PAGE / 2 + 4 * 4 + factors * 4;
    pages + pairs * of_pair + 2 * 4 * 8
}

/// Threads of a block that walks, and its shared memory.
fn walk_shape(sm: u32, d: usize) -> (u32, usize) {
    if has_groups(sm) {
        let pairs = 16 * WALK_TILES;
        return (384, group_bytes(d, pairs, 3) + pairs * PAIR);
    }
    // `WalkLayout` of `attention_walk.cuh`: without scores, with what two warps hand each other.
    let tile = 64 * d + WEIGHTS + 32 * 16 + 2 * 16 * 4 + 16 * PAIR;
    (64 * WALK_TILES as u32, page_bytes(d, has_room(sm)) + WALK_TILES * tile)
}

fn attention_tiles(cx: &Cx<'_>, op: &Attention) -> Result<()> {
    let bucket = cx.capacity(op.q) as usize;
    let device = cx.gpu.device;
    // More pairs share a page as soon as the narrow kernel does not hold them.
    let [narrow, wide] = [false, true].map(|is_wide| ChunkShape::new(device.sm, op.head_dim, is_wide));
    let is_wide =
        bucket * op.heads / op.kv_heads > narrow.pairs && wide.shared_bytes <= device.max_shared_bytes;
    let shape = if is_wide { wide } else { narrow };
    let kernel = tile_entry(cx.state.kv, op.head_dim, if is_wide { Tiles::Wide } else { Tiles::One });
    // Not more than run at once, for they wait for each other.
    let at_once = device.kernel(kernel.0, kernel.1)?.blocks_at_once(shape.threads, shape.shared_bytes)?;
    let at_once = at_once.clamp(1, 2);
    let n_blocks = at_once * device.n_multiprocessors;
    let n_counters = (bucket.min(TILE_ROWS) * op.kv_heads) as u32;
    let group = op.heads / op.kv_heads;
    let n_finishers = n_finishers(op, bucket, device.n_multiprocessors);
    let (walk_threads, walk_bytes) = walk_shape(device.sm, op.head_dim);
    let can_walk = walk_bytes <= device.max_shared_bytes;
    let walks = if can_walk && bucket >= WALK_BUCKET { Walks::of(cx.plan()) } else { Walks::None };
    let mut params = AttentionParams {
        n_blocks: n_blocks as u32,
        n_counters,
        n_finishers: n_finishers as u32,
        walks: walks as u32,
        ..AttentionParams::new(cx, op)
    };
    if walks != Walks::None {
        // A sequence's last group may be short of rows.
        let n_groups = bucket.div_ceil(16 * WALK_TILES / group) + walks.most_seqs(bucket, cx.n_seqs);
        let kernel = tile_entry(cx.state.kv, op.head_dim, Tiles::Walk);
        let grid = [n_groups * op.kv_heads, 1, 1];
        cx.launch(kernel, grid, walk_threads, walk_bytes, &params)?;
    }
    if walks == Walks::All {
        return Ok(());
    }
    let kv_bytes = cx.state.attention(op.layer).kv.len();
    for first in (0..bucket).step_by(TILE_ROWS) {
        let rows = (bucket - first).min(TILE_ROWS);
        (params.first_row, params.n_rows) = (first as u32, rows as u32);
        // Pages of a long context would push all else out of L2.
        cx.gpu.queue.set_read_once(Range { at: params.kv, bytes: kv_bytes });
        cx.launch(kernel, [n_blocks, 1, 1], shape.threads, shape.shared_bytes, &params)?;
    }
    Ok(())
}

/// Kernels on tensor cores by what they work on at once.
#[derive(Clone, Copy)]
enum Tiles {
    One,
    Wide,
    Walk,
}

fn tile_entry(kv: KvType, d: usize, tiles: Tiles) -> (&'static str, &'static str) {
    const F16: [[&str; 3]; 3] = [
        ["attention_f16_64_1", "attention_f16_64_3", "attention_f16_64_walk"],
        ["attention_f16_128_1", "attention_f16_128_3", "attention_f16_128_walk"],
        ["attention_f16_256_1", "attention_f16_256_3", "attention_f16_256_walk"],
    ];
    const BF16: [[&str; 3]; 3] = [
        ["attention_bf16_64_1", "attention_bf16_64_3", "attention_bf16_64_walk"],
        ["attention_bf16_128_1", "attention_bf16_128_3", "attention_bf16_128_walk"],
        ["attention_bf16_256_1", "attention_bf16_256_3", "attention_bf16_256_walk"],
    ];
    let size = d.ilog2() as usize - 6;
    match kv {
        KvType::Bf16 => ("attention_bf16", BF16[size][tiles as usize]),
        _ => ("attention_f16", F16[size][tiles as usize]),
    }
}

pub(super) fn attention(cx: &Cx<'_>, op: &Attention) -> Result<()> {
    if runs_in_tiles(cx, op) {
        return attention_tiles(cx, op);
    }
    let (heads, blocks) = grouping(op);
    let mut params = AttentionParams { head_blocks: blocks as u32, ..AttentionParams::new(cx, op) };
    let bucket = cx.capacity(op.q) as usize;
    for first in (0..bucket).step_by(ROWS) {
        let rows = (bucket - first).min(ROWS);
        (params.first_row, params.n_rows) = (first as u32, rows as u32);
        let grid = [SPLITS, op.kv_heads * blocks, rows];
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
