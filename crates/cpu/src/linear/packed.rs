//! Quantised weights rearranged for the kernels: 16 rows side by side, in [`format`](super::format)'s units.

use super::codes::{BLOCK, Codes, LINE, OUTS, STEPS};
use super::format::{Format, Raw, Scales, half};
use super::isa::Isa;
use super::{WeightView, with_format};
use crate::pool::Pool;
use crate::shared::Shared;
use memmap2::MmapMut;
use overdraft_formats::DType;
use std::ops::Range;
use std::sync::Arc;

/// Weights `[n_out, n_in]` of a quantised type, in the order that the kernels of one instruction set read them.
#[derive(Clone)]
pub struct Packed {
    isa: Isa,
    dtype: DType,
    n_in: usize,
    n_out: usize,
    tile_bytes: usize,
    memory: Arc<MmapMut>,
    span: Range<usize>,
}

/// Packs matrices, each given as parts of whole rows that follow one another, with the threads of `pool`. All share one
/// run of memory, which the system may back with large pages.
///
/// # Errors
/// If the system does not give the memory.
///
/// # Panics
/// If a matrix is not quantised, or its parts differ in type or width.
pub fn pack(isa: Isa, pool: &Pool, matrices: &[Vec<WeightView<'_>>]) -> std::io::Result<Vec<Packed>> {
    let mut end = 0;
    let mut shapes = Vec::with_capacity(matrices.len());
    for parts in matrices {
        let first = parts.first().expect("a matrix has a part");
        let (dtype, n_in) = (first.dtype, first.n_in);
        assert!(
            parts.iter().all(|p| (p.dtype, p.n_in) == (dtype, n_in)),
            "parts of different types or widths"
        );
        let n_out: usize = parts.iter().map(WeightView::n_out).sum();
        let tile_bytes = with_format!(dtype, F => F::tile_bytes(n_in));
        let start = end;
        end += n_out.div_ceil(OUTS) * tile_bytes;
        shapes.push((dtype, n_in, n_out, tile_bytes, start..end));
    }
    let mut memory = MmapMut::map_anon(end.max(1))?;
    // Only a wish: without large pages a pass over the weights is slower by its page walks, and as right.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    let tiles = |n_out: usize| n_out.div_ceil(OUTS);
    let out = Shared::new(&mut memory[..end]);
    pool.run(shapes.iter().map(|s| tiles(s.2)).sum(), &|mut task| {
        for (parts, (dtype, n_in, n_out, tile_bytes, span)) in matrices.iter().zip(&shapes) {
            if task >= tiles(*n_out) {
                task -= tiles(*n_out);
                continue;
            }
            let rows = task * OUTS..(*n_out).min((task + 1) * OUTS);
            let at = span.start + task * tile_bytes;
            // SAFETY: a tile is written by one task.
            let tile = unsafe { out.write(at..at + tile_bytes) };
            with_format!(*dtype, F => pack_tile_for::<F>(isa, parts, rows, *n_in, tile));
            return;
        }
    });
    let memory = Arc::new(memory);
    let packed = shapes.into_iter().map(|(dtype, n_in, n_out, tile_bytes, span)| Packed {
        isa,
        dtype,
        n_in,
        n_out,
        tile_bytes,
        memory: Arc::clone(&memory),
        span,
    });
    Ok(packed.collect())
}

impl Packed {
    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn n_in(&self) -> usize {
        self.n_in
    }

    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Bytes the weights take now.
    pub fn n_bytes(&self) -> usize {
        self.span.len()
    }

    /// The tile that holds row `16 * tile`.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.memory[self.span.clone()][tile * self.tile_bytes..(tile + 1) * self.tile_bytes]
    }

    /// Row `row` as numbers, the bits that the type's own decoder gives.
    ///
    /// # Panics
    /// If there is no such row or `out` has not its length.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n_out && out.len() == self.n_in, "row {row} of {}, {}", self.n_out, out.len());
        with_format!(self.dtype, F => self.decode::<F>(row, out));
    }

    fn decode<F: Format>(&self, row: usize, out: &mut [f32]) {
        for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let block = self.block::<F>(row, b);
            for (e, (y, code)) in out.iter_mut().zip(block.codes).enumerate() {
                let group = if F::HALVES { e / 16 } else { 0 };
                let scaled = block.scale[group] * code as f32;
                *y = if F::MIN { scaled + block.min[group] } else { scaled };
            }
        }
    }

    /// Block `b` of a row, read the plain way.
    pub(crate) fn block<F: Format>(&self, row: usize, b: usize) -> Block {
        let unsigned = self.isa.wants_unsigned_codes();
        let lane = row % OUTS;
        let unit = &self.tile(row / OUTS)[b / F::UNIT * F::UNIT_BYTES..][..F::UNIT_BYTES];
        let in_unit = b % F::UNIT;
        let lines = unit[F::CODES_AT + in_unit * F::BLOCK_BYTES..][..F::BLOCK_BYTES].as_chunks::<LINE>().0;
        let offset = F::offset_log2(unsigned).map_or(0, |bits| 1 << bits);
        let mut codes = [0; BLOCK];
        for (e, code) in codes.iter_mut().enumerate() {
            *code = F::Codes::get(lines, e / 4, 4 * lane + e % 4, unsigned) - offset;
        }
        let word = |at: usize| u16::from_le_bytes([unit[at + 2 * lane], unit[at + 2 * lane + 1]]);
        let number = |at: usize, factor_at: usize, group: usize| {
            let at = at + (in_unit * F::GROUPS + group) * F::GROUP_BYTES;
            match F::SCALES {
                Scales::Half => half(word(at)),
                Scales::Top => f32::from_bits(u32::from(word(at)) << 16),
                Scales::Small => half(word(factor_at)) * f32::from(unit[at + lane] as i8),
            }
        };
        let (mut scale, mut min) = ([0.0; 2], [0.0; 2]);
        for group in 0..F::GROUPS {
            scale[group] = number(F::SCALES_AT, 0, group);
            if F::MIN {
                min[group] = number(F::MINS_AT, 2 * OUTS, group);
            }
        }
        Block { codes, scale, min }
    }
}

/// 32 elements of one row: `scale * code + min`, one of each for every scale group.
pub(crate) struct Block {
    pub(crate) codes: [i32; BLOCK],
    pub(crate) scale: [f32; 2],
    pub(crate) min: [f32; 2],
}

/// [`pack_tile`] compiled for an instruction set.
fn pack_tile_for<F: Format>(
    isa: Isa,
    parts: &[WeightView<'_>],
    rows: Range<usize>,
    n_in: usize,
    tile: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2<F: Format>(
        unsigned: bool,
        parts: &[WeightView<'_>],
        rows: Range<usize>,
        n_in: usize,
        tile: &mut [u8],
    ) {
        pack_tile::<F>(unsigned, parts, rows, n_in, tile);
    }
    let unsigned = isa.wants_unsigned_codes();
    match isa.kind() {
        // SAFETY: an `Isa` exists only where the CPU has it, and AVX-512 goes with AVX2.
        #[cfg(target_arch = "x86_64")]
        super::isa::Kind::Avx2 | super::isa::Kind::Avx512Vnni => unsafe {
            avx2::<F>(unsigned, parts, rows, n_in, tile)
        },
        _ => pack_tile::<F>(unsigned, parts, rows, n_in, tile),
    }
}

/// Lays `rows` of a matrix into a zeroed tile.
#[inline(always)]
fn pack_tile<F: Format>(
    unsigned: bool,
    parts: &[WeightView<'_>],
    rows: Range<usize>,
    n_in: usize,
    tile: &mut [u8],
) {
    let mut raw = Raw::ZERO;
    let mut codes = [[[0u8; BLOCK]; OUTS]; 8];
    let sources: [&[u8]; OUTS] = std::array::from_fn(|lane| {
        let mut row = rows.start + lane;
        if row >= rows.end {
            return &[][..];
        }
        for part in parts {
            if row < part.n_out() {
                return &part.bytes[row * part.row_bytes..(row + 1) * part.row_bytes];
            }
            row -= part.n_out();
        }
        &[][..]
    });
    let file_blocks = F::UNIT * BLOCK / F::LEN;
    for (u, unit) in tile.chunks_exact_mut(F::UNIT_BYTES).enumerate() {
        let n_blocks = F::UNIT.min(n_in / BLOCK - u * F::UNIT);
        for (lane, source) in sources.iter().enumerate().take(rows.len()) {
            let (at, end) = (u * file_blocks * F::BYTES, (u + 1) * file_blocks * F::BYTES);
            for (i, block) in source[at..end.min(source.len())].chunks_exact(F::BYTES).enumerate() {
                F::read(block, &mut raw);
                put_scales::<F>(&raw, i, lane, unit);
                let first = i * F::LEN / BLOCK;
                for (codes, raw) in codes[first..].iter_mut().zip(raw.codes[..F::LEN].as_chunks::<BLOCK>().0)
                {
                    codes[lane] = *raw;
                }
            }
        }
        let lines = unit[F::CODES_AT..].as_chunks_mut::<LINE>().0;
        for (codes, lines) in codes.iter().zip(lines.chunks_exact_mut(F::BLOCK_BYTES / LINE)).take(n_blocks) {
            F::Codes::put(codes, lines, unsigned);
        }
    }
}

/// Scales of file block `i` of a unit.
#[inline(always)]
fn put_scales<F: Format>(raw: &Raw, i: usize, lane: usize, unit: &mut [u8]) {
    let mut word = |at: usize, value: u16| unit[at + 2 * lane..][..2].copy_from_slice(&value.to_le_bytes());
    if F::SCALES != Scales::Small {
        word(i * F::GROUP_BYTES, raw.d);
        if F::MIN {
            word(F::MINS_AT + i * F::GROUP_BYTES, raw.min);
        }
        return;
    }
    word(0, raw.d);
    word(2 * OUTS, raw.min);
    for group in 0..STEPS * F::GROUPS {
        unit[F::SCALES_AT + group * OUTS + lane] = raw.scales[group] as u8;
        if F::MIN {
            unit[F::MINS_AT + group * OUTS + lane] = raw.mins[group] as u8;
        }
    }
}
