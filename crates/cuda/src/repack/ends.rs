//! Who ends which of a launch's units, where there are as many as blocks or more.

use std::ops::Range;

use super::deal::LEAST_STAGE_BYTES;
use super::layout::Work;

/// What the end of a unit costs, as bytes of weights: 2 us with one row, a little more with more.
const END_BYTES: usize = 2 * LEAST_STAGE_BYTES;

/// 136 units on 132 blocks are two ends for four of those, which get two stages less. Blocks before such a one end units of whose stages they have
/// the last, those behind it units that they begin. (Dealt in order, the four had a whole unit and a stage more: all others waited
/// 1.5 us for them with one row, 2.9 with 16, 4.9 with 32.)
pub(super) struct Ends {
    pub units: usize,
    pub blocks: usize,
}

impl Ends {
    /// The first unit of a block.
    fn first(&self, block: usize) -> usize {
        (2 * block * self.units + self.blocks) / (2 * self.blocks)
    }

    pub(super) fn of_block(&self, block: usize) -> Range<usize> {
        self.first(block)..if block + 1 == self.blocks { self.units } else { self.first(block + 1) }
    }

    /// As [`super::layout::shares`]: stages and ends together cost all blocks the same, and each has some of every unit that it ends.
    pub(super) fn shares(&self, work: Work) -> Vec<u32> {
        let total = (self.units * (work.stages * work.stage_bytes + END_BYTES)) as u128;
        let start = |block: usize| {
            let bytes = total * block as u128 / self.blocks as u128;
            let ends = (self.first(block) * END_BYTES) as u128;
            let half_a_stage = work.stage_bytes as u128 / 2;
            let stage = (bytes + half_a_stage).saturating_sub(ends) / work.stage_bytes as u128;
            // Before it ends the unit before its first: that has a stage at least, and so has its first.
            let first = self.first(block) * work.stages;
            (stage as usize).clamp((first + 1).saturating_sub(work.stages), first + work.stages - 1) as u32
        };
        [0].into_iter().chain((1..self.blocks).map(start)).chain([work.items() as u32]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_some_of_each_unit_that_it_ends() {
        for (units, stages, blocks) in [
            (136, 20, 132),
            (970, 20, 132),
            (132, 1, 132),
            (200, 1, 132),
            (300, 2, 132),
            (970, 3, 20),
            (7, 5, 1),
        ] {
            let ends = Ends { units, blocks };
            let starts = ends.shares(Work { units, stages, stage_bytes: LEAST_STAGE_BYTES });
            assert_eq!((starts[0], starts[blocks] as usize), (0, units * stages));
            let mut next = 0;
            for (block, share) in starts.windows(2).enumerate() {
                let (first, end) = (share[0] as usize, share[1] as usize);
                assert_eq!(ends.of_block(block).start, next, "each unit has one block");
                for unit in ends.of_block(block) {
                    let has_some = first < (unit + 1) * stages && end > unit * stages;
                    assert!(has_some, "block {block} of {units} units of {stages}: {share:?}, unit {unit}");
                }
                next = ends.of_block(block).end;
            }
            assert_eq!(next, units);
        }
    }
}
