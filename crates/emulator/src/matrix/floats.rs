//! Numbers of 16 bits, and their f32.

/// What the operands of a product are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    F16,
    Bf16,
}

/// Exact.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    upper_f16_to_f32((half as u32) << 16)
}

/// Of the upper 16 bits.
#[inline(always)]
fn upper_f16_to_f32(bits: u32) -> f32 {
    const EXPONENT: u32 = 0x1f << 23;
    // An exponent is three bits longer in f32. The sign is shifted along and stays where it was, too.
    let bits = (bits as i32 >> 3) as u32 & 0x8fff_e000;
    // It has another bias as well. A product puts that right for subnormal numbers too, which have no
    // exponent of their own.
    let value = f32::from_bits(bits) * f32::from_bits((127 + 127 - 15) << 23);
    let no_number = if bits & EXPONENT == EXPONENT { f32::INFINITY.to_bits() } else { 0 };
    f32::from_bits(value.to_bits() | no_number)
}

/// The nearest, of two the even one. A NaN becomes the one that the GPU makes.
#[inline]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    const INFINITY: u32 = 0x7f80_0000;
    // 65536, the first power of two past all f16.
    const TOO_LARGE: u32 = (127 + 16) << 23;
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > INFINITY {
        0x7fff
    } else if magnitude >= TOO_LARGE {
        sign | 0x7c00
    } else if magnitude < SMALLEST_NORMAL {
        // One half has as its last bit that of a subnormal f16, so the sum rounds where it should.
        let sum = f32::from_bits(magnitude) + 0.5;
        sign | (sum.to_bits() - 0.5f32.to_bits()) as u16
    } else {
        let is_odd = magnitude >> 13 & 1;
        // A carry goes into the exponent, and past the last into that of infinity.
        sign | ((magnitude - ((127 - 15) << 23) + 0xfff + is_odd) >> 13) as u16
    }
}

/// How two numbers in 32 bits are read; the first is the lower half.
pub(super) trait Pair {
    fn first(pair: u32) -> f32;
    fn second(pair: u32) -> f32;
}

pub(super) struct F16;
pub(super) struct Bf16;

impl Pair for F16 {
    #[inline(always)]
    fn first(pair: u32) -> f32 {
        upper_f16_to_f32(pair << 16)
    }
    #[inline(always)]
    fn second(pair: u32) -> f32 {
        upper_f16_to_f32(pair)
    }
}

impl Pair for Bf16 {
    #[inline(always)]
    fn first(pair: u32) -> f32 {
        f32::from_bits(pair << 16)
    }
    #[inline(always)]
    fn second(pair: u32) -> f32 {
        f32::from_bits(pair & 0xffff_0000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_has_its_f32() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#x}: {ours}"
            );
        }
    }

    #[test]
    fn an_f32_rounds_to_the_nearest_f16() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert_eq!(f32_to_f16(value), 0x7fff);
                continue;
            }
            assert_eq!(f32_to_f16(value), bits);
            // Half-way to the next one, and to both sides of that; small numbers are far apart as f32.
            let next = f16_to_f32(bits.wrapping_add(1));
            let half_way = if next.is_finite() { (value + next) / 2.0 } else { value * (1.0 + 0.5 / 2047.0) };
            for around in -2i32..=2 {
                let value = f32::from_bits(half_way.to_bits().wrapping_add_signed(around));
                let nearest = half::f16::from_f32_const(value);
                assert!(value.is_nan() || f32_to_f16(value) == nearest.to_bits(), "{value:e} is {nearest}");
            }
        }
        for value in
            [f32::INFINITY, f32::MAX, 65519.996, 65520.0, 65536.0, f32::MIN_POSITIVE, 1e-45, 2.9802322e-8]
        {
            for value in [value, -value] {
                assert_eq!(f32_to_f16(value), half::f16::from_f32_const(value).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn a_bf16_is_the_upper_half_of_an_f32() {
        assert_eq!((Bf16::first(0x4049_3f80), Bf16::second(0x4049_3f80)), (1.0, 3.140625));
    }
}
