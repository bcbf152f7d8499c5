//! Noise and weights of the draw, in single correctly rounded operations on `f32` and whole numbers: every processor has
//! those, and gives the same bits. No function of a maths library does. `sample.cu` follows this file line by line.
//!
//! On a device a weight takes about 25 instructions and a noise 70; few tokens of a row come to either.

/// The noise of one draw; each token has its own. It depends on nothing but what it is for, so speculation, batching and
/// restarts cannot change a sampled text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance(u64);

impl Chance {
    /// Tokens further below the best cannot be drawn: [`Self::gumbel`] lies between -3.2 and 22.9.
    pub const REACH: f32 = 32.0;
    /// [`Self::weight`] is 0 from here on.
    pub const WEIGHS_NOTHING: f32 = 21.5;
    /// No noise is larger.
    pub const MOST: f32 = 22.9;

    /// `choice`: which of several answers to one request. `position`: of the token that is drawn.
    pub fn new(seed: u64, choice: u32, position: u32) -> Self {
        Self(mix(mix(seed) ^ (choice as u64) << 32 ^ position as u64))
    }

    /// Standard Gumbel noise: the largest `logit + gumbel` is a draw from the softmax of the logits.
    pub fn gumbel(&self, token: u32) -> f32 {
        let bits = (mix(self.0 ^ token as u64) >> 32) as u32;
        // Evenly in 0..1, finest near 0, where the largest noise comes from.
        let x = bits as f32 * (1.0 / 4_294_967_296.0) + 1.0 / 8_589_934_592.0;
        let (exponent, above) = split((1.0 - x).max(1.0 / 33_554_432.0));
        // 1 - x has lost what is small of x.
        let rate = -ln(exponent, if exponent == 0.0 { -x } else { above });
        let (exponent, above) = split(rate);
        -ln(exponent, above)
    }

    /// `e^-distance` in units of 2^-31, for a distance from 0 to [`Self::REACH`]. Whole numbers, because their sum does not
    /// depend on its order: what is lost of 250 000 tokens is at most a 8000th of the best one's weight.
    pub fn weight(distance: f32) -> u32 {
        // 1.5 · 2^23: adding it rounds to a whole number.
        const SHIFT: f32 = 12_582_912.0;
        let n = (distance * -std::f32::consts::LOG2_E + SHIFT) - SHIFT;
        let r = (-distance - n * LN2_HIGH) - n * LN2_LOW;
        let p = 1.987_569_1e-4;
        let p = p * r + 1.398_199_9e-3;
        let p = p * r + 8.333_452e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 5e-1;
        let e = (p * r * r + r) + 1.0;
        (e * f32::from_bits(((n as i32 + 127 + 31) as u32) << 23)) as u32
    }
}

const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// A positive number as `2^exponent · (1 + above)`, between √½ and √2.
fn split(y: f32) -> (f32, f32) {
    let bits = y.to_bits() as i32;
    let exponent = (bits - 0x3f35_04f3) >> 23;
    (exponent as f32, f32::from_bits((bits - (exponent << 23)) as u32) - 1.0)
}

/// `ln(2^exponent · (1 + f))`
fn ln(exponent: f32, f: f32) -> f32 {
    let square = f * f;
    let p = 7.037_683_6e-2;
    let p = p * f + -1.151_461e-1;
    let p = p * f + 1.167_699_9e-1;
    let p = p * f + -1.242_014_1e-1;
    let p = p * f + 1.424_932_3e-1;
    let p = p * f + -1.666_805_8e-1;
    let p = p * f + 2.000_071_5e-1;
    let p = p * f + -2.499_999_4e-1;
    let p = p * f + 3.333_333e-1;
    let low = p * f * square + exponent * LN2_LOW;
    (f + (low - 0.5 * square)) + exponent * LN2_HIGH
}

/// Two rounds of multiply and xor-shift: every input bit reaches every output bit.
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_the_gumbel_mean_and_variance() {
        let n = 200_000;
        let (mut sum, mut squares) = (0.0f64, 0.0f64);
        for i in 0..n {
            let x = Chance::new(7, 0, i / 1000).gumbel(i % 1000) as f64;
            sum += x;
            squares += x * x;
        }
        let mean = sum / n as f64;
        let variance = squares / n as f64 - mean * mean;
        assert!((mean - 0.577_2).abs() < 0.015, "mean {mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.03, "variance {variance}");
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let base = Chance::new(1, 0, 5);
        for other in [Chance::new(2, 0, 5), Chance::new(1, 1, 5), Chance::new(1, 0, 6)] {
            assert_ne!(base.gumbel(3), other.gumbel(3), "{other:?}");
        }
        assert_ne!(base.gumbel(3), base.gumbel(4));
        assert_eq!(base.gumbel(3), base.gumbel(3));
    }

    #[test]
    fn logarithms_and_weights_are_right_to_a_few_units_in_the_last_place() {
        for i in 1..200_000u32 {
            let y = i as f32 * 1.7e-4;
            let (exponent, above) = split(y);
            let (got, want) = (ln(exponent, above) as f64, (y as f64).ln());
            assert!((got - want).abs() <= 2.5e-7 * want.abs().max(0.3), "ln({y}) = {got}, not {want}");
            let distance = i as f32 * 1.6e-4;
            let (got, want) =
                (Chance::weight(distance) as f64, (-distance as f64).exp() * (1u64 << 31) as f64);
            assert!((got - want).abs() <= 1.0 + 3e-7 * want, "weight({distance}) = {got}, not {want}");
        }
        for (distance, weight) in [(0.0, 1 << 31), (21.48, 1), (Chance::WEIGHS_NOTHING, 0), (31.99, 0)] {
            assert_eq!(Chance::weight(distance), weight, "{distance}");
        }
    }

    #[test]
    fn no_noise_is_beyond_its_bounds() {
        // The ends of what `gumbel` makes of its bits.
        let of = |x: f32| {
            let (exponent, above) = split((1.0 - x).max(1.0 / 33_554_432.0));
            let (exponent, above) = split(-ln(exponent, if exponent == 0.0 { -x } else { above }));
            -ln(exponent, above)
        };
        let (most, least) = (of(1.0 / 8_589_934_592.0), of(1.0));
        assert!(most < Chance::MOST && most > 22.8, "{most}");
        assert!(least > -3.2 && Chance::MOST - least < Chance::REACH, "{least}");
    }
}
