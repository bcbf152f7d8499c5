//! The gated delta rule with its neighbours: one kernel for the op that prepares its inputs, the rule, and the norm behind it.

use overdraft_plan::{
    Act, KeptRows, KeyHeadRule, Op, Plan, Recurrent, RecurrentPrepare, RecurrentState, RmsNorm, WINDOW_ROWS,
};

use super::{Cx, kernel_params};
use crate::driver::{CudaError, Result};
use crate::linear::ImageShape;
use crate::step_data::{PROMPT_ROWS, StepView};

/// Of `recurrent.cu` and its headers.
const DIM: usize = 128;
const STRIDE: usize = 136;
const TILE: usize = 16;
const REACH: usize = 32;
const THREADS: u32 = 256;
const PAIR_THREADS: u32 = 512;
const PREPARES: u32 = 1;
const RULES: u32 = 2;
const NORMS: u32 = 4;
/// `Room`, in words.
const ROOM: usize = WINDOW_ROWS * (STRIDE + DIM + 1)
    + TILE * (2 * STRIDE + 2 * DIM)
    + 3 * 4 * DIM
    + TILE * (2 * REACH + 2 * TILE + REACH)
    + 6 * TILE
    + 1;

/// `LoneRoom` of `recurrent_lone.cu`, in words: two fit a multiprocessor of 228 KB.
const LONE_ROWS: usize = 32;
const LONE_ROOM: usize = DIM * DIM
    + LONE_ROWS * (STRIDE + DIM + 1)
    + 4 * STRIDE
    + 4 * DIM
    + 2 * (LONE_ROWS + TILE)
    + LONE_ROWS
    + 2 * 3
    + 2 * 14
    + 6;

/// Of a block of `recurrent_pair.cu`, whose tiles of 16 and of 32 rows share it: all that compute capability 9.0 has for one.
const PAIR_BYTES: usize = 227 * 1024;

/// `RuleRoom` of `recurrent_rule.cu`, in words.
const WALK_ROOM: usize = 5 * TILE * STRIDE
    + 4 * TILE * (WALK_COLUMNS + 1)
    + 3 * TILE * (STRIDE + 2 * REACH + 2 * TILE + 3)
    + 2 * 4 * TILE * 2 * WALK_COLUMNS
    + 2 * TILE
    + 4;
/// Its threads, and the columns of a block.
const WALK_THREADS: u32 = 512;
const WALK_COLUMNS: usize = 32;
const KEEPERS: usize = 8;
/// From which bucket on prompts have launches of their own.
const WALK_BUCKET: usize = 128;
/// Buckets that are worth two blocks a head. All kernels give the same bits. With 2, 4 and 8 rows two blocks take 6.9, 7.1 and 9.5 us a layer of the demo
/// model where one takes 8.4, 8.7 and 14.4; 8 layers of a 27B 919, 934 and 941 us for 942, 965 and 988.
const PAIR_BUCKETS: std::ops::RangeInclusive<usize> = 2..=64;
/// Below this only for a sequence by itself: of several each may have a single row, for which there is a kernel.
const PAIRS_OF_SEVERAL: usize = 16;
/// Those whose rows may be one tile of 32.
const PAIR_32_BUCKETS: std::ops::RangeInclusive<usize> = 17..=32;

/// Which kernels take written rows: two blocks a head for all of them; or one block a head, beside one for sequences of a single row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    in_pairs: bool,
    lone_apart: bool,
}

impl Written {
    /// Of whole heads of [`DIM`] channels: a step of up to `bucket` rows and `n_seqs` sequences, each of which has at least one row.
    fn of(bucket: usize, n_seqs: usize, value_heads: usize, card: Card) -> Self {
        // Clusters came with sm_90; later devices without room for its arrays have sm_120's shared memory.
        let in_pairs = card.sm >= 90
            && PAIR_BUCKETS.contains(&bucket)
            && (n_seqs == 1 || bucket >= PAIRS_OF_SEVERAL)
            && PAIR_BYTES <= card.shared_bytes
            && n_seqs * value_heads <= card.multiprocessors;
        // The only sequence of a bucket for more than one row nearly always has more than one; where it has not, the general kernel takes its row.
        let lone_apart = !in_pairs && (bucket == 1 || n_seqs > 1) && 4 * LONE_ROOM <= card.shared_bytes;
        Self { in_pairs, lone_apart }
    }
}

/// What of a device decides that.
#[derive(Clone, Copy, Debug)]
struct Card {
    sm: u32,
    shared_bytes: usize,
    multiprocessors: usize,
}

/// Which rows have launches for prompts' rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Walks {
    None,
    /// Those of sequences with enough sure ones.
    Long,
    /// All: the plan has rows of prompts only, and those are sure. Launches that found nothing to do took 3 us each, 16 of them in
    /// an attention layer of 512 rows.
    All,
}

impl Walks {
    pub(super) fn of(plan: &Plan) -> Self {
        if plan.written_before_prompts == Some(0) { Self::All } else { Self::Long }
    }

    /// Sequences of a step whose rows they can be.
    pub(super) fn most_seqs(self, bucket: usize, n_seqs: usize) -> usize {
        if self == Self::All { bucket.min(n_seqs) } else { bucket / PROMPT_ROWS }
    }
}

fn has_walk(bucket: usize) -> bool {
    bucket >= WALK_BUCKET
}

/// Bytes of what a prompt's rows count for each other.
pub(crate) fn walked_bytes(plan: &Plan, op: &Op) -> usize {
    if has_walk(plan.bucket) { 4 * WALKED_WORDS * plan.bucket * value_heads(plan, op) } else { 0 }
}

/// Of a row and value head.
const WALKED_WORDS: usize = 2 * REACH + 2 * TILE + 1;

/// For so many rows and value heads.
fn walked_at(base: u64, n: usize) -> Walked {
    let at = |words: usize| base + (4 * words * n) as u64;
    Walked {
        before: at(0),
        own_q: at(2 * REACH),
        own_k: at(2 * REACH + TILE),
        whole: at(2 * REACH + 2 * TILE),
    }
}

pub(crate) fn check(shape: &RecurrentState) -> Result<()> {
    for (what, n) in [("key", shape.key_dim), ("value", shape.value_dim)] {
        if n > DIM || !n.is_multiple_of(2) {
            let why = format!("its {what} heads have {n} channels, which must be even and at most {DIM}");
            return Err(CudaError::Unsupported { what: "a recurrent layer".into(), why });
        }
    }
    Ok(())
}

/// Bytes of every value head's copy of the keys. A head's keys are no longer than the kernel has room for.
pub(crate) fn key_bytes(plan: &Plan, op: &Op) -> usize {
    4 * DIM * plan.bucket * value_heads(plan, op)
}

/// Counters: one for each key head of each sequence, and there are no more of those than value heads and rows.
pub(crate) fn n_counters(plan: &Plan, op: &Op) -> usize {
    plan.bucket * value_heads(plan, op)
}

fn value_heads(plan: &Plan, op: &Op) -> usize {
    match op {
        Op::RecurrentPrepare(r) => plan.act(r.gates).width / 2,
        Op::Recurrent(r) => plan.act(r.gates).width / 2,
        _ => 0,
    }
}

/// `Walked` of `recurrent_rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Walked {
    before: u64,
    own_q: u64,
    own_k: u64,
    whole: u64,
}

kernel_params!(RecurrentParams {
    step: StepView,
    qkv: u64,
    b: u64,
    a: u64,
    conv: u64,
    decay: u64,
    dt_bias: u64,
    gate: u64,
    weight: u64,
    prepared: u64,
    gates: u64,
    delta: u64,
    out: u64,
    normed: u64,
    keys: u64,
    state: u64,
    window: u64,
    kept: u64,
    done: u64,
    image: u64,
    eps: f32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    mode: u32,
    shape: ImageShape,
    walks: u32,
    has_lone: u32,
    walked: Walked,
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

struct Norm {
    gate: Act,
    norm: RmsNorm,
    out: Act,
}

/// Ops of one layer that the kernel runs together.
pub(super) struct Fused<'a> {
    prepare: Option<&'a RecurrentPrepare>,
    rule: Option<&'a Recurrent>,
    norm: Option<Norm>,
    pub(super) n_ops: usize,
}

impl<'a> Fused<'a> {
    /// What `ops` begins with, if that is for this kernel.
    pub(super) fn at(cx: &Cx<'_>, ops: &'a [Op]) -> Option<Self> {
        let (prepare, rule) = match (ops.first()?, ops.get(1)) {
            (Op::RecurrentPrepare(p), Some(Op::Recurrent(r)))
                if (p.out, p.gates, p.qkv, p.layer) == (r.prepared, r.gates, r.preconv, r.layer) =>
            {
                (Some(p), Some(r))
            }
            (Op::RecurrentPrepare(p), _) => (Some(p), None),
            (Op::Recurrent(r), _) => (None, Some(r)),
            _ => return None,
        };
        let n_ops = usize::from(prepare.is_some()) + usize::from(rule.is_some());
        let norm = match (rule, ops.get(n_ops)) {
            (Some(r), Some(Op::GatedNorm { x, gate, norm, head_dim, out }))
                if *x == r.out && *head_dim == cx.state.recurrent(r.layer).shape.value_dim =>
            {
                Some(Norm { gate: *gate, norm: *norm, out: *out })
            }
            _ => None,
        };
        let n_ops = n_ops + usize::from(norm.is_some());
        Some(Self { prepare, rule, norm, n_ops })
    }
}

pub(super) fn recurrent(cx: &Cx<'_>, fused: &Fused<'_>) -> Result<()> {
    let Fused { prepare, rule, norm, .. } = fused;
    let (layer, prepared, gates, qkv) = match (prepare, rule) {
        (_, Some(r)) => (r.layer, r.prepared, r.gates, r.preconv),
        (Some(p), None) => (p.layer, p.out, p.gates, p.qkv),
        (None, None) => return Ok(()),
    };
    let layer = cx.state.recurrent(layer);
    let shape = layer.shape;
    // A head is a block of the image, or the image has a kernel of its own.
    let (image, image_shape) = match norm {
        Some(n) if shape.value_dim == 128 => cx.image_to_make(n.out),
        _ => Default::default(),
    };
    let bucket = cx.capacity(prepared) as usize;
    let is_full = (shape.key_dim, shape.value_dim) == (DIM, DIM) && shape.window_row_len().is_multiple_of(4);
    let device = cx.gpu.device;
    let can_walk = is_full
        && has_walk(bucket)
        && prepare.is_some()
        && rule.is_some()
        && 4 * WALK_ROOM <= device.max_shared_bytes;
    let walks = if can_walk { Walks::of(cx.plan()) } else { Walks::None };
    let n_seqs = bucket.min(cx.n_seqs);
    let card = Card {
        sm: device.sm,
        shared_bytes: device.max_shared_bytes,
        multiprocessors: device.n_multiprocessors,
    };
    let written = match rule {
        Some(_) if is_full => Written::of(bucket, n_seqs, shape.value_heads, card),
        _ => Written::default(),
    };
    let has_lone = written.lone_apart && prepare.is_some();
    let params = RecurrentParams {
        step: cx.step,
        qkv: cx.act(qkv),
        b: cx.opt_act(prepare.map(|p| p.b)),
        a: cx.opt_act(prepare.map(|p| p.a)),
        conv: cx.weights.opt_vector(prepare.map(|p| p.conv)),
        decay: cx.weights.opt_vector(prepare.map(|p| p.decay)),
        dt_bias: cx.weights.opt_vector(prepare.map(|p| p.dt_bias)),
        gate: cx.opt_act(norm.as_ref().map(|n| n.gate)),
        weight: cx.weights.opt_vector(norm.as_ref().map(|n| n.norm.weight)),
        prepared: cx.act(prepared),
        gates: cx.act(gates),
        delta: cx.opt_act(rule.map(|r| r.delta)),
        out: cx.opt_act(rule.map(|r| r.out)),
        normed: cx.opt_act(norm.as_ref().map(|n| n.out)),
        keys: cx.base + cx.memory.keys as u64,
        state: layer.s.ptr(),
        window: layer.window.ptr(),
        kept: layer.conv.ptr(),
        done: cx.counters,
        image,
        eps: norm.as_ref().map_or(0.0, |n| n.norm.eps),
        key_heads: shape.key_heads as u32,
        value_heads: shape.value_heads as u32,
        key_dim: shape.key_dim as u32,
        value_dim: shape.value_dim as u32,
        tiled: u32::from(rule.is_some_and(|r| r.rule == KeyHeadRule::Tiled)),
        mode: if prepare.is_some() { PREPARES } else { 0 }
            | if rule.is_some() { RULES } else { 0 }
            | if norm.is_some() { NORMS } else { 0 },
        shape: image_shape,
        walks: walks as u32,
        has_lone: u32::from(has_lone),
        walked: walked_at(cx.base + cx.memory.walked as u64, bucket * shape.value_heads),
    };
    if walks != Walks::None {
        let launch = |entry, grid| cx.launch(("recurrent_walk", entry), grid, THREADS, 0, &params);
        let n_parts = 2 * shape.key_heads + shape.value_heads;
        // Of a prompt at most the first and the last block are short of rows.
        let n_blocks = bucket / TILE + 2 * walks.most_seqs(bucket, cx.n_seqs);
        launch("walk_prepare", [n_parts + 1, bucket.div_ceil(64), 1])?;
        launch("walk_weigh", [shape.key_heads, n_blocks, 1])?;
        let grid = [DIM / WALK_COLUMNS * shape.value_heads, n_seqs, 1];
        cx.launch(("recurrent_rule", "walk_rule"), grid, WALK_THREADS, 4 * WALK_ROOM, &params)?;
        launch("walk_finish", [shape.value_heads.div_ceil(8) + KEEPERS, bucket, 1])?;
    }
    if walks == Walks::All {
        return Ok(());
    }
    if written.in_pairs {
        let grid = [2 * shape.value_heads, n_seqs, 1];
        let entry = if PAIR_32_BUCKETS.contains(&bucket) { "recurrent_pair_32" } else { "recurrent_pair" };
        return cx.launch(("recurrent_pair", entry), grid, PAIR_THREADS, PAIR_BYTES, &params);
    }
    // First of the two the one that often has nothing to do: its blocks have gone when the kernel before this one ends.
    if bucket > 1 || !has_lone {
        let entry = if is_full { "recurrent_full" } else { "recurrent_small" };
        let n_others = if has_lone { n_seqs.min(bucket / 2) } else { n_seqs };
        cx.launch(("recurrent", entry), [shape.value_heads, n_others, 1], THREADS, 4 * ROOM, &params)?;
    }
    if has_lone {
        let n_blocks = (shape.value_heads * n_seqs).min(2 * device.n_multiprocessors);
        cx.launch(("recurrent_lone", "lone_full"), [n_blocks, 1, 1], THREADS, 4 * LONE_ROOM, &params)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Card = Card { sm: 90, shared_bytes: 227 << 10, multiprocessors: 132 };
    const PAIRS: Written = Written { in_pairs: true, lone_apart: false };
    const LONE: Written = Written { in_pairs: false, lone_apart: true };
    const GENERAL: Written = Written { in_pairs: false, lone_apart: false };

    #[test]
    fn who_writes_alone_has_two_blocks_a_head_and_many_single_rows_have_a_kernel() {
        //  rows, sequences; of a 27B's 48 heads, of the demo target's 4
        let cases = [
            ((1, 1), LONE, LONE),
            ((2, 1), PAIRS, PAIRS),
            ((8, 1), PAIRS, PAIRS),
            ((64, 1), PAIRS, PAIRS),
            ((128, 1), GENERAL, GENERAL),
            // Each may have a single row.
            ((8, 2), LONE, LONE),
            ((16, 2), PAIRS, PAIRS),
            ((16, 3), LONE, PAIRS),
            ((16, 16), LONE, PAIRS),
            ((64, 40), LONE, LONE),
        ];
        for ((bucket, n_seqs), large, small) in cases {
            let of = |value_heads| Written::of(bucket, n_seqs, value_heads, H200);
            assert_eq!([of(48), of(4)], [large, small], "{bucket} rows of {n_seqs}");
        }
    }

    #[test]
    fn cards_without_clusters_or_room_do_without_pairs() {
        let older = Card { sm: 80, shared_bytes: 163 << 10, multiprocessors: 108 };
        let newer = Card { sm: 120, shared_bytes: 99 << 10, multiprocessors: 170 };
        //  16 rows of one sequence, and of as many
        for (card, of_many) in [(older, LONE), (newer, GENERAL)] {
            assert_eq!([1, 16].map(|n| Written::of(16, n, 48, card)), [GENERAL, of_many], "{card:?}");
        }
    }
}
