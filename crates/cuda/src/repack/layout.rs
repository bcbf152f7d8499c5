//! How a matrix lies on the device, and how a launch deals its work to the blocks. `kernels/linear.cuh` reads both.
//!
//! Outputs go in tiles of 16, columns in records of [`Format::record_cols`]: `[half][stage][tile][record][tile_bytes]`, where a half is
//! 128 outputs and a stage some records, filled up with zeros in the last. So what the warps of a block read of a stage is one piece.

use overdraft_formats::DType;

pub(crate) const TILE_OUTPUTS: usize = 16;
pub(super) const HALF_OUTPUTS: usize = 128;
/// Columns of a cell of an input's image.
pub(crate) const CELL_COLS: usize = 128;
/// The [`Format::id`] of weights that are floats.
pub(super) const FLOAT: u32 = 0;
/// A [`Format::id`] that only experts have: gpt-oss.
pub(crate) const MXFP4: u32 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// `Format` in `kernels/linear.cuh`.
    pub id: u32,
    pub tile_bytes: usize,
    pub record_cols: usize,
    /// Records that pass through a warp's ring together.
    pub stage_records: usize,
    /// Matrices of all columns that add up to the weights, one after the other.
    pub planes: usize,
}

impl Format {
    pub(super) fn of(dtype: DType) -> Option<Self> {
        use DType::*;
        let of = |id, tile_bytes, record_cols, stage_records| {
            Some(Self { id, tile_bytes, record_cols, stage_records, planes: 1 })
        };
        match dtype {
            F16 | BF16 => of(FLOAT, 2048, 64, 2),
            // Two f16 hold 22 bits of a weight.
            F32 => of(FLOAT, 2048, 64, 2).map(|f| Self { planes: 2, ..f }),
            Q4_0 => of(1, 576, 64, 4),
            Q4_1 => of(2, 640, 64, 4),
            Q5_0 => of(3, 704, 64, 4),
            Q5_1 => of(4, 768, 64, 4),
            Q8_0 => of(5, 1088, 64, 4),
            IQ4_NL => of(6, 576, 64, 4),
            DType::MXFP4 => of(self::MXFP4, 544, 64, 4),
            Q2_K => of(8, 1344, 256, 1),
            Q3_K => of(9, 1760, 256, 1),
            Q4_K => of(10, 2304, 256, 1),
            Q5_K => of(11, 2816, 256, 1),
            Q6_K => of(12, 3360, 256, 1),
            IQ4_XS => of(13, 2176, 256, 1),
            F64 | I8 | I16 | I32 | I64 | U8 => None,
        }
    }

    /// Whether the smaller kernels know it: `COMMON` in `kernels/linear.cuh`, and `sum_segment` of `linear_chain.cuh`.
    pub(super) fn is_common(id: u32) -> bool {
        use DType::*;
        [F16, Q8_0, Q4_K, Q5_K, Q6_K].into_iter().filter_map(Self::of).any(|f| f.id == id)
    }

    /// Records along the columns, over all planes: whole stages, and a plane is whole cells.
    pub(super) fn n_records(&self, cols: usize) -> usize {
        self.planes * cols.div_ceil(self.record_cols).next_multiple_of(self.stage_records)
    }

    pub(super) fn n_stages(&self, cols: usize) -> usize {
        self.n_records(cols) / self.stage_records
    }

    /// Bytes of a tile's stage.
    pub(super) fn stage_bytes(&self) -> usize {
        self.stage_records * self.tile_bytes
    }

    /// Where in its half of `tiles` tiles a tile's record begins.
    pub(super) fn record_at(&self, tiles: usize, tile: usize, record: usize) -> usize {
        let (stage, of_stage) = (record / self.stage_records, record % self.stage_records);
        ((stage * tiles + tile) * self.stage_records + of_stage) * self.tile_bytes
    }

    pub(super) fn matrix_bytes(&self, outputs: usize, cols: usize) -> usize {
        outputs.div_ceil(TILE_OUTPUTS) * self.n_records(cols) * self.tile_bytes
    }
}

/// A launch's work on one matrix or pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub units: usize,
    pub stages: usize,
    pub stage_bytes: usize,
}

impl Work {
    pub(super) fn items(&self) -> usize {
        self.units * self.stages
    }
}

/// First stage of each of `blocks` blocks and the end: stages of all work in order, in equal shares of bytes.
pub(super) fn shares(work: &[Work], blocks: usize) -> Vec<u32> {
    let total: u64 = work.iter().map(|w| (w.units * w.stages * w.stage_bytes) as u64).sum();
    let mut starts = Vec::with_capacity(blocks + 1);
    for block in 0..=blocks as u64 {
        let mut bytes = (total as u128 * u128::from(block) / blocks as u128) as u64;
        let mut stage = 0;
        for w in work {
            let all = (w.units * w.stages * w.stage_bytes) as u64;
            if bytes < all {
                // To the nearest: shares of a few stages would otherwise all be short but for the last.
                let (whole, part) = (bytes / w.stage_bytes as u64, bytes % w.stage_bytes as u64);
                stage += whole + u64::from(part * 2 >= w.stage_bytes as u64);
                break;
            }
            bytes -= all;
            stage += (w.units * w.stages) as u64;
        }
        starts.push(stage as u32);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_take_no_more_bytes_than_the_file() {
        for dtype in DType::all() {
            let Some(format) = Format::of(dtype) else { continue };
            let cols = 2560;
            let file = TILE_OUTPUTS * dtype.row_bytes(cols).unwrap();
            assert_eq!(format.matrix_bytes(TILE_OUTPUTS, cols), file, "{dtype}");
        }
    }

    #[test]
    fn shares_are_all_stages_in_order_and_differ_by_one() {
        for (units, stages, blocks) in
            [(20, 68, 132), (68, 20, 132), (10, 16, 132), (1, 1, 132), (970, 20, 108), (9700, 32, 256)]
        {
            let starts = shares(&[Work { units, stages, stage_bytes: 36864 }], blocks);
            assert_eq!((starts[0], starts[blocks]), (0, (units * stages) as u32));
            let sizes: Vec<_> = starts.windows(2).map(|w| w[1].checked_sub(w[0]).unwrap()).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{units} x {stages}: {least} to {most}");
        }
    }

    #[test]
    fn shares_of_mixed_work_are_equal_in_bytes() {
        let work = [
            Work { units: 48, stages: 20, stage_bytes: 36864 },
            Work { units: 4, stages: 20, stage_bytes: 53760 },
            Work { units: 1, stages: 80, stage_bytes: 65536 },
        ];
        let starts = shares(&work, 132);
        assert_eq!(*starts.last().unwrap(), 48 * 20 + 4 * 20 + 80);
        let bytes_before = |stage: u32| {
            let (mut left, mut bytes) = (stage as usize, 0);
            for w in &work {
                let n = left.min(w.items());
                (left, bytes) = (left - n, bytes + n * w.stage_bytes);
            }
            bytes
        };
        let mean = bytes_before(*starts.last().unwrap()) / 132;
        for pair in starts.windows(2) {
            let share = bytes_before(pair[1]) - bytes_before(pair[0]);
            assert!(share.abs_diff(mean) <= 65536, "{share} of mean {mean}");
        }
    }
}
