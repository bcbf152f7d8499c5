//! Who does what of a launch: each block's segments, as `kernels/linear_params.cuh` has them.

use crate::driver::Range;

use super::ends::Ends;
use super::layout::{CELL_COLS, FLOAT, Format, HALF_OUTPUTS, TILE_OUTPUTS, Work, shares};

/// What a stage costs at least: below this a block waits for barriers and memory's latency, not for bytes. (A launch with
/// two f32 matrices of 48 outputs took 34 us when shares went by bytes alone, 19 with this.)
pub(super) const LEAST_STAGE_BYTES: usize = 36864;
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

    /// Which input a unit's stage needs: `INPUT_FLOAT` and `INPUT_TWO` of `linear_ring.cuh`.
    fn input(&self, stage: u32) -> u32 {
        let n_cells = self.weights[0].cols.div_ceil(CELL_COLS) as u32;
        // Float weights may be several planes of all columns, one after the other, that meet the same input.
        if self.format().id == FLOAT {
            return (stage % n_cells) | (1 << 31);
        }
        (2 * stage) | if 2 * stage + 1 < n_cells { 1 << 30 } else { 0 }
    }

    /// Stages of a unit, the `own`th of its parts; how many there are and who ends it are not known yet.
    fn segment(&self, part: usize, unit: usize, stages: std::ops::Range<usize>, own: usize) -> Segment {
        let [(a, tiles_a), (b, tiles_b)] = self.halves(unit, stages.start);
        Segment {
            weights: [a, b],
            tiles: [tiles_a, tiles_b],
            n: stages.len() as u32,
            first_stage: stages.start as u32,
            stage_bytes: self.format().stage_bytes() as u32,
            format: self.format().id,
            part: part as u32,
            unit: unit as u32,
            own: own as u16,
            ..Segment::default()
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

/// Where a launch's weights lie, if that is no more than `most`, as they do where they were loaded one after another; else the largest matrix.
pub(super) fn range_of(products: &[Product], most: usize) -> Range {
    let ranges = || {
        let weights = products.iter().flat_map(|p| p.weights);
        weights.map(|w| Range { at: w.tiles, bytes: w.format.matrix_bytes(w.rows, w.cols) })
    };
    let first = ranges().map(|r| r.at).min().unwrap_or(0);
    let end = ranges().map(|r| r.at + r.bytes as u64).max().unwrap_or(first);
    let all = Range { at: first, bytes: (end - first) as usize };
    if all.bytes <= most { all } else { ranges().max_by_key(|r| r.bytes).unwrap_or(all) }
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
    first_place: u32,
    n_parts: u32,
    own: u16,
    owner: u16,
    n_owners: u16,
    n_of_block: u16,
}

/// Of `own`: this is no part of the unit; of `owner`: it is ended elsewhere.
const NONE: u16 = u16::MAX;

const SEGMENT_BYTES: usize = 64;

impl Segment {
    /// As the device reads it.
    pub(super) fn bytes(&self) -> [u8; SEGMENT_BYTES] {
        let words = [self.n, self.first_stage, self.stage_bytes, self.format, self.part, self.unit];
        let words = self.tiles.into_iter().chain(words).chain([self.first_place, self.n_parts]);
        let owners = [self.own, self.owner, self.n_owners, self.n_of_block];
        let bytes = self.weights.into_iter().flat_map(u64::to_le_bytes);
        let bytes = bytes.chain(words.flat_map(u32::to_le_bytes));
        let bytes = bytes.chain(owners.into_iter().flat_map(u16::to_le_bytes));
        let mut all = [0; SEGMENT_BYTES];
        all.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        all
    }
}

/// First what others end, so that nobody waits for sums that are made behind a wait. Of the units of several parts that the block ends itself all but the
/// last leave their sums too, and are ended when it has no stages left: the other parts may not be there yet, and what is on its
/// way would wait with them (7.6 us with 16 rows, where an end takes 3.3).
fn end_last(list: &mut Vec<Segment>) {
    list.sort_by_key(|s| s.owner != NONE);
    let last = list.len().saturating_sub(1);
    let mut late = Vec::new();
    for s in list[..last].iter_mut().filter(|s| s.owner != NONE && s.n_parts > 1) {
        late.push(Segment { n: 0, own: NONE, ..*s });
        s.owner = NONE;
    }
    list.extend(late);
}

/// Places for sums, times the number of blocks: a block can begin in one unit and end in another, and has one for units of its own.
pub(super) const PLACES: usize = 3;

/// Every block's share of a launch, as the device reads it.
pub(super) struct Lists {
    /// `of_block` for each block, of which the last is of no unit.
    pub segments: Vec<Segment>,
    pub of_block: usize,
    /// Which input each stage of a block needs: `stages.most` for each block.
    wanted: Vec<u32>,
    pub stages: Stages,
}

/// How many stages a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stages {
    pub of_all: usize,
    /// Of a block, as a multiple of four.
    pub most: usize,
}

impl Lists {
    pub(super) fn new(products: &[Product], n_blocks: usize) -> Self {
        let works: Vec<Work> = products.iter().map(Product::work).collect();
        // Where there is a unit for every block, each is ended by one of them.
        let ends = match works[..] {
            [work] if work.units >= n_blocks => Some(Ends { units: work.units, blocks: n_blocks }),
            _ => None,
        };
        let starts = match &ends {
            Some(ends) => ends.shares(works[0]),
            None => shares(&works, n_blocks),
        };
        // In the order of stages: a unit's segments follow each other, and so do the places of their sums.
        let mut lists: Vec<Vec<Segment>> = vec![Vec::new(); n_blocks];
        let (mut first_item, mut n_places) = (0, 0);
        for (part, (product, work)) in products.iter().zip(&works).enumerate() {
            for unit in 0..work.units {
                let unit_first = first_item + unit * work.stages;
                let (mut made, mut n_owners) = (Vec::new(), 0);
                for (block, share) in starts.windows(2).enumerate() {
                    let first = unit_first.max(share[0] as usize);
                    let end = (unit_first + work.stages).min(share[1] as usize);
                    if first >= end {
                        continue;
                    }
                    // Whoever has nothing to do after the unit ends some of its rows.
                    let owner = match &ends {
                        Some(ends) if ends.of_block(block).contains(&unit) => 0,
                        None if made.is_empty() || end == share[1] as usize => n_owners,
                        _ => NONE,
                    };
                    n_owners += u16::from(owner != NONE);
                    let stages = first - unit_first..end - unit_first;
                    made.push((block, lists[block].len()));
                    lists[block]
                        .push(Segment { owner, ..product.segment(part, unit, stages, made.len() - 1) });
                }
                let n_parts = made.len() as u32;
                for &(block, at) in &made {
                    lists[block][at] =
                        Segment { first_place: n_places, n_parts, n_owners, ..lists[block][at] };
                }
                n_places += if n_parts > 1 { n_parts } else { 0 };
            }
            first_item += work.items();
        }
        lists.iter_mut().for_each(end_last);
        // The blocks of a launch come in as those of the launch ahead leave, the last of them 1.8 us behind most others: they take what
        // is short and what nobody's end waits for.
        let cost = |list: &[Segment]| -> usize {
            list.iter().map(|s| s.n as usize * works[s.part as usize].stage_bytes).sum()
        };
        let stages_of = |list: &[Segment]| list.iter().map(|s| s.n).sum::<u32>();
        let gathers = |list: &[Segment]| list.iter().any(|s| s.owner == 0 && s.n_parts > 1);
        lists.sort_by_key(|list| std::cmp::Reverse((gathers(list), cost(list))));

        let of_block = 1 + lists.iter().map(Vec::len).max().unwrap_or(0);
        let of_blocks = lists.iter().map(|list| stages_of(list) as usize);
        let most = of_blocks.clone().max().unwrap_or(0).next_multiple_of(4);
        let stages = Stages { of_all: of_blocks.sum(), most };
        let mut wanted = Vec::with_capacity(n_blocks * most);
        for (block, list) in lists.iter_mut().enumerate() {
            for s in list.iter_mut() {
                if s.n_parts == 1 {
                    s.first_place = ((PLACES - 1) * n_blocks + block) as u32;
                }
                wanted
                    .extend((s.first_stage..s.first_stage + s.n).map(|i| products[s.part as usize].input(i)));
            }
            wanted.resize((block + 1) * most, 0);
            // (More stages than that have no room in shared memory.)
            let n_of_block = stages_of(list) as u16;
            list.resize(of_block, Segment::default());
            list[0].n_of_block = n_of_block;
        }
        Self { segments: lists.concat(), of_block, wanted, stages }
    }

    /// The most that a stage of a block takes.
    pub(super) fn stage_bytes(&self) -> usize {
        let bytes = |s: &Segment| (s.tiles[0] + s.tiles[1]) * s.stage_bytes;
        self.segments.iter().map(bytes).max().unwrap_or(0) as usize
    }

    /// What they take of a block's shared memory, and of the device's for each block.
    pub(super) fn block_bytes(&self) -> usize {
        self.of_block * SEGMENT_BYTES + self.stages.most * WANTED_BYTES
    }

    /// Block after block.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let lists = self.segments.chunks(self.of_block).zip(self.wanted.chunks(self.stages.most.max(1)));
        lists
            .flat_map(|(segments, wanted)| {
                let wanted = wanted.iter().flat_map(|input| input.to_le_bytes());
                segments.iter().flat_map(Segment::bytes).chain(wanted)
            })
            .collect()
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

    /// A launch of the 27B's, with two small float matrices beside a large one; a pair; the fewest stages there can be; heads, also of small models.
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
            vec![single(DType::Q8_0, 100_000, 256)],
            vec![single(DType::Q4_K, 151_936, 512)],
        ]
    }

    /// As the stages of the launch follow each other, whoever takes them.
    fn in_order(lists: &Lists) -> Vec<&Segment> {
        let mut segments: Vec<_> = lists.segments.iter().filter(|s| s.n > 0).collect();
        segments.sort_by_key(|s| (s.part, s.unit, s.first_stage));
        segments
    }

    #[test]
    fn who_gathers_comes_first_and_who_has_least_comes_last() {
        let lists = Lists::new(&launches()[1], 132);
        let blocks: Vec<_> = lists.segments.chunks(lists.of_block).collect();
        let gathers = |list: &[Segment]| list.iter().any(|s| s.owner == 0 && s.n_parts > 1);
        assert_eq!(blocks.iter().take_while(|list| gathers(list)).count(), 20, "a unit each");
        assert!(!blocks[20..].iter().any(|list| gathers(list)));
        let stages: Vec<_> = blocks[20..].iter().map(|list| list[0].n_of_block).collect();
        assert!(stages.is_sorted_by(|a, b| a >= b) && stages[0] > stages[111]);
    }

    #[test]
    fn who_ends_two_units_has_fewer_stages() {
        let lists = Lists::new(&launches()[2], 132);
        let of_block = lists.segments.chunks(lists.of_block).map(|list| {
            let ends = list.iter().filter(|s| s.n_parts > 0 && s.owner == 0).count();
            (ends, list[0].n_of_block)
        });
        let mut blocks: Vec<_> = of_block.collect();
        blocks.sort_unstable();
        assert_eq!(blocks[..40], [(1, 20); 40]);
        assert_eq!(blocks[40..128], [(1, 21); 88]);
        assert_eq!(blocks[128..], [(2, 18); 4], "136 units for 132 blocks");
    }

    #[test]
    fn weights_side_by_side_are_one_range_and_of_others_the_largest_counts() {
        let matrix = |rows, at| weights(DType::Q4_K, rows, 1024, at);
        let bytes = |rows| matrix(rows, 0).format.matrix_bytes(rows, 1024);
        let beside = [Product::pair(matrix(512, 1 << 40), matrix(512, (1 << 40) + 500_000), 1)];
        assert_eq!(range_of(&beside, 1 << 27), Range { at: 1 << 40, bytes: 500_000 + bytes(512) });
        let apart = [Product::single(matrix(256, 1 << 40), 1), Product::single(matrix(512, 1 << 41), 1)];
        assert_eq!(range_of(&apart, 1 << 27), Range { at: 1 << 41, bytes: bytes(512) });
    }

    #[test]
    fn a_stage_is_told_its_input() {
        //  type, columns, what its first and last stages want
        for (dtype, cols, first, last) in [
            (DType::Q4_K, 1024, 1 << 30, 6 | (1 << 30)),
            (DType::Q4_K, 896, 1 << 30, 6),
            (DType::F16, 256, 1 << 31, 1 | (1 << 31)),
            (DType::F32, 256, 1 << 31, 1 | (1 << 31)),
        ] {
            let lists = Lists::new(&[Product::single(weights(dtype, 256, cols, 0), 1)], 1);
            let n = lists.segments[0].n_of_block as usize;
            assert_eq!((lists.wanted[0], lists.wanted[n - 1]), (first, last), "{dtype} {cols}");
            assert_eq!(lists.bytes().len(), lists.block_bytes());
        }
    }

    #[test]
    fn every_stage_of_every_unit_is_one_blocks() {
        for (i, products) in launches().iter().enumerate() {
            for n_blocks in [1, 20, 132, 256] {
                let lists = Lists::new(products, n_blocks);
                assert_eq!(lists.segments.len(), n_blocks * lists.of_block);
                for list in lists.segments.chunks(lists.of_block) {
                    assert_eq!(list.last().map(|s| s.n_parts), Some(0), "a list ends");
                    let stages: usize = list.iter().map(|s| s.n as usize).sum();
                    assert!(stages <= lists.stages.most && stages == list[0].n_of_block as usize);
                }
                let seen = in_order(&lists);
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
                let of_all: u32 = lists.segments.iter().map(|s| s.n).sum();
                assert_eq!(lists.stages.of_all, of_all as usize);
            }
        }
    }

    #[test]
    fn every_part_of_a_unit_has_a_place_and_only_blocks_that_are_done_end_rows() {
        for products in launches() {
            for n_blocks in [1, 20, 132, 256] {
                let lists = Lists::new(&products, n_blocks);
                let (mut places, mut of_unit) = (0, 0);
                for s in in_order(&lists) {
                    assert_eq!((s.own, s.first_stage == 0), (of_unit, s.own == 0), "parts in order");
                    assert!((1..=s.n_parts).contains(&u32::from(s.n_owners)));
                    of_unit += 1;
                    if s.n_parts > 1 {
                        assert_eq!(s.first_place, places, "each has a place of its own");
                    }
                    if u32::from(of_unit) == s.n_parts {
                        places += if s.n_parts > 1 { s.n_parts } else { 0 };
                        of_unit = 0;
                    }
                }
                assert!(of_unit == 0 && places as usize <= (PLACES - 1) * n_blocks);
                for (block, list) in lists.segments.chunks(lists.of_block).enumerate() {
                    let n = list.iter().take_while(|s| s.n_parts > 0).count();
                    for s in &list[..n] {
                        let place = (PLACES - 1) * n_blocks + block;
                        assert!(s.n_parts > 1 || s.first_place as usize == place);
                    }
                    let waits = |s: &Segment| s.owner != NONE && s.n_parts > 1;
                    let at = list[..n].iter().position(waits).unwrap_or(n);
                    let stages_left = list[at..n].iter().skip(1).map(|s| s.n).sum::<u32>();
                    assert_eq!(stages_left, 0, "it would wait with work left");
                }
                // Each row of every unit has one owner.
                let mut owners: Vec<_> =
                    lists.segments.iter().filter(|s| s.n_parts > 0 && s.owner != NONE).collect();
                owners.sort_by_key(|s| (s.part, s.unit, s.owner));
                for of_unit in owners.chunk_by(|a, b| (a.part, a.unit) == (b.part, b.unit)) {
                    let nth: Vec<_> = of_unit.iter().map(|s| s.owner).collect();
                    assert_eq!(nth, (0..of_unit[0].n_owners).collect::<Vec<_>>());
                }
                let units: usize = products.iter().map(|p| p.work().units).sum();
                assert_eq!(owners.iter().filter(|s| s.owner == 0).count(), units);
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
