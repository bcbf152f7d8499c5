//! Arithmetic that Rust has no operator for.

use crate::matrix::{f16_to_f32, f32_to_f16};

/// Four bytes of eight, each by a digit of `selector`, whose highest bit asks for its sign alone.
pub(crate) fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |all, i| {
        let digit = selector >> (4 * i);
        let byte = (bytes >> (8 * (digit & 7))) as u8;
        let byte = if digit & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        all | u32::from(byte) << (8 * i)
    })
}

/// To an `f32` so that rounding once more, to half of its bits, rounds as once: what is cut off is remembered in the lowest bit.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || !near.is_finite() {
        return near;
    }
    // Toward zero, then odd.
    let bits = if f64::from(near).abs() > x.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(bits | 1)
}

/// `f` of both halves, rounded once.
pub(crate) fn f16x2(a: u32, b: u32, c: u32, f: impl Fn(f64, f64, f64) -> f64) -> u32 {
    let half = |shift: u32| {
        let value = |x: u32| f64::from(f16_to_f32((x >> shift) as u16));
        u32::from(f32_to_f16(to_odd(f(value(a), value(b), value(c))))) << shift
    };
    half(0) | half(16)
}

/// The sum and what rounding took from it: exact.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_there = sum - a;
    (sum, (a - (sum - b_there)) + (b - b_there))
}

/// The largest `f32` that is not above `x + rest`, where `rest` is too small to show in `x`.
fn round_down(x: f64, rest: f64) -> f32 {
    let near = x as f32;
    let exceeds = f64::from(near) > x || (f64::from(near) == x && rest < 0.0);
    if exceeds && near.is_finite() { near.next_down() } else { near }
}

pub(crate) fn fma_downward(a: f32, b: f32, c: f32) -> f32 {
    // The product of two f32 is exact in f64.
    let (sum, rest) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    round_down(sum, rest)
}

pub(crate) fn add_toward_zero(a: f32, b: f32) -> f32 {
    let (sum, rest) = two_sum(f64::from(a), f64::from(b));
    if sum >= 0.0 { round_down(sum, rest) } else { -round_down(-sum, -rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_where_the_selector_says() {
        assert_eq!(prmt(0x3322_1100, 0x7766_5544, 0x7531), 0x7755_3311);
        assert_eq!(prmt(0x0000_0080, 0, 0x1188), 0x0000_ffff);
    }

    #[test]
    fn sums_round_to_where_they_are_told() {
        let e = f32::EPSILON;
        assert_eq!(fma_downward(1.0, 1.0, e / 4.0), 1.0);
        assert_eq!(fma_downward(1.0, 1.0, -e / 16.0), 1.0f32.next_down());
        assert_eq!(fma_downward(1.0, 1.0, -1e-30), 1.0f32.next_down());
        assert_eq!(add_toward_zero(1.0, e * 0.9), 1.0);
        assert_eq!(add_toward_zero(-1.0, -e * 0.9), -1.0);
        assert_eq!(add_toward_zero(1.0, -1e-30), 1.0f32.next_down());
    }

    #[test]
    fn halves_are_rounded_once() {
        let f = |a: f32, b: f32, c: f32| {
            let bits = |x| u32::from(f32_to_f16(x));
            f16_to_f32(f16x2(bits(a), bits(b), bits(c), |a, b, c| a * b + c) as u16)
        };
        assert_eq!(f(3.0, 0.5, 0.25), 1.75);
        // Just above the middle of two halves: rounded to an f32 first it would be the middle, and go to the even one below.
        let (a, b) = (1.0 + 1.0 / 1024.0, 2.0f32.powi(-11));
        assert_eq!(f(a, b, 1.0), 1.0 + 1.0 / 1024.0);
        assert_eq!(f(1.0, b, 1.0), 1.0);
    }
}
