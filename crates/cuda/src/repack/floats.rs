//! Tiles of float weights: f16 with a power of two per output, so that BF16 and F32 keep all bits that count.

use half::f16;
use overdraft_formats::DType;

use super::planes;

/// Scales `values` so that the largest lies in 2^14..2^15 and gives what undoes it. F16 stays as it is.
///
/// A BF16 value keeps all its bits unless it is 2^-29 of the output's largest or less; what it then loses is below
/// 2^-39 of that.
pub(super) fn scale_up(dtype: DType, values: &mut [f32]) -> f32 {
    if dtype == DType::F16 {
        return 1.0;
    }
    let largest = values.iter().filter(|v| v.is_finite()).fold(0f32, |a, v| a.max(v.abs()));
    if largest == 0.0 {
        return 1.0;
    }
    // Between 2^±126, so that neither power of two is subnormal or infinite.
    let up = (14 - exponent(largest)).clamp(-112, 126);
    for v in values {
        *v *= power_of_two(up);
    }
    power_of_two(-up)
}

fn exponent(v: f32) -> i32 {
    (v.to_bits() >> 23 & 255) as i32 - 127
}

fn power_of_two(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// The `plane`-th f16 of a value: the value rounded, then what that left out.
fn part(value: f32, plane: usize) -> u16 {
    let first = f16::from_f32(value);
    match plane {
        0 => first.to_bits(),
        _ if first.is_finite() => f16::from_f32(value - first.to_f32()).to_bits(),
        _ => 0,
    }
}

/// A tile of 64 columns, `rows` scaled; columns past a row's end are zeros.
pub(super) fn pack_tile(rows: &[&[f32]; 16], first_col: usize, plane: usize, tile: &mut [u8]) {
    let value = |o: usize, c: usize| rows[o].get(first_col + c).map_or(0, |&v| part(v, plane));
    planes::registers(&std::array::from_fn(|o| std::array::from_fn(|c| value(o, c))), tile);
}
