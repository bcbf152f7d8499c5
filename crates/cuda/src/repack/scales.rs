//! A power of two per output that makes a block format's scales fit f16 as the kernels use them (`kernels/linear_formats.cuh`):
//! scale times code is a weight in f16, and the sums are multiplied by what undoes the power.

use half::f16;
use overdraft_formats::DType;

/// Where a block's numbers lie, and how large they may become.
struct Numbers {
    /// Byte of the f16 scale, and the power of two its largest must stay below.
    scale: (usize, i32),
    /// The same of the f16 that offsets come from, relative to the scale's power.
    offset: Option<(usize, i32)>,
    /// Codes of outputs g + 8 lie 4 bits higher.
    by_place: bool,
}

fn numbers(dtype: DType) -> Option<Numbers> {
    let of = |scale, offset, by_place| Some(Numbers { scale, offset, by_place });
    match dtype {
        DType::Q4_0 | DType::Q5_0 => of((0, 15), None, true),
        DType::Q4_1 | DType::Q5_1 => of((0, 15), Some((2, 15 + LOW - PLACE)), true),
        DType::Q8_0 | DType::IQ4_NL => of((0, 15), None, false),
        // Times a scale of 4 to 8 bits, and 1024 in Q4_K and Q5_K.
        DType::Q4_K | DType::Q5_K => of((0, 6), Some((2, 15 - PLACE)), true),
        DType::Q2_K => of((80, 11), Some((82, 15 - PLACE)), true),
        DType::Q3_K => of((108, 10), None, true),
        DType::Q6_K => of((208, 8), None, true),
        DType::IQ4_XS => of((0, 10), None, false),
        _ => None,
    }
}

/// A code's own power of two, as a subnormal f16, and by how much more where it lies higher.
const LOW: i32 = 24;
const PLACE: i32 = 4;

/// The powers of two of one output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Powers {
    /// Scales are multiplied by 2^this ...
    up: i32,
    /// ... and codes lie so many bits higher.
    place: i32,
}

impl Powers {
    /// Of an output whose row this is. `high`: the second eight of its tile.
    pub(super) fn of(dtype: DType, row: &[u8], high: bool) -> Self {
        if dtype == DType::MXFP4 {
            let largest = row.chunks_exact(dtype.block_bytes()).map(|block| block[0]).max().unwrap_or(0);
            return Self { up: 30 - i32::from(largest), place: 0 };
        }
        let Some(numbers) = numbers(dtype) else { return Self::default() };
        let largest = |at: usize| {
            let sizes = row.chunks_exact(dtype.block_bytes()).map(|b| half_at(b, at).to_f32().abs());
            sizes.filter(|v| v.is_finite()).fold(0f32, f32::max)
        };
        // The power of two above the largest; what is zero has all the room.
        let room = |at: usize, below: i32| {
            let largest = largest(at);
            (largest > 0.0).then(|| below - 1 - largest.log2().floor() as i32)
        };
        let scale = room(numbers.scale.0, numbers.scale.1);
        let offset = numbers.offset.and_then(|(at, below)| room(at, below));
        let up = scale.into_iter().chain(offset).min().unwrap_or(0);
        Self { up, place: if high && numbers.by_place { PLACE } else { 0 } }
    }

    /// A scale as the tile holds it.
    pub(super) fn scale(self, bits: u16) -> u16 {
        shifted(bits, self.up)
    }

    /// An offset that is added to scale times code.
    pub(super) fn offset(self, bits: u16) -> u16 {
        shifted(bits, self.up - LOW + self.place)
    }

    /// What integer minima, subnormal as codes are, are multiplied by.
    pub(super) fn minimum(self, bits: u16) -> u16 {
        shifted(bits ^ 0x8000, self.up + self.place)
    }

    /// An MXFP4 exponent as the exponent of an f16; what is 2^-30 of the largest or less becomes nothing.
    pub(super) fn exponent(self, e: u8) -> u8 {
        (i32::from(e) + self.up).clamp(0, 30) as u8
    }

    /// What undoes it all on the sums.
    pub(super) fn undo(self, dtype: DType) -> f32 {
        // An MXFP4 scale is 2^(e - 128), an f16's 2^(e - 15).
        let of_scale = if dtype == DType::MXFP4 { -128 + 15 } else { 0 };
        power_of_two(of_scale - self.up + LOW - self.place) as f32
    }
}

pub(super) fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

fn shifted(bits: u16, power: i32) -> u16 {
    // In f64: exact before the one rounding, whatever the power.
    f16::from_f64(f16::from_bits(bits).to_f64() * power_of_two(power)).to_bits()
}

fn power_of_two(e: i32) -> f64 {
    // No sum of an f16's and a byte's exponents comes near an f64's.
    f64::from_bits(((e + 1023) as u64) << 52)
}
