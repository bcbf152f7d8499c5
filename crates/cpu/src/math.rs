//! Scalar functions shared by ops. One formula for every path, so that a row's bits do not depend on which is taken.

/// `e^x` for `f32`, at most 2 units in the last place off, and written so that loops over it vectorise: std's `exp`
/// is a call per element and made softmax a third of a prefill step.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 2^n · e^r with |r| <= ln2/2. The shift by 1.5·2^23 rounds to an integer in the low mantissa bits.
    const SHIFT: f32 = 12_582_912.0;
    let x = x.clamp(-87.3, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let e = p * r * r + r + 1.0;
    let bits = (shifted.to_bits() << 23).wrapping_add(e.to_bits());
    f32::from_bits(bits)
}

#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, and `x` itself beyond 20, as the reference implementations cut it.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `Σ x²` in a fixed order that vectorises: element i in lane i mod 32, then lanes 16, 8, 4, 2 and 1 apart. With eight lanes
/// the additions waited for each other.
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 32];
    let (chunks, rest) = x.as_chunks::<32>();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v * v;
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += v * v;
    }
    let sixteen: [f32; 16] = std::array::from_fn(|l| lanes[l] + lanes[l + 16]);
    sum_of_lanes(sixteen)
}

/// Lanes 8 apart are added, then 4, 2 and 1 apart.
#[inline(always)]
pub(crate) fn sum_of_lanes(lanes: [f32; 16]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|l| lanes[l] + lanes[l + 8]);
    let four: [f32; 4] = std::array::from_fn(|l| eight[l] + eight[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulps_where_it_is_normal() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let (got, want) = (exp(x), (x as f64).exp());
            assert!(((got as f64 - want) / want).abs() < 2.4e-7, "exp({x}) = {got}, not {want}");
            x += 0.001_37;
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) < 1.3e-38 && exp(1e30).is_finite());
    }

    #[test]
    fn softplus_and_silu_meet_their_formulas() {
        for x in [-30.0f32, -3.0, -0.1, 0.0, 0.5, 7.0, 19.9, 20.1, 40.0] {
            let want = (1.0 + (x as f64).exp()).ln();
            assert!((softplus(x) as f64 - want).abs() < 1e-5, "softplus({x})");
            let want = x as f64 / (1.0 + (-x as f64).exp());
            assert!((silu(x) as f64 - want).abs() < 1e-5, "silu({x})");
        }
    }
}
