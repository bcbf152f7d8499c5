//! Who does what of a launch: each block's segments, as `kernels/linear_params.cuh` has them.

use super::layout::{Format, HALF_OUTPUTS, TILE_OUTPUTS, Work, shares};

/// What a stage costs at least: below this a block waits for barriers and memory's latency, not for bytes. (A launch with
/// two f32 matrices of 48 outputs took 34 us when shares went by bytes alone, 19 with this.)
const LEAST_STAGE_BYTES: usize = 36864;
/// Which input a stage needs.
const WANTED_BYTES: usize = 4;

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

/// One matrix of a launch, or two of one format and shape whose outputs meet.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub weights: [Weights; 2],
    pub is_pair: bool,
    pub out: u64,
}

impl Product {
    pub(super) fn single(w: Weights, out: u64) -> Self {
        Self { weights: [w, w], is_pair: false, out }
    }

    pub(super) fn pair(a: Weights, b: Weights, out: u64) -> Self {
        Self { weights: [a, b], is_pair: true, out }
    }

    pub(super) fn format(&self) -> Format {
        self.weights[0].format
    }

    fn n_tiles(&self) -> usize {
        self.weights[0].rows.div_ceil(TILE_OUTPUTS)
    }

    fn n_stages(&self) -> usize {
        self.format().n_stages(self.weights[0].cols)
    }

    fn work(&self) -> Work {
        let halves = if self.is_pair { 2 } else { 1 };
        let tiles = (halves * self.n_tiles()).min(2 * HALF_TILES);
        Work {
            units: (halves * self.n_tiles()).div_ceil(2 * HALF_TILES),
            stages: self.n_stages(),
            stage_bytes: (tiles * self.format().stage_bytes()).max(LEAST_STAGE_BYTES),
        }
    }

    /// Of a unit's two halves: where a stage's tiles begin, and how many they are.
    fn halves(&self, unit: usize, stage: usize) -> [(u64, u32); 2] {
        [0, 1].map(|i| {
            let (matrix, half) = if self.is_pair { (i, unit) } else { (0, 2 * unit + i) };
            // A half that is not there: its warps read the other's.
            let half = if half * HALF_TILES < self.n_tiles() { half } else { 2 * unit };
            let tiles = (self.n_tiles() - half * HALF_TILES).min(HALF_TILES);
            let before = half * HALF_TILES * self.n_stages() + stage * tiles;
            (self.weights[matrix].tiles + (before * self.format().stage_bytes()) as u64, tiles as u32)
        })
    }
}

const HALF_TILES: usize = HALF_OUTPUTS / TILE_OUTPUTS;

/// Stages of a unit that a block takes: `Segment` of `linear_params.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    weights: [u64; 2],
    tiles: [u32; 2],
    n: u32,
    first_stage: u32,
    stage_bytes: u32,
    format: u32,
    part: u32,
    unit: u32,
    partial: u32,
    n_partials: u32,
}

const SEGMENT_BYTES: usize = 64;

impl Segment {
    /// As the device reads it.
    pub(super) fn bytes(&self) -> [u8; SEGMENT_BYTES] {
        let words = [self.n, self.first_stage, self.stage_bytes, self.format, self.part, self.unit];
        let words = self.tiles.into_iter().chain(words).chain([self.partial, self.n_partials]);
        let bytes =
            self.weights.into_iter().flat_map(u64::to_le_bytes).chain(words.flat_map(u32::to_le_bytes));
        let mut all = [0; SEGMENT_BYTES];
        all.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        all
    }
}

/// A segment that others gather.
const IS_PARTIAL: u32 = u32::MAX;

/// Every block's share of a launch, as the device reads it.
pub(super) struct Lists {
    /// `of_block` for each block, of which the last has no stages.
    pub segments: Vec<Segment>,
    pub of_block: usize,
    /// The most stages of a block.
    stages: usize,
}

impl Lists {
    pub(super) fn new(products: &[Product], n_blocks: usize) -> Self {
        let works: Vec<Work> = products.iter().map(Product::work).collect();
        let starts = shares(&works, n_blocks);
        // In the order of stages: a unit's segments follow each other, and so do the places of their sums.
        let mut lists: Vec<Vec<Segment>> = vec![Vec::new(); n_blocks];
        let (mut first_item, mut n_partials) = (0, 0);
        for (part, (product, work)) in products.iter().zip(&works).enumerate() {
            for unit in 0..work.units {
                let (unit_first, mut head) = (first_item + unit * work.stages, None);
                for (block, ends) in starts.windows(2).enumerate() {
                    let first = unit_first.max(ends[0] as usize);
                    let end = (unit_first + work.stages).min(ends[1] as usize);
                    if first >= end {
                        continue;
                    }
                    let [(a, tiles_a), (b, tiles_b)] = product.halves(unit, first - unit_first);
                    let segment = Segment {
                        weights: [a, b],
                        tiles: [tiles_a, tiles_b],
                        n: (end - first) as u32,
                        first_stage: (first - unit_first) as u32,
                        stage_bytes: product.format().stage_bytes() as u32,
                        format: product.format().id,
                        part: part as u32,
                        unit: unit as u32,
                        partial: n_partials,
                        n_partials: if head.is_some() { IS_PARTIAL } else { 0 },
                    };
                    if let Some((block, at)) = head {
                        let head: &mut Segment = &mut lists[block as usize][at];
                        head.n_partials += 1;
                        n_partials += 1;
                    } else {
                        head = Some((block as u32, lists[block].len()));
                    }
                    lists[block].push(segment);
                }
            }
            first_item += work.items();
        }
        let of_block = 1 + lists.iter().map(Vec::len).max().unwrap_or(0);
        let stages = starts.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        let padded = lists.into_iter().flat_map(|mut list| {
            list.resize(of_block, Segment::default());
            list
        });
        Self { segments: padded.collect(), of_block, stages }
    }

    /// What they take of a block's shared memory.
    pub(super) fn shared_bytes(&self) -> usize {
        self.of_block * SEGMENT_BYTES + (self.stages * WANTED_BYTES).next_multiple_of(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdraft_formats::DType;

    fn weights(dtype: DType, rows: usize, cols: usize, tiles: u64) -> Weights {
        let format = Format::of(dtype).expect("a type with tiles");
        Weights { tiles, scales: 1, bias: 0, format, rows, cols }
    }

    /// A launch of the 27B's, with two small float matrices beside a large one; a pair; the fewest stages there can be.
    fn launches() -> Vec<Vec<Product>> {
        let single = |dtype, rows, cols| Product::single(weights(dtype, rows, cols, 1 << 40), 1);
        let pair = |dtype, rows, cols| {
            Product::pair(weights(dtype, rows, cols, 1 << 40), weights(dtype, rows, cols, 1 << 41), 1)
        };
        vec![
            vec![
                single(DType::Q4_K, 10240, 5120),
                single(DType::Q6_K, 6144, 5120),
                single(DType::F32, 48, 5120),
                single(DType::F32, 48, 5120),
            ],
            vec![single(DType::Q4_K, 5120, 17408)],
            vec![pair(DType::Q4_K, 17408, 5120)],
            vec![pair(DType::Q8_0, 200, 352)],
            vec![single(DType::F32, 3, 1), single(DType::F32, 3, 1)],
            vec![single(DType::Q6_K, 248320, 5120)],
        ]
    }

    #[test]
    fn every_stage_of_every_unit_is_one_blocks() {
        for (i, products) in launches().iter().enumerate() {
            for n_blocks in [1, 20, 132, 256] {
                let lists = Lists::new(products, n_blocks);
                assert_eq!(lists.segments.len(), n_blocks * lists.of_block);
                let mut seen: Vec<&Segment> = Vec::new();
                for list in lists.segments.chunks(lists.of_block) {
                    assert_eq!(list.last().map(|s| s.n), Some(0), "a list ends");
                    let stages: usize = list.iter().map(|s| s.n as usize).sum();
                    assert!(stages <= lists.stages);
                    seen.extend(list.iter().filter(|s| s.n > 0));
                }
                // Blocks take them in order, so they are in order as they stand.
                let mut expected = products.iter().enumerate().flat_map(|(part, product)| {
                    let work = product.work();
                    (0..work.units)
                        .flat_map(move |unit| (0..work.stages).map(move |stage| (part, unit, stage)))
                });
                for s in seen {
                    for stage in s.first_stage..s.first_stage + s.n {
                        let found = (s.part as usize, s.unit as usize, stage as usize);
                        assert_eq!(expected.next(), Some(found), "launch {i}, {n_blocks} blocks");
                    }
                }
                assert_eq!(expected.next(), None, "launch {i}, {n_blocks} blocks");
            }
        }
    }

    #[test]
    fn whoever_begins_a_unit_knows_where_its_other_sums_are() {
        for products in launches() {
            for n_blocks in [1, 20, 132, 256] {
                let lists = Lists::new(&products, n_blocks);
                let mut partials = 0;
                let mut awaited = 0..0;
                for s in lists.segments.iter().filter(|s| s.n > 0) {
                    if s.first_stage == 0 {
                        assert!(awaited.is_empty(), "all of the unit before were made");
                        awaited = s.partial..s.partial + s.n_partials;
                    } else {
                        assert_eq!((awaited.next(), s.n_partials), (Some(s.partial), IS_PARTIAL));
                        assert_eq!(s.partial, partials, "each has a place of its own");
                        partials += 1;
                    }
                }
                assert!(awaited.is_empty() && partials <= n_blocks as u32);
            }
        }
    }

    #[test]
    fn a_segment_reads_its_own_stages_of_the_matrix_and_no_others() {
        for products in launches() {
            let lists = Lists::new(&products, 132);
            for s in lists.segments.iter().filter(|s| s.n > 0) {
                let product = &products[s.part as usize];
                let bytes =
                    product.format().matrix_bytes(product.weights[0].rows, product.weights[0].cols) as u64;
                for (i, (from, tiles)) in s.weights.into_iter().zip(s.tiles).enumerate() {
                    let base = product.weights[if product.is_pair { i } else { 0 }].tiles;
                    let end = from + u64::from(s.n * tiles * s.stage_bytes);
                    assert!(from >= base && end <= base + bytes, "{s:?}");
                }
            }
        }
    }
}
