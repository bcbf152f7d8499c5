//! Linear ops of few rows that follow from one another, in one launch of `kernels/linear_chain.cuh`.

use super::deal::Stages;
use super::launch::{CELL_BYTES, LINE_BYTES, LinearParams, Plan, ROOM_BYTES, Space, WARPS};
use crate::linear::{Input, MAX_CHAIN};
use crate::ops::kernel_params;

/// Sixteen warps that multiply, and three that bring them what they need.
pub(super) const THREADS: u32 = super::launch::THREADS + 96;
pub(super) const ENTRY: (&str, &str) = ("linear_chain", "linear_chain");
/// Tiles of 8 rows that there is a kernel for. With two and four, in five forms of its stages, it took longer than launches one by one: 8 layers with 16 rows
/// 1095 us at best for 1063, with 32 rows 1453 for 1345.
const TILES: usize = 1;
const MAX_READY: usize = 256;
const MAX_RING: usize = 8;
/// Slots without which weights are no earlier than by `linear.cuh`. Formats of a byte and more a weight have two; not measured, but floats lost up to
/// 4 % by an earlier kernel whose weights came by a warp of their own.
const LEAST_SLOTS: usize = 3;
/// Stages of a block from which on a single op gains too: a head of Q6_K 14 of 250 us.
const LONG: usize = 32;
/// Of the kernel: halves of stages that its warp has on their way.
const MOST_ON_WAY: usize = 3;
/// Two rows of a unit's sums, or two parts of one.
const EXCHANGE_BYTES: usize = 2 * 1040;
/// `SCRATCH_BYTES` of all warps.
const SCRATCH_BYTES: usize = WARPS * 512;
/// What is read in place of rows that there are not: four squares of each of two cells.
const ZEROS_BYTES: usize = CELL_BYTES + 3 * 512 + 96;

/// What blocks tell each other: who no longer looks at it, and of every phase but the last and each 128 columns, how many rows are made.
pub(super) const READY_BYTES: usize = 4 * (2 + (MAX_CHAIN - 1) * MAX_READY);

/// Of a phase, behind the start of what [`READY_BYTES`] are of.
fn ready_at(phase: usize) -> u64 {
    4 * (2 + phase * MAX_READY) as u64
}

kernel_params!(ChainParams {
    phases: [LinearParams; MAX_CHAIN],
    left: u64,
    n_phases: u32,
    n_slots: u32,
    slot_bytes: u32,
    input_at: u32,
    exchange_at: u32,
    lists_at: u32,
    scratch_at: u32,
    zeros_at: u32,
    leavers: u32,
    pad: u32,
});

/// The launch and the shared memory it takes. All phases but the last make the next one's input. `None`: they go one by one, as there is
/// no kernel for so many rows or such a device, no room, or nothing to gain.
pub(super) fn params(
    phases: &[(&Input, &Plan)],
    tiles: usize,
    n_blocks: usize,
    space: Space,
    ready: u64,
) -> Option<(ChainParams, usize)> {
    let (last, before) = phases.split_last()?;
    let stages: Vec<Stages> = phases.iter().map(|(_, plan)| plan.stages).collect();
    let are_alike = |a: &Input, b: &Input| a.rows.bucket == b.rows.bucket && a.rows.count == b.rows.count;
    let is_held =
        space.has_wgmma && phases.iter().all(|(input, plan)| plan.is_common && are_alike(input, last.0));
    if tiles != TILES || phases.len() > MAX_CHAIN || !is_worth_it(&stages, n_blocks) || !is_held {
        return None;
    }
    // What is not there is never read.
    let mut of_phases = [last.1.of_phase(before.len(), last.0, tiles, None)?; MAX_CHAIN];
    for (i, (input, plan)) in before.iter().enumerate() {
        of_phases[i] = plan.of_phase(i, input, tiles, Some((ready + ready_at(i), MAX_READY)))?;
    }
    let stage_bytes = phases.iter().map(|(_, plan)| plan.block_stage_bytes).max()?;
    let lists_bytes = phases.iter().map(|(_, plan)| plan.list_bytes()).sum();
    let rings = Rings::new(stage_bytes, lists_bytes, space.shared_bytes)?;
    let params = ChainParams {
        phases: of_phases,
        left: ready,
        n_phases: phases.len() as u32,
        n_slots: rings.n_slots as u32,
        slot_bytes: rings.slot_bytes as u32,
        input_at: rings.input_at as u32,
        exchange_at: rings.exchange_at as u32,
        lists_at: rings.lists_at as u32,
        scratch_at: rings.scratch_at as u32,
        zeros_at: rings.zeros_at as u32,
        leavers: space.leavers,
        pad: 0,
    };
    Some((params, rings.shared_bytes))
}

/// With fewer stages than blocks, as the demo pair's layers have, most of a chain is waiting for each other: 8 rows of it take 392 us, launches one by one
/// 346, a row 294 and 287. Layers of 1024 columns (0.8B), 2.5 stages a block, take 20 of 310 us less as chains.
fn is_worth_it(phases: &[Stages], n_blocks: usize) -> bool {
    match phases {
        [only] => only.most >= LONG,
        _ => phases.iter().map(|stages| stages.of_all).sum::<usize>() >= n_blocks,
    }
}

/// How a block's shared memory is parted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rings {
    n_slots: usize,
    slot_bytes: usize,
    /// In a slot.
    input_at: usize,
    exchange_at: usize,
    lists_at: usize,
    scratch_at: usize,
    zeros_at: usize,
    shared_bytes: usize,
}

impl Rings {
    /// For stages of `stage_bytes` a block, where lists take `lists_bytes`.
    fn new(stage_bytes: usize, lists_bytes: usize, shared_bytes: usize) -> Option<Self> {
        // `ChainRoom`: of every slot two barriers more, and one of each phase.
        let room = (ROOM_BYTES + 2 * 8 * MAX_RING + 8 * MAX_CHAIN).next_multiple_of(LINE_BYTES);
        let input_at = stage_bytes.next_multiple_of(LINE_BYTES);
        let slot_bytes = (input_at + TILES * 2 * CELL_BYTES).next_multiple_of(LINE_BYTES);
        // Rows, and parts of one that other blocks summed, as many as warps.
        let exchange_bytes = (8 * TILES + WARPS) / 2 * EXCHANGE_BYTES;
        let fixed = room + exchange_bytes + lists_bytes + SCRATCH_BYTES + ZEROS_BYTES;
        let n_slots = (shared_bytes.checked_sub(fixed)? / slot_bytes).min(MAX_RING);
        let exchange_at = room + n_slots * slot_bytes;
        let lists_at = exchange_at + exchange_bytes;
        let scratch_at = lists_at + lists_bytes;
        let zeros_at = scratch_at + SCRATCH_BYTES;
        let shared_bytes = zeros_at + ZEROS_BYTES;
        let rings =
            Self { n_slots, slot_bytes, input_at, exchange_at, lists_at, scratch_at, zeros_at, shared_bytes };
        (n_slots >= LEAST_SLOTS).then_some(rings)
    }
}

const _: () = assert!(CELL_BYTES.is_multiple_of(16) && EXCHANGE_BYTES.is_multiple_of(16));
// The warp that brings weights waits for what came so many halves before.
const _: () = assert!(MOST_ON_WAY <= 2 * LEAST_SLOTS);

#[cfg(test)]
mod tests {
    use super::super::layout::Format;
    use super::*;
    use overdraft_formats::DType;

    /// Of an H200: what two kilobytes of lists leave.
    fn slots(dtype: DType) -> usize {
        let stage_bytes = WARPS * Format::of(dtype).unwrap().stage_bytes();
        let Some(rings) = Rings::new(stage_bytes, 2048, 227 * 1024) else { return 0 };
        assert!(rings.shared_bytes <= 227 * 1024, "{rings:?}");
        let parts =
            [0, rings.exchange_at, rings.lists_at, rings.scratch_at, rings.zeros_at, rings.shared_bytes];
        assert!(parts.is_sorted() && parts.iter().all(|at| at.is_multiple_of(16)), "{rings:?}");
        assert!(rings.input_at >= stage_bytes && rings.slot_bytes.is_multiple_of(LINE_BYTES), "{rings:?}");
        rings.n_slots
    }

    #[test]
    fn formats_of_few_bits_have_slots_to_be_ahead() {
        assert_eq!([DType::Q4_K, DType::Q5_K, DType::Q6_K].map(slots), [4, 3, 3]);
        assert_eq!([DType::Q8_0, DType::F16, DType::BF16].map(slots), [0, 0, 0]);
    }

    #[test]
    fn chains_have_a_stage_for_every_block_and_single_ops_many() {
        let stages = |of_all: usize| Stages { of_all, most: of_all.div_ceil(132).next_multiple_of(4) };
        let is_worth_it =
            |phases: &[usize]| is_worth_it(&phases.iter().copied().map(stages).collect::<Vec<_>>(), 132);
        //  output, gate and up, down, next inputs: of the demo target, and of 0.8B, 4B and 27B
        assert!(!is_worth_it(&[8, 24, 12, 40]));
        assert!(is_worth_it(&[32, 112, 56, 140]) && is_worth_it(&[160, 720, 360, 500]));
        assert!(is_worth_it(&[480, 2720, 1360, 1440]));
        //  a head of 248 320 outputs, and the inputs of a layer by themselves
        assert!(is_worth_it(&[970 * 20]) && !is_worth_it(&[1440]));
    }

    #[test]
    fn counts_lie_in_pairs_and_within_their_room() {
        for phase in 0..MAX_CHAIN - 1 {
            assert_eq!(ready_at(phase) % 8, 0);
            assert!(ready_at(phase) as usize + 4 * MAX_READY <= READY_BYTES);
        }
    }
}
