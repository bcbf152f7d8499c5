//! A whole matrix as tiles.

use overdraft_plan::Matrix;

use super::blocks;
use super::floats;
use super::layout::{Format, HALF_OUTPUTS, TILE_OUTPUTS};
use super::scales::Powers;

pub(super) struct Packed {
    pub tiles: Vec<u8>,
    /// What each output's sums are multiplied by.
    pub scales: Vec<f32>,
}

/// Halves are packed side by side by `threads` threads: all of a model passes through here as it is loaded.
pub(super) fn pack(matrix: &Matrix, format: Format, threads: usize) -> Packed {
    let mut tiles = vec![0; format.matrix_bytes(matrix.rows, matrix.cols)];
    let mut scales = vec![1f32; matrix.rows];
    let half_bytes = HALF_OUTPUTS / TILE_OUTPUTS * format.n_records(matrix.cols) * format.tile_bytes;
    let halves = tiles.chunks_mut(half_bytes).zip(scales.chunks_mut(HALF_OUTPUTS)).enumerate();
    let halves = std::sync::Mutex::new(halves);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, matrix.rows.div_ceil(HALF_OUTPUTS)) {
            scope.spawn(|| {
                loop {
                    // A thread that panicked has ended the scope's owner as well.
                    let Some((half, (tiles, scales))) =
                        halves.lock().expect("no packing thread panics").next()
                    else {
                        return;
                    };
                    pack_half(matrix, format, half * HALF_OUTPUTS, tiles, scales);
                }
            });
        }
    });
    Packed { tiles, scales }
}

fn pack_half(matrix: &Matrix, format: Format, first: usize, tiles: &mut [u8], scales: &mut [f32]) {
    if matrix.dtype.is_quantised() {
        pack_blocks(matrix, format, first, tiles, scales);
    } else {
        pack_floats(matrix, format, first, tiles, scales);
    }
}

fn pack_blocks(matrix: &Matrix, format: Format, first: usize, tiles: &mut [u8], scales: &mut [f32]) {
    // Of outputs past the end there are no scales to multiply.
    let mut powers = [Powers::default(); HALF_OUTPUTS];
    for (o, (powers, scale)) in powers.iter_mut().zip(scales).enumerate() {
        let high = o % TILE_OUTPUTS >= TILE_OUTPUTS / 2;
        *powers = Powers::of(matrix.dtype, matrix.row_range(first + o, 1), high);
        *scale = powers.undo(matrix.dtype);
    }
    let n_records = format.n_records(matrix.cols);
    let record_bytes = format.record_cols / matrix.dtype.block_len() * matrix.dtype.block_bytes();
    // Of outputs and columns past the end: zero scales make them nothing.
    let nothing = vec![0; record_bytes];
    let mut padded = [(); TILE_OUTPUTS].map(|()| vec![0; record_bytes]);
    for_records(format, n_records, tiles, |tile, place, record| {
        let place = place * TILE_OUTPUTS;
        let (first, powers) = (first + place, std::array::from_fn(|o| powers[place + o]));
        let rows = std::array::from_fn(|o| {
            if first + o >= matrix.rows {
                return &nothing[..];
            }
            let row = matrix.row_range(first + o, 1);
            let from = record * record_bytes;
            &row[from.min(row.len())..row.len().min(from + record_bytes)]
        });
        if rows.iter().all(|row| row.len() == record_bytes) {
            blocks::pack_tile(matrix.dtype, &rows, &powers, tile);
        } else {
            for (padded, row) in padded.iter_mut().zip(rows) {
                padded[..row.len()].copy_from_slice(row);
                padded[row.len()..].fill(0);
            }
            blocks::pack_tile(matrix.dtype, &padded.each_ref().map(|p| &p[..]), &powers, tile);
        }
    });
}

/// Every tile's every record of a half: its bytes, tile and record.
fn for_records(
    format: Format,
    n_records: usize,
    half: &mut [u8],
    mut make: impl FnMut(&mut [u8], usize, usize),
) {
    let n_tiles = half.len() / (n_records * format.tile_bytes);
    for tile in 0..n_tiles {
        for record in 0..n_records {
            let at = format.record_at(n_tiles, tile, record);
            make(&mut half[at..at + format.tile_bytes], tile, record);
        }
    }
}

fn pack_floats(matrix: &Matrix, format: Format, first: usize, tiles: &mut [u8], scales: &mut [f32]) {
    let cols = matrix.cols;
    let mut values = vec![0f32; scales.len() * cols];
    for (o, (row, scale)) in values.chunks_exact_mut(cols).zip(scales).enumerate() {
        let bytes = matrix.row_range(first + o, 1);
        matrix.dtype.decode_row(bytes, row).expect("a matrix holds whole rows of its type");
        *scale = floats::scale_up(matrix.dtype, row);
    }
    let n_records = format.n_records(cols);
    let plane_records = n_records / format.planes;
    for_records(format, n_records, tiles, |tile, place, record| {
        let first = place * TILE_OUTPUTS;
        let rows = std::array::from_fn(|o| values.chunks_exact(cols).nth(first + o).unwrap_or_default());
        floats::pack_tile(&rows, record % plane_records * format.record_cols, record / plane_records, tile);
    });
}
