//! The parameters of a launch, as `kernels/linear.cuh` and `image.cu` read them.

use super::layout::{CELL_COLS, Format, HALF_OUTPUTS, TILE_OUTPUTS, Work, shares};
use crate::linear::Input;
use crate::ops::kernel_params;

pub(super) const MAX_PARTS: usize = 6;
pub(super) const MAX_TILES: usize = 4;
pub(super) const MAX_BLOCKS: usize = 256;
pub(super) const THREADS: u32 = 512;
/// What a block leaves for another: 16 warps, a tile of 16 outputs and 32 rows each, f32.
pub(super) const PARTIAL_BYTES: usize = 16 * 16 * 8 * MAX_TILES * 4;
/// By row tiles: for the formats most files are made of, and for all.
const COMMON: [(&str, &str); MAX_TILES] =
    [("linear_1", "linear_1"), ("linear_2", "linear_2"), ("linear_3", "linear_3"), ("linear_4", "linear_4")];
const ALL: [(&str, &str); MAX_TILES] = [
    ("linear_1_all", "linear_1_all"),
    ("linear_2_all", "linear_2_all"),
    ("linear_3_all", "linear_3_all"),
    ("linear_4_all", "linear_4_all"),
];

const CELL_BYTES: usize = 2336;
const REST_BYTES: usize = 2048;
/// Barriers of a ring take a fixed place.
const MAX_SLOTS: usize = 8;
const BARRIER_BYTES: usize = 128;
/// What a stage costs at least: below this a block waits for barriers and memory's latency, not for bytes. (A launch with
/// two f32 matrices of 48 outputs took 34 us when shares went by bytes alone, 19 with this.)
const LEAST_STAGE_BYTES: usize = 36864;

/// Shared memory that every launch takes: barriers, and where the two halves of a stage's columns meet.
pub(super) fn fixed_shared_bytes(tiles: usize) -> usize {
    BARRIER_BYTES + 8 * 2 * tiles * 512
}

/// A slot holds the weights of a stage, then two cells, or one and its rest.
fn slot_bytes(weight_bytes: usize, tiles: usize) -> usize {
    (weight_bytes + tiles * 2 * CELL_BYTES).next_multiple_of(128)
}

/// Of the format with the largest stages.
pub(super) fn largest_slot_bytes(tiles: usize) -> usize {
    let largest = overdraft_formats::DType::all().filter_map(Format::of).map(|f| f.stage_bytes()).max();
    slot_bytes(largest.unwrap_or(0), tiles)
}

/// A matrix of a launch.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub tiles: u64,
    pub scales: u64,
    pub bias: u64,
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
}

/// `Part` of `linear.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Part {
    weights: [u64; 2],
    scales: [u64; 2],
    bias: [u64; 2],
    out: u64,
    format: u32,
    n_out: u32,
    paired: u32,
    n_stages: u32,
    n_records: u32,
    stage_records: u32,
    tile_bytes: u32,
    first_item: u32,
}

impl Part {
    const NONE: Self = Self {
        weights: [0; 2],
        scales: [0; 2],
        bias: [0; 2],
        out: 0,
        format: 0,
        n_out: 0,
        paired: 0,
        n_stages: 0,
        n_records: 0,
        stage_records: 0,
        tile_bytes: 0,
        first_item: 0,
    };

    pub(super) fn single(w: Weights, out: u64) -> Self {
        Self { paired: 0, ..Self::pair(w, w, out) }
    }

    /// Two matrices of one format and shape whose outputs meet.
    pub(super) fn pair(a: Weights, b: Weights, out: u64) -> Self {
        Self {
            weights: [a.tiles, b.tiles],
            scales: [a.scales, b.scales],
            bias: [a.bias, b.bias],
            out,
            format: a.format.id,
            n_out: a.rows as u32,
            paired: 1,
            n_stages: a.format.n_stages(a.cols) as u32,
            n_records: a.format.n_records(a.cols) as u32,
            stage_records: a.format.stage_records as u32,
            tile_bytes: a.format.tile_bytes as u32,
            first_item: 0,
        }
    }

    fn full_stage_bytes(&self) -> usize {
        2 * (HALF_OUTPUTS / TILE_OUTPUTS) * (self.stage_records * self.tile_bytes) as usize
    }

    fn work(&self) -> Work {
        let (outputs, halves) = (self.n_out as usize, if self.paired == 1 { 2 } else { 1 });
        let tiles = (halves * outputs.div_ceil(TILE_OUTPUTS)).min(2 * HALF_OUTPUTS / TILE_OUTPUTS);
        let stage_bytes = tiles * (self.stage_records * self.tile_bytes) as usize;
        Work {
            units: (halves * outputs).div_ceil(2 * HALF_OUTPUTS),
            stages: self.n_stages as usize,
            stage_bytes: stage_bytes.max(LEAST_STAGE_BYTES),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Epilogue {
    Store,
    Add { gate: u64 },
    Glu { kind: u32, alpha: f32, limit: f32 },
    GluJoin { kind: u32, alpha: f32, limit: f32 },
}

kernel_params!(LinearParams {
    parts: [Part; MAX_PARTS],
    image: u64,
    rest: u64,
    count: u64,
    gate: u64,
    partials: u64,
    first_row: u32,
    n_parts: u32,
    n_slots: u32,
    slot_bytes: u32,
    cells_at: u32,
    n_cells: u32,
    epilogue: u32,
    glu_kind: u32,
    glu_alpha: f32,
    glu_limit: f32,
    start: [u32; MAX_BLOCKS + 1],
    pad: u32,
});

/// A launch but for its rows.
pub(super) struct Plan {
    params: LinearParams,
}

impl Plan {
    pub(super) fn new(parts: &[Part], epilogue: Epilogue, partials: u64, n_blocks: usize) -> Self {
        let mut all = [Part::NONE; MAX_PARTS];
        let mut first_item = 0;
        let mut works = Vec::with_capacity(parts.len());
        for (place, part) in all.iter_mut().zip(parts) {
            let work = part.work();
            *place = Part { first_item, ..*part };
            first_item += (work.units * work.stages) as u32;
            works.push(work);
        }
        let mut start = [0; MAX_BLOCKS + 1];
        let starts = shares(&works, n_blocks);
        start[..starts.len()].copy_from_slice(&starts);
        let (kind, gate, glu_kind, glu_alpha, glu_limit) = match epilogue {
            Epilogue::Store => (0, 0, 0, 0.0, 0.0),
            Epilogue::Add { gate } => (1, gate, 0, 0.0, 0.0),
            Epilogue::Glu { kind, alpha, limit } => (2, 0, kind, alpha, limit),
            Epilogue::GluJoin { kind, alpha, limit } => (3, 0, kind, alpha, limit),
        };
        let cells_at = parts.iter().map(Part::full_stage_bytes).max().unwrap_or(0) as u32;
        Self {
            params: LinearParams {
                parts: all,
                image: 0,
                rest: 0,
                count: 0,
                gate,
                partials,
                first_row: 0,
                n_parts: parts.len() as u32,
                n_slots: 0,
                slot_bytes: 0,
                cells_at,
                n_cells: 0,
                epilogue: kind,
                glu_kind,
                glu_alpha,
                glu_limit,
                start,
                pad: 0,
            },
        }
    }

    /// The kernel for a group of `tiles` row tiles.
    pub(super) fn entry(&self, tiles: usize) -> (&'static str, &'static str) {
        let parts = &self.params.parts[..self.params.n_parts as usize];
        let table = if parts.iter().all(|p| Format::is_common(p.format)) { COMMON } else { ALL };
        table[tiles - 1]
    }

    /// For a group of `tiles` row tiles with its part of the image; with the shared memory it takes.
    pub(super) fn params(
        &self,
        image: u64,
        n_cells: usize,
        count: u64,
        first_row: usize,
        tiles: usize,
        shared_bytes: usize,
    ) -> (LinearParams, usize) {
        let slot = slot_bytes(self.params.cells_at as usize, tiles);
        let fixed = fixed_shared_bytes(tiles);
        let n_slots = ((shared_bytes.saturating_sub(fixed)) / slot).clamp(1, MAX_SLOTS);
        let params = LinearParams {
            image,
            rest: image + (n_cells * tiles * CELL_BYTES) as u64,
            count,
            first_row: first_row as u32,
            n_slots: n_slots as u32,
            slot_bytes: slot as u32,
            n_cells: n_cells as u32,
            ..self.params
        };
        (params, fixed + n_slots * slot)
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
            n_tiles: input.rows.bucket.div_ceil(8) as u32,
            group_tiles: group_tiles as u32,
            pad: 0,
        }
    }
}

const _: () = assert!(REST_BYTES <= CELL_BYTES && CELL_COLS == 128);
const _: () = assert!(MAX_SLOTS * 16 == BARRIER_BYTES);
