//! Encoders of the types with one scale a block: Q8_0, Q4_0 and MXFP4. The first two give ggml's bytes.

use half::f16;

use super::codebook::{MXFP4_VALUES, mxfp4_scale};
use super::{CodecError, DType};

/// Refuses what a block type cannot hold, before anything is written.
pub(super) fn check_range(dtype: DType, values: &[f32], largest: f32) -> Result<(), CodecError> {
    for (index, &v) in values.iter().enumerate() {
        if !v.is_finite() {
            return Err(CodecError::NotFinite { dtype, index, value: v.to_string() });
        }
        if v.abs() > largest {
            return Err(CodecError::TooLarge { dtype, index, value: format!("{v:e}") });
        }
    }
    Ok(())
}

/// The element of greatest magnitude, with its sign; the first of equals.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

/// 1/d, or 0 when a block with scale d decodes to zeros anyway because d vanishes in half precision.
fn inverse(d: f32) -> f32 {
    if f16::from_f32(d).to_f32() == 0.0 { 0.0 } else { 1.0 / d }
}

fn push_f16(out: &mut Vec<u8>, v: f32) {
    out.extend_from_slice(&f16::from_f32(v).to_le_bytes());
}

/// 16 bytes of 4-bit codes: elements 0-15 low, 16-31 high.
fn push_nibbles(out: &mut Vec<u8>, codes: &[u8; 32]) {
    out.extend((0..16).map(|i| codes[i] | codes[i + 16] << 4));
}

pub(super) fn encode_q8_0(values: &[f32], out: &mut Vec<u8>) {
    for x in values.as_chunks::<32>().0 {
        let d = extreme(x).abs() / 127.0;
        let inv = inverse(d);
        push_f16(out, d);
        out.extend(x.iter().map(|v| (v * inv).round() as i8 as u8));
    }
}

/// The greatest element becomes −8, the end of the range that reaches further.
pub(super) fn encode_q4_0(values: &[f32], out: &mut Vec<u8>) {
    for x in values.as_chunks::<32>().0 {
        let d = extreme(x) / -8.0;
        let inv = inverse(d);
        push_f16(out, d);
        push_nibbles(out, &x.map(|v| ((v * inv + 8.5) as u8).min(15)));
    }
}

/// The code whose value, in units of the block's scale, is nearest; the smaller magnitude of equals.
fn nearest_mxfp4(units: f32) -> u8 {
    let magnitude = units.abs();
    let (mut best, mut distance) = (0u8, magnitude);
    for code in 1..8u8 {
        let d = (f32::from(MXFP4_VALUES[usize::from(code)]) - magnitude).abs();
        if d < distance {
            (best, distance) = (code, d);
        }
    }
    if units < 0.0 && best > 0 { best | 8 } else { best }
}

/// The exponent that puts the greatest magnitude between 8 and 16 units of a table that ends at 12. Blocks that
/// MXFP4 can hold are therefore kept exactly; this is no attempt at the best rounding of others.
pub(super) fn encode_mxfp4(values: &[f32], out: &mut Vec<u8>) {
    for x in values.as_chunks::<32>().0 {
        let largest = f64::from(extreme(x).abs());
        let e =
            if largest == 0.0 { 0 } else { (largest.log2().floor() as i32 - 3 + 128).clamp(0, 254) as u8 };
        let d = f64::from(mxfp4_scale(e));
        out.push(e);
        push_nibbles(out, &x.map(|v| nearest_mxfp4((f64::from(v) / d) as f32)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;

    const BLOCK_TYPES: [DType; 5] = [Q8_0, Q4_0, MXFP4, Q4_K, Q6_K];

    fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0xAA];
        dtype.encode_row(values, &mut bytes).unwrap();
        assert_eq!(bytes[0], 0xAA, "{dtype} appends");
        let mut back = vec![f32::NAN; values.len()];
        dtype.decode_row(&bytes[1..], &mut back).unwrap();
        back
    }

    /// Normal deviates from a fixed seed: sums of twelve uniforms.
    fn gaussian(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
    }

    fn relative_error(dtype: DType, x: &[f32]) -> f64 {
        let back = round_trip(dtype, x);
        let square = |v: f32| f64::from(v) * f64::from(v);
        let error: f64 = x.iter().zip(&back).map(|(a, b)| square(a - b)).sum();
        (error / x.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
    }

    #[test]
    #[rustfmt::skip]
    fn gaussian_data_keeps_its_error_bound_at_every_magnitude() {
        // Measured: 0.0052, 0.0836, 0.1158, 0.0690, 0.0170.
        for scale in [1e-3, 1.0, 30.0] {
            let x: Vec<f32> = gaussian(256 * 64, 1).iter().map(|v| v * scale).collect();
            for (dtype, bound) in [
                (Q8_0, 0.0055),
                (Q4_0, 0.0850),
                (MXFP4, 0.1180),
                (Q4_K, 0.0705),
                (Q6_K, 0.0175),
            ] {
                let error = relative_error(dtype, &x);
                assert!(error < bound, "{dtype} at {scale}: {error:.5}");
            }
        }
    }

    #[test]
    fn zeros_stay_zeros_and_vanishing_values_become_zeros() {
        for dtype in BLOCK_TYPES {
            for value in [0.0f32, -0.0, f32::from_bits(1), -1e-30, 1e-40] {
                if dtype == MXFP4 && value != 0.0 {
                    continue; // its scales reach down there
                }
                assert!(round_trip(dtype, &[value; 256]).iter().all(|&v| v == 0.0), "{dtype} of {value:e}");
            }
        }
    }

    #[test]
    fn constants_keep_their_value() {
        for dtype in BLOCK_TYPES {
            for value in [1.0f32, -1.0, 0.37, -0.37, 1000.0, -2e-2] {
                // MXFP4 ends at 3/4 of its scale's span. The others err by the rounding of a half-float scale,
                // which for Q6_K of 0.02 is a subnormal with 7 bits.
                let bound = value.abs() * if dtype == MXFP4 { 0.25 } else { 0.005 };
                for back in round_trip(dtype, &[value; 256]) {
                    assert!((back - value).abs() <= bound, "{dtype} of {value}: {back}");
                }
            }
        }
    }

    #[test]
    fn one_outlier_among_zeros_is_kept_and_stays_alone() {
        for dtype in BLOCK_TYPES {
            for outlier in [8.0f32, -8.0] {
                let mut x = [0.0; 256];
                x[77] = outlier;
                let back = round_trip(dtype, &x);
                assert!((back[77] - outlier).abs() < 0.05, "{dtype}: {}", back[77]);
                let rest = back.iter().enumerate().filter(|(i, _)| *i != 77).map(|(_, v)| v.abs());
                assert!(rest.fold(0.0, f32::max) < 0.05, "{dtype}");
            }
        }
    }

    #[test]
    fn the_greatest_allowed_magnitude_stays_finite_and_more_is_refused() {
        for dtype in BLOCK_TYPES {
            let largest = dtype.largest_encodable().unwrap();
            for sign in [1.0, -1.0] {
                let mut x: Vec<f32> = gaussian(256, 3).iter().map(|v| v * (largest / 8.0)).collect();
                x[100] = sign * largest;
                let back = round_trip(dtype, &x);
                assert!(back.iter().all(|v| v.is_finite()), "{dtype}");
                assert!((back[100] / x[100] - 1.0).abs() < 0.3, "{dtype}: {} of {}", back[100], x[100]);
                if largest < f32::MAX {
                    x[100] = sign * largest * 1.001;
                    let refused = dtype.encode_row(&x, &mut Vec::new());
                    assert!(matches!(refused, Err(CodecError::TooLarge { index: 100, .. })), "{dtype}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_refused_by_place_and_nothing_is_written() {
        for dtype in BLOCK_TYPES {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![1.0; 512];
                x[300] = bad;
                let mut out = vec![1, 2, 3];
                let refused = dtype.encode_row(&x, &mut out);
                assert!(matches!(refused, Err(CodecError::NotFinite { index: 300, .. })), "{dtype} {bad}");
                assert_eq!(out, [1, 2, 3], "{dtype}");
            }
        }
    }

    #[test]
    fn every_mxfp4_block_survives_unless_its_scale_was_wasteful() {
        let codes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        for e in 0..=251u8 {
            let block: Vec<u8> = std::iter::once(e).chain(codes.iter().copied()).collect();
            let mut x = [0.0; 32];
            MXFP4.decode_row(&block, &mut x).unwrap();
            assert_eq!(round_trip(MXFP4, &x), x, "exponent {e}");
        }
        // Small codes only: another exponent holds the same values.
        let small: Vec<f32> = (0..32).map(|i| [0.0f32, 0.5, 1.0, -1.5][i % 4]).collect();
        assert_eq!(round_trip(MXFP4, &small), small);
    }

    #[test]
    fn types_without_an_encoder_say_so() {
        for dtype in DType::all() {
            let encodes = [F32, F16, BF16].contains(&dtype) || BLOCK_TYPES.contains(&dtype);
            let refused = dtype.encode_row(&vec![0.0; dtype.block_len()], &mut Vec::new());
            assert_eq!(refused, if encodes { Ok(()) } else { Err(CodecError::NotEncodable(dtype)) });
        }
    }

    #[test]
    fn q8_0_and_q4_0_write_the_bytes_ggml_writes() {
        // d = 2/127 in f16 is 0x2408; q = round(x·63.5) with halves away from zero.
        let mut x = [0.0f32; 32];
        (x[0], x[1], x[2], x[31]) = (2.0, -1.0, 0.5, -2.0);
        let mut bytes = Vec::new();
        Q8_0.encode_row(&x, &mut bytes).unwrap();
        assert_eq!(bytes[..2], f16::from_f32(2.0 / 127.0).to_le_bytes());
        assert_eq!([bytes[2], bytes[3], bytes[4], bytes[33]].map(|b| b as i8), [127, -64, 32, -127]);

        // Greatest first: 2.0 becomes code 0 with d = −1/4, so −2.0 saturates at code 15, i.e. −1.75.
        bytes.clear();
        Q4_0.encode_row(&x, &mut bytes).unwrap();
        assert_eq!(bytes[..2], f16::from_f32(-0.25).to_le_bytes());
        assert_eq!([bytes[2], bytes[3], bytes[4], bytes[17]], [0x80, 0x8C, 0x86, 0xF8]);
    }
}
