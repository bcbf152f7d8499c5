//! Rotary frequencies. Every scaling in use comes down to a list of inverse frequencies and a magnitude.

use std::f64::consts::PI;

/// How a model stretches its rotary embedding beyond the length it was first trained for.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    Yarn {
        factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        original: f64,
        truncate: bool,
        magnitude: Option<f64>,
    },
    /// Per-frequency divisors, as GGUF files carry llama 3's scaling.
    Divisors(Vec<f32>),
}

/// Inverse frequencies of `dims / 2` pairs, and what cosine and sine are multiplied with.
pub(crate) fn frequencies(theta: f64, dims: usize, scaling: &RopeScaling) -> (Vec<f32>, f32) {
    let base = |i: usize| theta.powf(-2.0 * i as f64 / dims as f64);
    let pairs = dims / 2;
    let mut magnitude = 1.0;
    let freqs: Vec<f64> = match scaling {
        RopeScaling::None => (0..pairs).map(base).collect(),
        RopeScaling::Linear { factor } => (0..pairs).map(|i| base(i) / factor).collect(),
        RopeScaling::Divisors(d) => (0..pairs).map(|i| base(i) / d[i] as f64).collect(),
        RopeScaling::Llama3 { factor, low, high, original } => (0..pairs)
            .map(|i| {
                let f = base(i);
                let wavelength = 2.0 * PI / f;
                if wavelength > original / low {
                    f / factor
                } else if wavelength < original / high {
                    f
                } else {
                    let k = (original / wavelength - low) / (high - low);
                    (1.0 - k) * f / factor + k * f
                }
            })
            .collect(),
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, magnitude: given } => {
            magnitude = given.unwrap_or(0.1 * factor.ln() + 1.0);
            let turn =
                |rotations: f64| dims as f64 * (original / (2.0 * PI * rotations)).ln() / (2.0 * theta.ln());
            let (mut lo, mut hi) = (turn(*beta_fast), turn(*beta_slow));
            if *truncate {
                (lo, hi) = (lo.floor(), hi.ceil());
            }
            lo = lo.max(0.0);
            hi = hi.min(dims as f64 - 1.0);
            if lo == hi {
                hi += 0.001;
            }
            (0..pairs)
                .map(|i| {
                    let ramp = ((i as f64 - lo) / (hi - lo)).clamp(0.0, 1.0);
                    base(i) / factor * ramp + base(i) * (1.0 - ramp)
                })
                .collect()
        }
    };
    (freqs.into_iter().map(|f| f as f32).collect(), magnitude as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(theta: f64, dims: usize, scaling: RopeScaling, magnitude: f32, golden: &[(usize, f32)]) {
        let (freqs, m) = frequencies(theta, dims, &scaling);
        assert!((m - magnitude).abs() < 1e-6, "magnitude {m}, not {magnitude}");
        for (i, want) in golden {
            assert!((freqs[*i] / want - 1.0).abs() < 1e-6, "f_{i} = {}, not {want}", freqs[*i]);
        }
    }

    #[test]
    #[rustfmt::skip]
    fn frequencies_meet_the_golden_values() {
        let yarn = |factor, original, truncate| RopeScaling::Yarn {
            factor, beta_fast: 32.0, beta_slow: 1.0, original, truncate, magnitude: None,
        };
        check(150_000.0, 64, yarn(32.0, 4096.0, false), 1.346_573_6, &[
            (0, 1.0), (8, 0.050_813_275), (9, 0.031_705_696), (12, 0.006_794_959_5),
            (15, 0.001_052_602_1), (17, 1.293_187e-4), (18, 3.830_881e-5), (31, 3.023_511_4e-7),
        ]);
        check(1e7, 128, yarn(64.0, 4096.0, true), 1.415_888_3, &[
            (11, 0.062_643_35), (20, 0.002_658_406), (26, 2.239_082_1e-5),
        ]);
        let llama3 = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        check(500_000.0, 128, llama3, 1.0, &[
            (28, 0.003_211_446), (30, 0.001_371_893_6), (34, 1.785_078e-4), (35, 9.556_212e-5),
        ]);
        check(1e7, 64, RopeScaling::None, 1.0, &[
            (1, 0.604_296_4), (16, 3.162_277_7e-4), (31, 1.654_817_1e-7),
        ]);
    }
}
