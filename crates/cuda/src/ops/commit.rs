//! What a step leaves behind: accepted rows become permanent, in attention layers as in recurrent ones, their taps wait for
//! the draft, and what was chosen comes to the host.

use overdraft_plan::{Choice, MAX_DRAFT_DEPTH, TAP_ROWS};

use super::recurrent::KeptLayer;
use super::{Cx, kernel_params};
use crate::driver::{DeviceBuffer, Result};
use crate::plan_memory::CHOICE_BYTES;
use crate::step_data::StepView;

/// `MAX_TAPS` and `MAX_SEQS` of `commit.cu`.
pub(crate) const MAX_TAPS: usize = 16;
const MAX_SEQS: usize = 64;
/// How many rows of a sequence were accepted, and which.
pub(crate) type Accepted = [u16; 1 + MAX_DRAFT_DEPTH];

kernel_params!(Taps { kept: u64, width: u32, n: u32, acts: [u64; MAX_TAPS], widths: [u32; MAX_TAPS] });
kernel_params!(ToHostParams { counts: u64, from: u64, to: u64, words: u32, pad: u32 });
kernel_params!(SureTapParams { step: StepView, taps: Taps });
kernel_params!(CommitParams {
    step: StepView,
    taps: Taps,
    kv: u64,
    kept: u64,
    kv_blocks: u32,
    planes: u32,
    kept_blocks: u32,
    longest: u32,
    first: u32,
    pad: u32,
    found: u64,
    accepted: [Accepted; MAX_SEQS],
});

/// What a plan's commit touches, as tables on the device: made once for a plan, a state and a place of the arena.
pub(crate) struct CommitTables {
    kv: DeviceBuffer,
    n_kv: usize,
    max_kv_heads: usize,
    kept: DeviceBuffer,
    n_kept: usize,
}

impl CommitTables {
    pub(crate) fn new(cx: &Cx<'_>) -> Result<Self> {
        let table = |words: Vec<u32>| -> Result<DeviceBuffer> {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let buffer = DeviceBuffer::new(cx.gpu.device, "commit tables", bytes.len())?;
            cx.gpu.queue.send_bytes(&bytes, &buffer, 0)?;
            Ok(buffer)
        };
        let plan = cx.plan();
        let mut kv = Vec::new();
        let mut max_kv_heads = 0;
        for layer in &plan.kv_layers {
            let memory = cx.state.attention(*layer);
            let (shape, ptr) = (memory.shape, memory.kv.ptr());
            max_kv_heads = max_kv_heads.max(shape.kv_heads);
            // `KvLayer` of `commit.cu`.
            let sizes = [shape.kv_heads, shape.head_dim, shape.class].map(|n| n as u32);
            kv.extend([ptr as u32, (ptr >> 32) as u32].into_iter().chain(sizes).chain([cx.state.kv_type()]));
        }
        let kept = plan.kept.iter().flat_map(|rows| KeptLayer::new(cx, rows).words()).collect();
        Ok(Self {
            kv: table(kv)?,
            n_kv: plan.kv_layers.len(),
            max_kv_heads,
            kept: table(kept)?,
            n_kept: plan.kept.len(),
        })
    }
}

/// `paths`: the accepted rows of each of the step's sequences; `longest`: the most that any has.
pub(crate) fn commit(cx: &Cx<'_>, tables: &CommitTables, paths: &[Vec<u32>], longest: usize) -> Result<()> {
    for (chunk, paths) in paths.chunks(MAX_SEQS).enumerate() {
        let mut params = params(cx, tables, longest);
        params.first = (chunk * MAX_SEQS) as u32;
        for (path, accepted) in paths.iter().zip(&mut params.accepted) {
            // Both below the largest bucket, which half a word holds.
            accepted[0] = path.len() as u16;
            accepted[1..].iter_mut().zip(path).for_each(|(to, row)| *to = *row as u16);
        }
        launch(cx, &params, paths.len())?;
    }
    Ok(())
}

/// The same of a step whose accepted rows the device has found, as [`Accepted`] of each sequence.
pub(crate) fn commit_found(cx: &Cx<'_>, tables: &CommitTables, found: u64) -> Result<()> {
    launch(cx, &CommitParams { found, ..params(cx, tables, MAX_DRAFT_DEPTH) }, cx.n_seqs)
}

fn params(cx: &Cx<'_>, tables: &CommitTables, longest: usize) -> CommitParams {
    let planes = 2 * tables.max_kv_heads;
    CommitParams {
        step: cx.step,
        taps: taps(cx),
        kv: tables.kv.ptr(),
        kept: tables.kept.ptr(),
        kv_blocks: (tables.n_kv * planes) as u32,
        planes: planes as u32,
        kept_blocks: (tables.n_kept * longest) as u32,
        longest: longest as u32,
        first: 0,
        pad: 0,
        found: 0,
        accepted: [[0; 1 + MAX_DRAFT_DEPTH]; MAX_SEQS],
    }
}

fn launch(cx: &Cx<'_>, params: &CommitParams, n_seqs: usize) -> Result<()> {
    let blocks = (params.kv_blocks + params.kept_blocks) as usize + TAP_ROWS * params.taps.n as usize;
    cx.launch(("commit", "commit"), [blocks, n_seqs, 1], 256, 0, params)
}

/// Taps of sure rows wait for the draft from the end of the step on, so that a round that accepts nothing has nothing to
/// commit. Part of the step's graph: for as many sequences as there can be.
pub(crate) fn keep_sure_taps(cx: &Cx<'_>) -> Result<()> {
    let taps = taps(cx);
    if taps.n == 0 {
        return Ok(());
    }
    let n_seqs = cx.n_seqs.min(cx.plan().bucket);
    let grid = [TAP_ROWS * taps.n as usize, n_seqs, 1];
    cx.launch(("commit", "sure_taps"), grid, 256, 0, &SureTapParams { step: cx.step, taps })
}

/// A choice by rows of logits, to memory of the host that the device can write.
pub(crate) fn to_host(cx: &Cx<'_>, choice: Choice, to: u64) -> Result<()> {
    let words = (CHOICE_BYTES / 4 * cx.k(choice)) as u32;
    let most = words as usize * cx.plan().logit_rows;
    let params = ToHostParams { counts: cx.step.counts, from: cx.choice(choice), to, words, pad: 0 };
    cx.launch(("commit", "to_host"), [most.div_ceil(256).min(16), 1, 1], 256, 0, &params)
}

/// What a plan taps. Without a draft nobody waits for it, though a plan may have some to be read.
fn taps(cx: &Cx<'_>) -> Taps {
    let (kept, width) = (cx.state.taps.ptr(), cx.state.tap_width as u32);
    let mut taps = Taps { kept, width, n: 0, acts: [0; MAX_TAPS], widths: [0; MAX_TAPS] };
    if width > 0 {
        let tapped = &cx.plan().taps;
        taps.n = tapped.len() as u32;
        for ((act, width), tap) in taps.acts.iter_mut().zip(&mut taps.widths).zip(tapped) {
            (*act, *width) = (cx.act(*tap), cx.width(*tap) as u32);
        }
    }
    taps
}
