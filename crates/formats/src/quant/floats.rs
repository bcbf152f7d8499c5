//! Plain little-endian floats.

use half::{bf16, f16};

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks().0.iter().zip(out) {
        *y = f32::from_le_bytes(*b);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks().0.iter().zip(out) {
        *y = f16::from_le_bytes(*b).to_f32();
    }
}

/// BF16 is the upper half of an `f32`.
pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks().0.iter().zip(out) {
        *y = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
    }
}

pub(super) fn decode_f64(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.as_chunks().0.iter().zip(out) {
        *y = f64::from_le_bytes(*b) as f32;
    }
}

pub(super) fn encode_f32(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

pub(super) fn encode_f16(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()));
}

pub(super) fn encode_bf16(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use crate::DType::{self, *};

    fn encoded_bits(dtype: DType, value: f32) -> u64 {
        let mut bytes = Vec::new();
        dtype.encode_row(&[value], &mut bytes).unwrap();
        bytes.iter().rev().fold(0, |bits, &b| bits << 8 | u64::from(b))
    }

    #[test]
    #[rustfmt::skip]
    fn halves_round_to_nearest_even_and_keep_what_is_not_finite() {
        let cases: [(DType, f32, u64); 14] = [
            (F16,  1.0,                          0x3C00),
            (F16,  1.0 + 1.0 / 2048.0,           0x3C00), // halfway, the even one is below
            (F16,  1.0 + 3.0 / 2048.0,           0x3C02), // halfway, the even one is above
            (F16,  65504.0,                      0x7BFF),
            (F16,  65520.0,                      0x7C00), // halfway to 2^16 is infinite
            (F16,  5.9604645e-8,                 0x0001),
            (F16,  f32::NEG_INFINITY,            0xFC00),
            (BF16, 1.0,                          0x3F80),
            (BF16, 1.0 + 1.0 / 256.0,            0x3F80),
            (BF16, 1.0 + 3.0 / 256.0,            0x3F82),
            (BF16, f32::MAX,                     0x7F80),
            (BF16, f32::from_bits(0x0001_8000),  0x0002), // subnormal, halfway
            (BF16, -0.0,                         0x8000),
            (F32,  f32::MIN_POSITIVE,            0x0080_0000),
        ];
        for (dtype, value, bits) in cases {
            assert_eq!(encoded_bits(dtype, value), bits, "{dtype} of {value:e}");
        }
        // A NaN whose payload lies below the kept bits must not turn into infinity.
        let low_nan = f32::from_bits(0x7F80_0001);
        for dtype in [F32, F16, BF16] {
            let mut back = [0.0];
            let mut bytes = Vec::new();
            dtype.encode_row(&[low_nan], &mut bytes).unwrap();
            dtype.decode_row(&bytes, &mut back).unwrap();
            assert!(back[0].is_nan(), "{dtype}");
        }
    }

    #[test]
    fn every_half_survives_decoding_and_encoding() {
        for bits in 0..=u16::MAX {
            for dtype in [F16, BF16] {
                let mut value = [0.0];
                dtype.decode_row(&bits.to_le_bytes(), &mut value).unwrap();
                if !value[0].is_nan() {
                    assert_eq!(encoded_bits(dtype, value[0]), u64::from(bits), "{dtype} {bits:#06x}");
                }
            }
        }
    }

    #[test]
    fn doubles_are_rounded_to_single() {
        let mut out = [0.0; 3];
        let bytes: Vec<u8> = [0.1f64, 1e300, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        F64.decode_row(&bytes, &mut out).unwrap();
        assert_eq!(out, [0.1f32, f32::INFINITY, -2.5]);
    }
}
