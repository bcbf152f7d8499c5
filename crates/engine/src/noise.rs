//! Sampling noise that depends on nothing but what it is for.
//!
//! Each (seed, choice, position, token) has one number, whatever was drawn before it. So speculation, batching and
//! restarts cannot change a sampled text: the same question always gets the same noise.

/// Identifies a draw; a token completes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    pub seed: u64,
    /// Which of several answers to one request.
    pub choice: u32,
    /// Of the token being drawn.
    pub position: u32,
}

impl Draw {
    /// Standard Gumbel noise: the largest `logit + gumbel` is a draw from the softmax of the logits.
    pub fn gumbel(&self, token: u32) -> f32 {
        // A uniform number strictly between 0 and 1: 24 bits and a half, so that neither logarithm meets 0.
        let uniform = ((self.bits(token) >> 40) as f64 + 0.5) / (1u64 << 24) as f64;
        (-(-uniform.ln()).ln()) as f32
    }

    fn bits(&self, token: u32) -> u64 {
        let place = (self.choice as u64) << 32 | self.position as u64;
        mix(mix(mix(self.seed) ^ place) ^ token as u64)
    }
}

/// Numbers one after another, the same ones for a seed: not for texts, for what measures and checks them.
#[derive(Clone, Debug)]
pub struct Numbers {
    seed: u64,
    given: u64,
}

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self { seed, given: 0 }
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.given += 1;
        (mix(mix(self.seed) ^ self.given) % n as u64) as usize
    }
}

/// Two rounds of multiply and xor-shift: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
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
            let draw = Draw { seed: 7, choice: 0, position: i / 1000 };
            let x = draw.gumbel(i % 1000) as f64;
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
        let base = Draw { seed: 1, choice: 0, position: 5 };
        let others = [Draw { seed: 2, ..base }, Draw { choice: 1, ..base }, Draw { position: 6, ..base }];
        for other in others {
            assert_ne!(base.gumbel(3), other.gumbel(3), "{other:?}");
        }
        assert_ne!(base.gumbel(3), base.gumbel(4));
        assert_eq!(base.gumbel(3), base.gumbel(3));
    }
}
