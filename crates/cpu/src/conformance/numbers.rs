//! Inputs and weights of the table: reproducible random numbers, and matrices of every type made from them.

use half::f16;
use overdraft_formats::{Bytes, DType};
use overdraft_plan::Matrix;

/// SplitMix64: the same numbers on every machine, from a seed that names what they are for.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Evenly in `0..1`, never 0.
    pub fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    }

    pub fn gaussian(&mut self) -> f32 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit()).cos()
    }

    pub fn gaussians(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| size * self.gaussian()).collect()
    }
}

/// A matrix of `f32` numbers.
pub fn float_matrix(name: &str, values: &[f32], cols: usize) -> Matrix {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let rows = values.len() / cols;
    Matrix::new(name.into(), DType::F32, rows, cols, vec![Bytes::from_vec(bytes)])
        .expect("the caller gives whole rows")
}

/// `[rows, cols]` of the type, entries about 0.05 in size, in `parts` pieces of equally many rows.
pub fn random_matrix(random: &mut Random, dtype: DType, rows: usize, cols: usize, parts: usize) -> Matrix {
    let mut pieces = Vec::with_capacity(parts);
    for _ in 0..parts {
        let mut bytes = Vec::new();
        for _ in 0..rows / parts {
            let values = random.gaussians(cols, 0.05);
            if dtype.encode_row(&values, &mut bytes).is_err() {
                push_random_blocks(random, dtype, cols, &mut bytes);
            }
        }
        pieces.push(Bytes::from_vec(bytes));
    }
    Matrix::new(format!("random {dtype}"), dtype, rows, cols, pieces)
        .expect("the table has whole blocks only")
}

/// Types without an encoder: any codes are valid, only the scales must be sane. Given as (byte of the half float, its
/// size); sizes make entries come out about 0.05.
fn scale_fields(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_1 => &[(0, 0.01), (2, -0.075)],
        DType::Q5_0 => &[(0, 0.005)],
        DType::Q5_1 => &[(0, 0.005), (2, -0.075)],
        DType::Q2_K => &[(80, 0.006), (82, 0.007)],
        DType::Q3_K => &[(108, 0.001)],
        DType::Q5_K => &[(0, 1e-4), (2, 0.0015)],
        DType::IQ4_NL => &[(0, 7e-4)],
        DType::IQ4_XS => &[(0, 4e-5)],
        _ => &[],
    }
}

fn push_random_blocks(random: &mut Random, dtype: DType, cols: usize, out: &mut Vec<u8>) {
    if dtype == DType::F64 {
        return out.extend((0..cols).flat_map(|_| (0.05 * random.gaussian() as f64).to_le_bytes()));
    }
    for _ in 0..cols / dtype.block_len() {
        let at = out.len();
        out.extend((0..dtype.block_bytes()).map(|_| random.bits() as u8));
        let fields = scale_fields(dtype);
        assert!(!fields.is_empty(), "{dtype} has neither an encoder nor known scale fields");
        for (field, size) in fields {
            let scale = f16::from_f32(size * (0.5 + random.unit()));
            out[at + field..at + field + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_matrices_of_every_type_have_sane_entries() {
        let mut random = Random::new(1);
        for dtype in DType::all().filter(|d| d.is_decodable()) {
            let m = random_matrix(&mut random, dtype, 8, 512, 2);
            let mut values = vec![0.0; 512];
            let mut squares = 0.0;
            for row in 0..8 {
                dtype.decode_row(m.row_range(row, 1), &mut values).unwrap();
                squares += values.iter().map(|v| v * v).sum::<f32>();
            }
            let rms = (squares / (8.0 * 512.0)).sqrt();
            assert!((0.02..0.15).contains(&rms), "{dtype}: {rms}");
        }
    }
}
