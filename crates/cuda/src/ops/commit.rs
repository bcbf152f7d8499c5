//! Accepted rows become permanent, in attention layers as in recurrent ones, and their taps wait for the draft.

use overdraft_plan::{MAX_DRAFT_DEPTH, TAP_ROWS};

use super::recurrent::KeptLayer;
use super::{Cx, kernel_params};
use crate::driver::{DeviceBuffer, Result};
use crate::step_data::StepView;

/// `MAX_TAPS` of `commit.cu`.
pub(crate) const MAX_TAPS: usize = 16;
/// Words a sequence's accepted rows take: how many, and which.
pub(crate) const ACCEPTED: usize = 1 + MAX_DRAFT_DEPTH;

kernel_params!(TableParams { step: StepView, accepted: u64, layers: u64 });
kernel_params!(TapParams {
    step: StepView,
    accepted: u64,
    taps: u64,
    width: u32,
    n: u32,
    acts: [u64; MAX_TAPS],
    widths: [u32; MAX_TAPS],
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

/// `accepted`: address of [`ACCEPTED`] words for each of the step's `n_seqs` sequences; `longest`: the most rows any has.
pub(crate) fn commit(
    cx: &Cx<'_>,
    tables: &CommitTables,
    accepted: u64,
    n_seqs: usize,
    longest: usize,
) -> Result<()> {
    let plan = cx.plan();
    if longest > 0 {
        let params = TableParams { step: cx.step, accepted, layers: tables.kv.ptr() };
        let grid = [tables.n_kv, 2 * tables.max_kv_heads, n_seqs];
        cx.launch(("commit", "commit_kv"), grid, 256, 0, &params)?;
        let params = TableParams { layers: tables.kept.ptr(), ..params };
        cx.launch(("commit", "commit_recurrent"), [tables.n_kept, longest, n_seqs], 256, 0, &params)?;
    }
    // Without a draft nobody waits for taps, though a plan may have some to be read.
    if plan.taps.is_empty() || cx.state.tap_width == 0 {
        return Ok(());
    }
    let mut params = TapParams {
        step: cx.step,
        accepted,
        taps: cx.state.taps.ptr(),
        width: cx.state.tap_width as u32,
        n: plan.taps.len() as u32,
        acts: [0; MAX_TAPS],
        widths: [0; MAX_TAPS],
    };
    for ((act, width), tap) in params.acts.iter_mut().zip(&mut params.widths).zip(&plan.taps) {
        (*act, *width) = (cx.act(*tap), cx.width(*tap) as u32);
    }
    cx.launch(("commit", "commit_taps"), [TAP_ROWS, n_seqs, 1], 256, 0, &params)
}
