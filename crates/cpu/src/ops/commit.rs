//! Accepted rows become permanent: compacted to the places of their positions, in attention layers as in recurrent
//! ones. Nothing is computed again.

use std::ops::Range;

use overdraft_plan::{Plan, SeqView, Step, TAP_ROWS};

use super::recurrent::keep_row;
use crate::memory::{Acts, AttentionMemory, KvMemory, LayerMemory, StateMemory};

/// `paths[i]`: the accepted rows of sequence `i` after its sure ones, in position order.
pub(crate) fn commit(plan: &Plan, acts: &Acts<'_>, step: &Step, paths: &[Vec<u32>], state: &mut StateMemory) {
    for (i, path) in paths.iter().enumerate() {
        let seq = step.seq(i);
        for layer in &plan.kv_layers {
            if let LayerMemory::Attention(layer) = &mut state.layers[*layer] {
                compact(layer, step, seq, path);
            }
        }
        for kept in &plan.kept {
            let LayerMemory::Recurrent(layer) = &mut state.layers[kept.layer] else {
                unreachable!("plan and state were made from one layer list")
            };
            for row in path {
                keep_row(acts, kept, layer, seq.slot, step.rows()[*row as usize].pos as usize, *row as usize);
            }
        }
        keep_taps(plan, acts, step, seq, path, state);
    }
}

/// Taps of the sequence's accepted rows, sure ones included, wait for the draft.
fn keep_taps(
    plan: &Plan,
    acts: &Acts<'_>,
    step: &Step,
    seq: SeqView<'_>,
    path: &[u32],
    state: &mut StateMemory,
) {
    // Without a draft nobody waits for taps, though a plan may have some to be read.
    if plan.taps.is_empty() || state.tap_width == 0 {
        return;
    }
    let sure = &seq.rows[..seq.n_sure as usize];
    for row in sure[sure.len().saturating_sub(TAP_ROWS)..].iter().chain(path) {
        let pos = step.rows()[*row as usize].pos as usize;
        let at = (seq.slot * TAP_ROWS + pos % TAP_ROWS) * state.tap_width;
        let mut rest = &mut state.taps[at..at + state.tap_width];
        for tap in &plan.taps {
            let part;
            (part, rest) = rest.split_at_mut(acts.width(*tap));
            // SAFETY: no op runs during a commit.
            part.copy_from_slice(unsafe { acts.row(*tap, *row as usize) });
        }
    }
}

/// Moves keys and values of the path from their rows' slots to their positions. A row's slot is never before its
/// position, so going forward overwrites nothing that is still to be moved.
fn compact(layer: &mut AttentionMemory, step: &Step, seq: SeqView<'_>, path: &[u32]) {
    let (layout, class) = (layer.layout(), layer.shape.class);
    for row in path {
        let row = step.rows()[*row as usize];
        let (from, to) = (seq.committed + row.local, row.pos);
        if from == to {
            continue;
        }
        let pages = (seq.page(class, from), seq.page(class, to));
        for head in 0..layer.shape.kv_heads {
            let keys = layout.key(pages.0, head, from).zip(layout.key(pages.1, head, to));
            let values = (layout.value(pages.0, head, from), layout.value(pages.1, head, to).start);
            match &mut layer.kv {
                KvMemory::F32(kv) => move_row(kv, keys, values),
                KvMemory::F16(kv) => move_row(kv, keys, values),
                KvMemory::Bf16(kv) => move_row(kv, keys, values),
            }
        }
    }
}

fn move_row<T: Copy>(
    kv: &mut [T],
    keys: impl Iterator<Item = (usize, usize)>,
    (value, to): (Range<usize>, usize),
) {
    for (from, to) in keys {
        kv[to] = kv[from];
    }
    kv.copy_within(value, to);
}
