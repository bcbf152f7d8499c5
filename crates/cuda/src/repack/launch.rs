//! The parameters of a launch, as `kernels/linear.cuh` and `image.cu` read them.

use super::deal::{Lists, Product, Stages};
use super::layout::{CELL_COLS, Format};
use crate::driver::Device;
use crate::linear::{ImageShape, Input, NextNorm};
use crate::ops::kernel_params;

pub(super) const MAX_PARTS: usize = 10;
pub(super) const MAX_TILES: usize = 8;
pub(super) const MAX_BLOCKS: usize = 256;
pub(super) const THREADS: u32 = 512;
pub(super) const WARPS: usize = THREADS as usize / 32;
/// What a block leaves for another: 16 warps, a tile of 16 outputs and 64 rows each, f32.
pub(super) const PARTIAL_BYTES: usize = WARPS * 16 * 8 * MAX_TILES * 4;
/// Row tiles of a launch that there are kernels for; for the formats most files are made of, and for all.
const KERNELS: [(usize, &str, &str); 6] = [
    (1, "linear_1", "linear_1_all"),
    (2, "linear_2", "linear_2_all"),
    (3, "linear_3", "linear_3_all"),
    (4, "linear_4", "linear_4_all"),
    (6, "linear_6", "linear_6_all"),
    (MAX_TILES, "linear_8", "linear_8_all"),
];
/// More than this only by `wgmma`.
const MAX_TILES_BY_WARP: usize = 4;

/// Row tiles for a bucket of rows, in groups of `group_tiles`: the last group may be larger than it has to be, as it has a kernel.
pub(super) fn row_tiles(bucket: usize, group_tiles: usize) -> usize {
    let needed = bucket.div_ceil(8);
    let last = needed % group_tiles;
    let of_kernel = KERNELS.iter().find(|(tiles, ..)| *tiles >= last).map_or(last, |(tiles, ..)| *tiles);
    if last == 0 { needed } else { needed - last + of_kernel.min(group_tiles) }
}

pub(super) const CELL_BYTES: usize = 2080;
pub(super) const REST_BYTES: usize = 2048;
/// Barriers of the inputs' ring take a fixed place.
const MAX_INPUTS: usize = 8;
/// `Room` of `linear_finish.cuh`.
pub(super) const ROOM_BYTES: usize =
    (16 * MAX_INPUTS + 3 * 256 * 4 + 8 * MAX_TILES * 4 + 4).next_multiple_of(LINE_BYTES);
/// Of shared memory.
pub(super) const LINE_BYTES: usize = 128;
/// Two rows of a unit's sums change places in a warp's slot.
const LEAST_SLOT_BYTES: usize = 2 * 1040;
/// What of a device a launch's shared memory follows from, and who speaks in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) shared_bytes: usize,
    /// `HAS_WGMMA`: its kernels know two slots only, for which there always is room.
    pub(super) has_wgmma: bool,
    /// Lanes of a warp that say when it has left a slot.
    pub(super) leavers: u32,
}

impl Space {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            shared_bytes: device.max_shared_bytes,
            has_wgmma: device.sm == 90,
            leavers: if device.is_raced { 32 } else { 1 },
        }
    }
}

/// How a block's shared memory is parted: slots of each warp for weights, slots of the block for inputs, its segments, and what
/// each of its stages needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rings {
    n_slots: usize,
    slot_bytes: usize,
    n_inputs: usize,
    input_bytes: usize,
    shared_bytes: usize,
}

impl Rings {
    /// For stages of `stage_bytes` a warp and `tiles` tiles of rows, where lists take `list_bytes`. Two slots a warp where there is
    /// room; the 99 KB of RTX cards hold one of Q6_K, Q8_0 and floats.
    fn new(stage_bytes: usize, tiles: usize, list_bytes: usize, space: Space) -> Option<Self> {
        let with = |n_slots| Self::with_slots(n_slots, stage_bytes, tiles, list_bytes, space.shared_bytes);
        with(2).or_else(|| if space.has_wgmma { None } else { with(1) })
    }

    fn with_slots(
        n_slots: usize,
        stage_bytes: usize,
        tiles: usize,
        list_bytes: usize,
        shared_bytes: usize,
    ) -> Option<Self> {
        // Two cells of 128 columns, or one and what its rounding left out.
        let input_bytes = tiles * 2 * CELL_BYTES;
        let slot_bytes = stage_bytes.next_multiple_of(16).max(LEAST_SLOT_BYTES);
        let fixed = ROOM_BYTES + WARPS * n_slots * slot_bytes + list_bytes;
        let room = (shared_bytes.checked_sub(fixed)? / input_bytes).min(MAX_INPUTS);
        // A power of two: a stage's slot is found by its number.
        let n_inputs = 1 << room.checked_ilog2()?;
        let shared_bytes = fixed + n_inputs * input_bytes;
        (n_inputs >= 2).then_some(Self { n_slots, slot_bytes, n_inputs, input_bytes, shared_bytes })
    }
}

/// Room for lists of any matrix people have: a head of 250 000 outputs on 20 multiprocessors takes 7.0 KB.
const LISTS_BYTES: usize = 7424;

/// Tiles of 8 rows that fit a launch with weights of any format.
pub(super) fn group_tiles(space: Space) -> usize {
    let largest = overdraft_formats::DType::all().filter_map(Format::of).map(|f| f.stage_bytes()).max();
    let fits = |tiles: &usize| Rings::new(largest.unwrap_or(1), *tiles, LISTS_BYTES, space).is_some();
    let most = if space.has_wgmma { MAX_TILES } else { MAX_TILES_BY_WARP };
    KERNELS.map(|(tiles, ..)| tiles).into_iter().rev().filter(|tiles| *tiles <= most).find(fits).unwrap_or(1)
}

/// `Part` of `linear_params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Part {
    scales: [u64; 2],
    bias: [u64; 2],
    out: u64,
    n_out: u32,
    paired: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Epilogue {
    Store,
    Add { gate: u64, norm: Option<NextNorm> },
    Glu { kind: u32, alpha: f32, limit: f32, image: (u64, ImageShape) },
    GluJoin { kind: u32, alpha: f32, limit: f32 },
}

kernel_params!(LinearParams {
    lists: u64,
    image: u64,
    rest: u64,
    count: u64,
    gate: u64,
    partials: u64,
    squares: u64,
    next_image: u64,
    next_weight: u64,
    next_squares: u64,
    next_tap: u64,
    list_segments: u32,
    first_row: u32,
    n_cells: u32,
    slot_bytes: u32,
    n_inputs: u32,
    log_inputs: u32,
    input_bytes: u32,
    epilogue: u32,
    glu_kind: u32,
    glu_alpha: f32,
    glu_limit: f32,
    next_cells: u32,
    parts: [Part; MAX_PARTS],
    n_slots: u32,
    eps: f32,
    per_column: f32,
    list_bytes: u32,
    ready: u64,
    first_factor: u32,
    leavers: u32,
});

/// A launch but for its rows.
pub(super) struct Plan {
    params: LinearParams,
    /// The largest stage of a warp.
    stage_bytes: usize,
    /// And of a block.
    pub(super) block_stage_bytes: usize,
    pub(super) stages: Stages,
    pub(super) is_common: bool,
}

impl Plan {
    /// At most [`MAX_PARTS`] products; `at` is where their `lists` are.
    pub(super) fn new(
        products: &[Product],
        epilogue: Epilogue,
        lists: &Lists,
        at: u64,
        partials: u64,
    ) -> Self {
        let no_image = (0, ImageShape::default());
        let no_norm = NextNorm { weight: 0, squares: 0, tap: 0, image: no_image };
        let (epilogue, gate, (glu_kind, glu_alpha, glu_limit), next) = match epilogue {
            Epilogue::Store => (0, 0, (0, 0.0, 0.0), no_norm),
            Epilogue::Add { gate, norm } => (1, gate, (0, 0.0, 0.0), norm.unwrap_or(no_norm)),
            Epilogue::Glu { kind, alpha, limit, image } => {
                (2, 0, (kind, alpha, limit), NextNorm { image, ..no_norm })
            }
            Epilogue::GluJoin { kind, alpha, limit } => (3, 0, (kind, alpha, limit), no_norm),
        };
        let mut parts = [Part::default(); MAX_PARTS];
        for (part, product) in parts.iter_mut().zip(products) {
            *part = Part {
                scales: product.weights.map(|w| w.scales),
                bias: product.weights.map(|w| w.bias),
                out: product.out,
                n_out: product.weights[0].rows as u32,
                paired: u32::from(product.is_pair),
            };
        }
        let params = LinearParams {
            lists: at,
            image: 0,
            rest: 0,
            count: 0,
            gate,
            partials,
            squares: 0,
            next_image: next.image.0,
            next_weight: next.weight,
            next_squares: next.squares,
            next_tap: next.tap,
            list_segments: lists.of_block as u32,
            first_row: 0,
            n_cells: 0,
            slot_bytes: 0,
            n_inputs: 0,
            log_inputs: 0,
            input_bytes: 0,
            epilogue,
            glu_kind,
            glu_alpha,
            glu_limit,
            next_cells: next.image.1.n_blocks,
            parts,
            n_slots: 0,
            eps: 0.0,
            per_column: 0.0,
            list_bytes: lists.block_bytes() as u32,
            ready: 0,
            first_factor: 0,
            leavers: 0,
        };
        Self {
            params,
            block_stage_bytes: lists.stage_bytes(),
            stages: lists.stages,
            stage_bytes: products.iter().map(|p| p.format().stage_bytes()).max().unwrap_or(1),
            is_common: products.iter().all(|p| Format::is_common(p.format().id)),
        }
    }

    /// The kernel for a group of `tiles` row tiles.
    pub(super) fn entry(&self, tiles: usize) -> (&'static str, &'static str) {
        let (_, common, all) =
            KERNELS.into_iter().find(|k| k.0 >= tiles).unwrap_or(KERNELS[KERNELS.len() - 1]);
        let name = if self.is_common { common } else { all };
        (name, name)
    }

    /// For the group of `tiles` row tiles from row tile `first` on, with the shared memory it takes; `None` where there is not
    /// enough of that.
    pub(super) fn params(
        &self,
        input: &Input,
        first: usize,
        tiles: usize,
        space: Space,
    ) -> Option<(LinearParams, usize)> {
        let rings = Rings::new(self.stage_bytes, tiles, self.params.list_bytes as usize, space)?;
        let params = LinearParams {
            n_slots: rings.n_slots as u32,
            slot_bytes: rings.slot_bytes as u32,
            n_inputs: rings.n_inputs as u32,
            log_inputs: rings.n_inputs.ilog2(),
            input_bytes: rings.input_bytes as u32,
            leavers: space.leavers,
            ..self.of_group(input, first, tiles)
        };
        Some((params, rings.shared_bytes))
    }

    /// The `nth` of a chain, which says at `ready` what it has made of the next one's input, at most `most` cells; `None` where it makes none.
    pub(super) fn of_phase(
        &self,
        nth: usize,
        input: &Input,
        tiles: usize,
        ready: Option<(u64, usize)>,
    ) -> Option<LinearParams> {
        let params = self.of_group(input, 0, tiles);
        // A block may leave sums while others still read those of the op before, if it needs nothing of what they make. (Of the one before
        // that nobody does: all columns of an op wait for all of the op before.) So ops take turns with the rows of each place.
        let params = LinearParams {
            partials: params.partials + ((nth % 2) * PARTIAL_BYTES / 2) as u64,
            first_factor: 8 * nth as u32,
            ..params
        };
        let Some((ready, most)) = ready else { return Some(params) };
        (params.next_image != 0 && params.next_cells as usize <= most)
            .then_some(LinearParams { ready, ..params })
    }

    /// Of a block.
    pub(super) fn list_bytes(&self) -> usize {
        self.params.list_bytes as usize
    }

    /// The same but for shared memory.
    fn of_group(&self, input: &Input, first: usize, tiles: usize) -> LinearParams {
        let n_cells = input.cols.div_ceil(CELL_COLS);
        // Images lie in groups of as many row tiles as a launch has.
        let of_group = |image: u64, n_cells: usize| match image {
            0 => 0,
            _ => image + (first * n_cells * (CELL_BYTES + REST_BYTES)) as u64,
        };
        let image = of_group(input.image, n_cells);
        LinearParams {
            image,
            rest: image + (n_cells * tiles * CELL_BYTES) as u64,
            count: input.rows.count,
            squares: input.undivided.map_or(0, |u| u.squares),
            eps: input.undivided.map_or(0.0, |u| u.eps),
            per_column: 1.0 / input.cols as f32,
            next_image: of_group(self.params.next_image, self.params.next_cells as usize),
            first_row: 8 * first as u32,
            n_cells: n_cells as u32,
            ..self.params
        }
    }
}

kernel_params!(ImageParams {
    x: u64,
    image: u64,
    count: u64,
    cols: u32,
    n_tiles: u32,
    group_tiles: u32,
    pad: u32,
});

impl ImageParams {
    pub(super) fn new(input: &Input, group_tiles: usize) -> Self {
        Self {
            x: input.x,
            image: input.image,
            count: input.rows.count,
            cols: input.cols as u32,
            n_tiles: row_tiles(input.rows.bucket, group_tiles) as u32,
            group_tiles: group_tiles as u32,
            pad: 0,
        }
    }
}

const _: () = assert!(REST_BYTES <= CELL_BYTES && CELL_COLS == 128);

#[cfg(test)]
mod tests {
    use super::*;
    use overdraft_formats::DType;

    #[test]
    fn every_format_has_room_on_every_device() {
        let kb = |shared: usize, has_wgmma| Space { shared_bytes: shared * 1024, has_wgmma, leavers: 1 };
        //  device, rows of a launch, slots of Q4_K and of Q8_0 with as many rows
        for (device, space, rows, q4_k, q8_0) in [
            ("H100, H200", kb(227, true), 64, 2, 2),
            ("B200", kb(227, false), 32, 2, 2),
            ("A100", kb(163, false), 32, 2, 1),
            ("RTX 30, 40, 50", kb(99, false), 16, 2, 1),
        ] {
            let tiles = group_tiles(space);
            assert_eq!(8 * tiles, rows, "{device}");
            for format in DType::all().filter_map(Format::of) {
                let rings = Rings::new(format.stage_bytes(), tiles, LISTS_BYTES, space).expect(device);
                assert!(rings.shared_bytes <= space.shared_bytes, "{device}");
            }
            let slots = |dtype: DType| {
                let format = Format::of(dtype).unwrap();
                Rings::new(format.stage_bytes(), tiles, LISTS_BYTES, space).unwrap().n_slots
            };
            assert_eq!((slots(DType::Q4_K), slots(DType::Q8_0)), (q4_k, q8_0), "{device}");
        }
    }
    #[test]
    fn images_have_room_for_the_rows_of_the_kernels_that_read_them() {
        for group in [1, 2, 3, 4, 6, MAX_TILES] {
            for bucket in 1..=200 {
                let tiles = row_tiles(bucket, group);
                assert!(8 * tiles >= bucket && tiles < bucket.div_ceil(8) + 2);
                for first in (0..tiles).step_by(group) {
                    let of_launch = group.min(tiles - first);
                    assert!(KERNELS.iter().any(|k| k.0 == of_launch), "{bucket} rows in groups of {group}");
                }
            }
        }
    }
}
