//! Types whose 4-bit codes index a table of values.

use super::blocks32::nibble;
use super::{blocks, f16_at};

/// What the codes of IQ4_NL and IQ4_XS stand for: closer together near zero, as weights are.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the E2M1 values, so that they are whole numbers; [`mxfp4_scale`] makes up for it.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 2^(e − 128), the scale of an MXFP4 block over [`MXFP4_VALUES`]. Exponents 0 and 1 give subnormal scales. 255,
/// NaN in the OCP specification, is 2^127 here as in ggml.
pub fn mxfp4_scale(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => u32::from(e - 1) << 23,
    })
}

/// `d · value[code]`; d at 0, codes at 2.
pub(super) fn decode_iq4_nl(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<18, 32>(bytes, out) {
        let d = f16_at(block, 0);
        for (e, y) in y.iter_mut().enumerate() {
            *y = d * f32::from(IQ4_VALUES[usize::from(nibble(&block[2..], e))]);
        }
    }
}

/// `d · (scale − 32) · value[code]`, sub-blocks of 32; the 6-bit scales have their low bits at 4, high ones at 2.
pub(super) fn decode_iq4_xs(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<136, 256>(bytes, out) {
        let (d, scales_h) = (f16_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
        for (s, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = i32::from(block[4 + s / 2] >> (4 * (s % 2)) & 15);
            let high = i32::from(scales_h >> (2 * s) & 3);
            let scale = d * ((low | high << 4) - 32) as f32;
            let codes = &block[8 + 16 * s..];
            for (e, y) in y.iter_mut().enumerate() {
                *y = scale * f32::from(IQ4_VALUES[usize::from(nibble(codes, e))]);
            }
        }
    }
}

/// `2^(e − 128) · value[code]`; e at 0, codes at 1.
pub(super) fn decode_mxfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in blocks::<17, 32>(bytes, out) {
        let d = mxfp4_scale(block[0]);
        for (e, y) in y.iter_mut().enumerate() {
            *y = d * f32::from(MXFP4_VALUES[usize::from(nibble(&block[1..], e))]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mxfp4_scale;

    #[test]
    fn mxfp4_scales_are_powers_of_two_down_to_the_subnormals() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(mxfp4_scale(e)), 2f64.powi(i32::from(e) - 128), "exponent {e}");
        }
    }
}
