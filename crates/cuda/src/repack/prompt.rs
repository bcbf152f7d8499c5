//! Linear ops over the rows of prompts: launches of `kernels/prompt_linear.cuh` and `prompt_image.cu`.

use super::Tiles;
use super::deal::Weights;
use super::layout::{CELL_COLS, HALF_OUTPUTS};
use crate::driver::{Device, Result};
use crate::linear::{Epilogue, Gpu, Part, PromptImage, PromptInput};
use crate::ops::kernel_params;

/// `PROMPT_PARTS` of `prompt_params.cuh`, whose other numbers these are too.
const MAX_PARTS: usize = 9;
const THREADS: u32 = 288;
const WGMMA_THREADS: u32 = 384;
const MAX_SLOTS: usize = 16;
/// Eight rows of 64 columns of an image.
const EIGHT_BYTES: usize = 1024;
/// Of barriers.
const FIXED_BYTES: usize = 1024;
/// Tiles of 16 outputs in a unit.
const UNIT_TILES: usize = 16;
/// One in use, one on its way.
const WEIGHT_SLOTS: usize = 2;

/// Formats that a module's kernels know, all of which one launch can hold. With more of them in one kernel the compiler runs out
/// of registers beside 128 sums.
struct Module {
    name: &'static str,
    formats: &'static [u32],
    /// By [`TILE_ROWS`].
    entries: &'static [&'static str],
}

macro_rules! module {
    ($name:literal, $formats:expr $(, $more:literal)?) => {
        Module {
            name: concat!("prompt_", $name),
            formats: &$formats,
            entries: &[
                concat!("prompt_", $name, "_64"),
                concat!("prompt_", $name, "_96"),
                concat!("prompt_", $name, "_128"),
                $(concat!("prompt_", $name, $more))?
            ],
        }
    };
}

/// [`Format::id`]s; floats are in each, as they stand beside any other. Of two that know the same the later is taken.
const MODULES: [Module; 10] = [
    module!("q4_k", [0, 10, 12]),
    module!("q5_k", [0, 11, 12]),
    module!("q8_0", [0, 5]),
    module!("q4_0", [0, 1, 2]),
    module!("q5_0", [0, 3]),
    module!("q5_1", [0, 4]),
    module!("q3_k", [0, 8, 9]),
    module!("iq4", [0, 6, 13]),
    module!("mxfp4", [0, 7]),
    module!("floats", [0], "_160"),
];

/// Rows of a tile. The more, the less often a weight is decoded; the fewer, the less of a tile and of a last turn of the blocks
/// is idle. Devices without wgmma have registers for the smallest only, most formats for the first three.
const TILE_ROWS: [usize; 4] = [64, 96, 128, 160];

/// The tile that can be cut in two.
const CUT_ROWS: usize = 128;

/// What a tile costs beside its rows, in rows: its beginning, its end, and that weights are decoded. (H200, 512 rows: 43, 55 and 70 us
/// for tiles of 64, 96 and 128 rows over 5120 columns, 128, 161 and 186 over 17408.)
const TILE_COST: usize = 48;

#[repr(C)]
#[derive(Clone, Copy)]
struct PromptPart {
    weights: [u64; 2],
    scales: [u64; 2],
    bias: [u64; 2],
    out: [u64; 2],
    format: u32,
    n_out: u32,
    paired: u32,
    n_records: u32,
    stage_records: u32,
    tile_bytes: u32,
    first_unit: u32,
    pad: u32,
}

impl PromptPart {
    const NONE: Self = Self {
        weights: [0; 2],
        scales: [0; 2],
        bias: [0; 2],
        out: [0; 2],
        format: 0,
        n_out: 0,
        paired: 0,
        n_records: 0,
        stage_records: 0,
        tile_bytes: 0,
        first_unit: 0,
        pad: 0,
    };

    fn new([a, b]: [Weights; 2], out: [u64; 2], is_pair: bool) -> Self {
        Self {
            weights: [a.tiles, b.tiles],
            scales: [a.scales, b.scales],
            bias: [a.bias, b.bias],
            out,
            format: a.format.id,
            n_out: a.rows as u32,
            paired: is_pair.into(),
            n_records: a.format.n_records(a.cols) as u32,
            stage_records: a.format.stage_records as u32,
            tile_bytes: a.format.tile_bytes as u32,
            first_unit: 0,
            pad: 0,
        }
    }

    fn units(&self) -> usize {
        let halves = (self.n_out as usize).div_ceil(HALF_OUTPUTS);
        if self.paired == 1 { halves } else { halves.div_ceil(2) }
    }

    /// Of 128 columns, over all planes.
    fn cells(&self) -> usize {
        let records = self.n_records as usize;
        if self.stage_records == 1 { 2 * records } else { records.div_ceil(2) }
    }

    /// Of both halves.
    fn slot_bytes(&self) -> usize {
        UNIT_TILES * (self.stage_records * self.tile_bytes) as usize
    }
}

kernel_params!(PromptParams {
    image: u64,
    scales: u64,
    gate: u64,
    count: u64,
    written: u64,
    n_parts: u32,
    n_units: u32,
    long_units: u32,
    long_turns: u32,
    eights: u32,
    n_cells: u32,
    epilogue: u32,
    glu_kind: u32,
    glu_alpha: f32,
    glu_limit: f32,
    n_inputs: u32,
    n_weights: u32,
    weight_bytes: u32,
    pad: u32,
    parts: [PromptPart; MAX_PARTS],
});

kernel_params!(PromptImageParams {
    x: u64,
    image: u64,
    scales: u64,
    count: u64,
    written: u64,
    cols: u32,
    eights: u32,
});

/// `PromptEpilogue`, its gate, and kind, alpha and limit of a GLU.
type Kind = (u32, u64, (u32, f32, f32));
const STORE: Kind = (0, 0, (0, 0.0, 0.0));

/// What of a device decides how tiles are cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    n_blocks: usize,
    shared_bytes: usize,
    has_wgmma: bool,
}

impl Cut {
    pub(super) fn new(device: &Device) -> Self {
        let (n_blocks, shared_bytes) = (device.n_multiprocessors, device.max_shared_bytes);
        Self { n_blocks, shared_bytes, has_wgmma: device.sm == 90 }
    }

    /// Index into [`TILE_ROWS`], one of the first `n_sizes`: with the shortest turns of all blocks for the rows there can be.
    fn tile_rows(&self, n_sizes: usize, units: usize, bucket: usize) -> usize {
        if !self.has_wgmma {
            return 0;
        }
        let cost = |rows: usize| {
            let tiles = units * bucket.div_ceil(rows);
            let (turns, left) = (tiles / self.n_blocks, tiles % self.n_blocks);
            // `PromptTurns`: few tiles that are left are cut in two.
            let cut = left.div_ceil(bucket.div_ceil(rows)) * bucket.div_ceil(rows / 2);
            let last = match left {
                0 => 0,
                _ if turns > 0 && rows == CUT_ROWS && cut <= self.n_blocks => rows / 2 + TILE_COST,
                _ => rows + TILE_COST,
            };
            turns * (rows + TILE_COST) + last
        };
        (0..n_sizes).rev().min_by_key(|i| cost(TILE_ROWS[*i])).unwrap_or(0)
    }

    /// Slots for weights, and for inputs of 128 columns, of `input_bytes` each.
    fn slots(&self, slot_bytes: usize, input_bytes: usize) -> (usize, usize) {
        let n_weights = if self.has_wgmma { WEIGHT_SLOTS } else { 0 };
        let room = self.shared_bytes.saturating_sub(FIXED_BYTES + n_weights * slot_bytes);
        (n_weights, (room / input_bytes).min(MAX_SLOTS))
    }
}

fn eights(bucket: usize) -> usize {
    bucket.div_ceil(8)
}

fn tiles_bytes(bucket: usize, cols: usize) -> usize {
    cols.div_ceil(CELL_COLS) * 2 * eights(bucket) * EIGHT_BYTES
}

/// The image's tiles, then a scale for each row.
pub(super) fn image_bytes(bucket: usize, cols: usize) -> usize {
    tiles_bytes(bucket, cols) + 4 * bucket
}

pub(super) fn image(input: &PromptInput) -> PromptImage {
    PromptImage {
        tiles: input.image,
        scales: input.image + tiles_bytes(input.bucket, input.cols) as u64,
        eights: eights(input.bucket) as u32,
    }
}

pub(super) fn make_image(gpu: Gpu<'_>, input: &PromptInput) -> Result<()> {
    let PromptImage { tiles, scales, eights } = image(input);
    let params = PromptImageParams {
        x: input.x,
        image: tiles,
        scales,
        count: input.count,
        written: input.written,
        cols: input.cols as u32,
        eights,
    };
    gpu.launch(("prompt_image", "make_prompt_image"), [input.bucket, 1, 1], 256, 0, &params)
}

/// Small matrices two to a unit: those of a Gated DeltaNet's gates have 48 outputs each.
fn paired(parts: Vec<PromptPart>) -> Vec<PromptPart> {
    let mut made: Vec<PromptPart> = Vec::with_capacity(parts.len());
    for part in parts {
        let shape = |p: &PromptPart| (p.format, p.n_out, p.n_records);
        let fits = |p: &&mut PromptPart| p.paired == 0 && shape(p) == shape(&part);
        match made.iter_mut().find(fits).filter(|_| part.n_out as usize <= HALF_OUTPUTS) {
            Some(first) => {
                first.paired = 1;
                (first.weights[1], first.scales[1]) = (part.weights[0], part.scales[0]);
                (first.bias[1], first.out[1]) = (part.bias[0], part.out[0]);
            }
            None => made.push(part),
        }
    }
    made
}

/// Units that take longer than the others of a launch, as many turns as those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Long {
    units: usize,
    turns: usize,
}

/// Parts of two planes take twice as long as others.
fn longest_first(mut parts: Vec<PromptPart>) -> (Vec<PromptPart>, Long) {
    let shortest = parts.iter().map(PromptPart::cells).min().unwrap_or(1);
    let turns = |p: &PromptPart| (p.cells() / shortest).max(1);
    parts.sort_by_key(|p| std::cmp::Reverse(turns(p)));
    let most = parts.first().map_or(1, turns);
    let units = parts.iter().filter(|p| turns(p) > 1).map(PromptPart::units).sum();
    (parts, Long { units, turns: most })
}

/// The modules that together know all formats of `parts`, with the parts of each.
fn by_module(parts: &[PromptPart]) -> Vec<(&'static Module, Vec<PromptPart>)> {
    let mut left = parts.to_vec();
    let mut launches = Vec::new();
    while !left.is_empty() {
        let n_known = |m: &Module| left.iter().filter(|p| m.formats.contains(&p.format)).count();
        let module = MODULES.iter().max_by_key(|m| n_known(m)).expect("there are modules");
        let (known, others): (Vec<_>, Vec<_>) = left.iter().partition(|p| module.formats.contains(&p.format));
        assert!(!known.is_empty(), "every format has a module");
        let chunks = known.chunks(MAX_PARTS).map(|parts| (module, parts.to_vec()));
        launches.extend(chunks.collect::<Vec<_>>());
        left = others;
    }
    launches
}

impl Tiles {
    pub(super) fn run_prompts(
        &self,
        gpu: Gpu<'_>,
        input: &PromptInput,
        parts: &[Part],
        epilogue: Epilogue,
    ) -> Result<()> {
        let single = |part: &Part| {
            let w = self.weights(part);
            PromptPart::new([w, w], [part.out; 2], false)
        };
        match (epilogue, parts) {
            (Epilogue::Glu { kind, alpha, limit, .. }, [gate, up]) => {
                let (g, u) = (self.weights(gate), self.weights(up));
                let glu = (kind, alpha, limit);
                if g.format == u.format {
                    return self.prompt_launch(
                        gpu,
                        input,
                        &[PromptPart::new([g, u], [gate.out; 2], true)],
                        (2, 0, glu),
                    );
                }
                // The gate, then the up matrix upon it.
                self.prompt_launch(gpu, input, &[single(gate)], STORE)?;
                self.prompt_launch(gpu, input, &[single(up)], (3, 0, glu))
            }
            (Epilogue::Add { gate, .. }, parts) => {
                let parts: Vec<_> = parts.iter().map(single).collect();
                self.prompt_launch(gpu, input, &parts, (1, gate, STORE.2))
            }
            (_, parts) => {
                let parts = paired(parts.iter().map(single).collect());
                self.prompt_launch(gpu, input, &parts, STORE)
            }
        }
    }

    fn prompt_launch(
        &self,
        gpu: Gpu<'_>,
        input: &PromptInput,
        parts: &[PromptPart],
        (epilogue, gate, (glu_kind, glu_alpha, glu_limit)): Kind,
    ) -> Result<()> {
        for (module, known) in by_module(parts) {
            let (mut parts, mut n_units) = ([PromptPart::NONE; MAX_PARTS], 0);
            let (known, long) = longest_first(known);
            for (place, part) in parts.iter_mut().zip(&known) {
                *place = PromptPart { first_unit: n_units as u32, ..*part };
                n_units += part.units();
            }
            let slot_bytes = known.iter().map(PromptPart::slot_bytes).max().unwrap_or(0);
            let tile_rows = self.cut.tile_rows(
                module.entries.len(),
                n_units + long.units * (long.turns - 1),
                input.bucket,
            );
            let input_bytes = 2 * TILE_ROWS[tile_rows] / 8 * EIGHT_BYTES;
            let (n_weights, n_inputs) = self.cut.slots(slot_bytes, input_bytes);
            let params = PromptParams {
                image: input.image,
                scales: image(input).scales,
                gate,
                count: input.count,
                written: input.written,
                n_parts: known.len() as u32,
                n_units: n_units as u32,
                long_units: long.units as u32,
                long_turns: long.turns as u32,
                eights: eights(input.bucket) as u32,
                n_cells: input.cols.div_ceil(CELL_COLS) as u32,
                epilogue,
                glu_kind,
                glu_alpha,
                glu_limit,
                n_inputs: n_inputs as u32,
                n_weights: n_weights as u32,
                weight_bytes: slot_bytes as u32,
                pad: 0,
                parts,
            };
            let shared = FIXED_BYTES + n_weights * slot_bytes + n_inputs * input_bytes;
            let grid = [self.cut.n_blocks.min(n_units * input.bucket.div_ceil(TILE_ROWS[tile_rows])), 1, 1];
            let threads = if self.cut.has_wgmma { WGMMA_THREADS } else { THREADS };
            gpu.launch((module.name, module.entries[tile_rows]), grid, threads, shared, &params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Format;
    use super::*;
    use overdraft_formats::DType;

    #[test]
    fn every_format_has_a_module_and_files_of_one_kind_need_one_launch() {
        let part = |dtype: DType| {
            let format = Format::of(dtype).unwrap();
            PromptPart { format: format.id, n_out: 128, ..PromptPart::NONE }
        };
        for dtype in DType::all().filter(|d| Format::of(*d).is_some()) {
            assert_eq!(by_module(&[part(dtype)]).len(), 1, "{dtype}");
            assert_eq!(by_module(&[part(dtype), part(DType::F32)]).len(), 1, "{dtype} beside floats");
        }
        let launches = |dtypes: &[DType]| by_module(&dtypes.iter().map(|d| part(*d)).collect::<Vec<_>>());
        assert_eq!(launches(&[DType::Q4_K, DType::Q6_K, DType::F32]).len(), 1);
        assert_eq!(launches(&[DType::Q5_K, DType::Q6_K, DType::BF16]).len(), 1);
        let split = launches(&[DType::Q8_0, DType::Q4_K, DType::Q6_K]);
        assert_eq!(split.iter().map(|l| l.1.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(launches(&[DType::Q8_0; 20]).len(), 3, "nine parts to a launch");
    }

    #[test]
    fn small_matrices_share_a_unit_and_long_ones_come_first() {
        let part = |dtype: DType, n_out: u32, out: u64| {
            let format = Format::of(dtype).unwrap();
            PromptPart {
                format: format.id,
                n_out,
                n_records: format.n_records(5120) as u32,
                stage_records: format.stage_records as u32,
                out: [out; 2],
                ..PromptPart::NONE
            }
        };
        let parts = [part(DType::Q4_K, 10240, 1), part(DType::F32, 48, 2), part(DType::F32, 48, 3)];
        let made = paired(parts.to_vec());
        assert_eq!(made.iter().map(|p| (p.out, p.paired)).collect::<Vec<_>>(), [([1, 1], 0), ([2, 3], 1)]);
        let (sorted, long) = longest_first(made);
        assert_eq!((sorted[0].out, long), ([2, 3], Long { units: 1, turns: 2 }));
        let three = [1, 2, 3].map(|out| part(DType::Q8_0, 128, out));
        assert_eq!(paired(three.to_vec()).len(), 2, "a third stays alone");
        let large = [1, 2].map(|out| part(DType::Q8_0, 144, out));
        assert_eq!(paired(large.to_vec()).len(), 2, "more than a half each");
        assert_eq!(longest_first(large.to_vec()).1, Long { units: 0, turns: 1 });
    }

    /// `PromptTurns` of `prompt_params.cuh`, statement by statement, where no tiles are cut: those of every block, in turn.
    fn turns(grid: usize, (units, long): (usize, Long), rows: usize, tile_rows: usize) -> Vec<Vec<usize>> {
        let row_tiles = rows.div_ceil(tile_rows);
        let n = units * row_tiles;
        let n_long = if n > grid && long.units * row_tiles <= grid { long.units * row_tiles } else { 0 };
        let end = n + n_long * (long.turns - 1);
        let tile = |block: usize, at: usize| {
            let turn = at / grid;
            let is_under_way = turn > 0 && turn < long.turns && block < n_long;
            (!is_under_way).then(|| at - turn.min(long.turns - 1) * n_long)
        };
        (0..grid).map(|block| (block..end).step_by(grid).filter_map(|at| tile(block, at)).collect()).collect()
    }

    /// Rows of prompts may be far fewer than the bucket that decides how many blocks there are: with 5 written rows before 60 of a prompt, a
    /// bucket of 128 has 130 blocks for the 65 tiles of a 27B's inputs, the first of them of two planes.
    #[test]
    fn every_tile_has_one_block_and_nobody_has_tiles_that_there_are_not() {
        let mut n_short = 0;
        for tile_rows in [64, 96] {
            for (units, long) in [(3, 1), (3, 0), (20, 0), (65, 1), (65, 2), (136, 0), (264, 3)] {
                let long = Long { units: long, turns: if long > 0 { 2 } else { 1 } };
                for bucket in [8, 64, 128, 256, 512] {
                    let grid = (units * usize::div_ceil(bucket, tile_rows)).min(132);
                    for rows in 1..=bucket {
                        let mut all = turns(grid, (units, long), rows, tile_rows).concat();
                        all.sort_unstable();
                        let n = units * rows.div_ceil(tile_rows);
                        let what = format!("{units} units, {long:?}, {rows} of {bucket} rows");
                        assert_eq!(all, (0..n).collect::<Vec<_>>(), "{what}");
                        n_short += usize::from(n < grid && long.units > 0);
                    }
                }
            }
        }
        assert!(n_short > 100, "fewer tiles than blocks, and a long one: {n_short}");
    }

    #[test]
    fn every_launch_has_room_for_two_inputs() {
        let largest =
            DType::all().filter_map(Format::of).map(|f| UNIT_TILES * f.stage_bytes()).max().unwrap();
        // H100 and H200; the least shared memory of the others, RTX 30 and 40.
        for (cut, rows) in [
            (Cut { n_blocks: 132, shared_bytes: 227 * 1024, has_wgmma: true }, TILE_ROWS[3]),
            (Cut { n_blocks: 82, shared_bytes: 99 * 1024, has_wgmma: false }, TILE_ROWS[0]),
        ] {
            let (n_weights, n_inputs) = cut.slots(largest, rows * 256);
            assert!(n_inputs >= 2 && n_weights == if cut.has_wgmma { 2 } else { 0 }, "{n_inputs}");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn tiles_are_cut_so_that_few_blocks_idle_in_the_last_turn() {
        let cut = Cut { n_blocks: 132, shared_bytes: 227 * 1024, has_wgmma: true };
        //  units, bucket, rows of a tile, sizes there are
        for (units, bucket, want, n_sizes, why) in [
            ( 20,   64,  64, 3, "a short prompt"),
            ( 20,  512,  96, 3, "120 tiles in one turn"),
            ( 66,  512, 128, 3, "264 tiles in two turns"),
            (136,  512, 128, 3, "four turns, and 32 tiles of half the rows"),
            ( 10, 2048, 128, 3, "one turn, and 28 tiles of half the rows"),
            ( 10, 2048, 160, 4, "130 tiles in one turn"),
            ( 72, 2048, 128, 4, "nine turns"),
        ] {
            assert_eq!(TILE_ROWS[cut.tile_rows(n_sizes, units, bucket)], want, "{why}");
        }
        assert_eq!(Cut { has_wgmma: false, ..cut }.tile_rows(3, 66, 512), 0);
    }
}
