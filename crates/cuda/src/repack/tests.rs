use overdraft_formats::{Bytes, DType};
use overdraft_plan::Matrix;

use super::layout::Format;
use super::pack::pack;
use super::unpack;

/// Random blocks with scales of ordinary size.
pub(super) fn random_matrix(dtype: DType, rows: usize, cols: usize, seed: u64) -> Matrix {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 32
    };
    let mut bytes = Vec::new();
    let block_bytes = dtype.block_bytes();
    for _ in 0..rows * cols / dtype.block_len() {
        let mut block: Vec<u8> = (0..block_bytes).map(|_| next() as u8).collect();
        let halves: &[usize] = match dtype {
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
            _ => &[],
        };
        for &at in halves {
            // 2^-9 to 2^-5, either sign.
            let half = (next() as u16 & 0x8fff) % 0x1000 + 0x1800 + (next() as u16 & 0x8000);
            block[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        let value = (next() as f32 / 4294967296.0 - 0.5) * 0.2;
        match dtype {
            DType::MXFP4 => block[0] = 116 + block[0] % 8,
            DType::F32 => block.copy_from_slice(&value.to_le_bytes()),
            DType::F16 => block.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            _ => {}
        }
        bytes.extend(block);
    }
    Matrix::new(format!("{dtype}"), dtype, rows, cols, vec![Bytes::from_vec(bytes)]).expect("whole rows")
}

pub(super) fn decoded(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.rows * matrix.cols];
    for (o, row) in values.chunks_exact_mut(matrix.cols).enumerate() {
        matrix.dtype.decode_row(matrix.row_range(o, 1), row).expect("whole rows");
    }
    values
}

/// The weights that tiles hold, `[rows, cols]`, in f64.
fn unpacked(matrix: &Matrix, format: Format) -> Vec<f64> {
    let packed = pack(matrix, format, 2);
    let n_records = format.n_records(matrix.cols);
    let plane_records = n_records / format.planes;
    let mut values = vec![0f64; matrix.rows * matrix.cols];
    let half_bytes = 8 * n_records * format.tile_bytes;
    for (half, bytes) in packed.tiles.chunks(half_bytes).enumerate() {
        // As the kernels go: stages, in each the tiles, in each its records.
        let tiles = bytes.len() / (n_records * format.tile_bytes);
        let mut records = bytes.chunks_exact(format.tile_bytes);
        for stage in (0..n_records).step_by(format.stage_records) {
            for place in 0..tiles {
                for record in stage..stage + format.stage_records {
                    let tile = records.next().expect("as many tiles");
                    let weights = unpack::tile(matrix.dtype, tile, format.record_cols);
                    for (i, w) in weights.iter().enumerate() {
                        let row = (half * 8 + place) * 16 + i / format.record_cols;
                        let col = record % plane_records * format.record_cols + i % format.record_cols;
                        if row < matrix.rows && col < matrix.cols {
                            values[row * matrix.cols + col] += f64::from(*w) * f64::from(packed.scales[row]);
                        } else {
                            assert_eq!(*w, 0.0, "{}: padding at {row}, {col}", matrix.dtype);
                        }
                    }
                }
            }
        }
        assert!(records.next().is_none());
    }
    values
}

fn formats() -> impl Iterator<Item = (DType, Format)> {
    DType::all().filter_map(|d| Some((d, Format::of(d)?)))
}

#[test]
fn tiles_hold_the_weights_of_the_file() {
    for (dtype, format) in formats() {
        // Whole halves and a short one; for the smaller blocks a last record that is half empty.
        let (rows, cols) = (128 + 40, if dtype.block_len() == 256 { 512 } else { 352 });
        let matrix = random_matrix(dtype, rows, cols, 7);
        let (found, expected) = (unpacked(&matrix, format), decoded(&matrix));
        // An f32 is two f16, 22 bits, and no finer than 2^-39 of the output's largest. All others are exact.
        let (relative, absolute) =
            if dtype == DType::F32 { (2f64.powi(-22), 2f64.powi(-42)) } else { (0.0, 0.0) };
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let expected = f64::from(*expected);
            let close = (found - expected).abs() <= relative * expected.abs() + absolute;
            assert!(close, "{dtype} at {}, {}: {found} for {expected}", i / cols, i % cols);
        }
    }
}

#[test]
fn float_outputs_of_any_size_fit_f16() {
    for dtype in [DType::BF16, DType::F32] {
        let sizes = [1e-38f32, 1e-30, 1e-6, 1.0, 1e6, 1e30, 3e38];
        let values: Vec<f32> =
            sizes.iter().flat_map(|&s| (0..64).map(move |i| s * ((i as f32 - 31.0) / 32.0))).collect();
        let mut bytes = Vec::new();
        dtype.encode_row(&values, &mut bytes).expect("floats encode");
        let matrix = Matrix::new("m".into(), dtype, sizes.len(), 64, vec![Bytes::from_vec(bytes)])
            .expect("whole rows");
        let format = Format::of(dtype).expect("a float format");
        for (i, (found, expected)) in unpacked(&matrix, format).iter().zip(decoded(&matrix)).enumerate() {
            let (expected, largest) = (f64::from(expected), f64::from(sizes[i / 64]));
            let close =
                (found - expected).abs() <= 2f64.powi(-22) * expected.abs() + 2f64.powi(-38) * largest;
            assert!(close, "{dtype} {i}: {found} for {expected}");
        }
    }
}
