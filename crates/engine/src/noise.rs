//! Random numbers that depend on nothing but their seed.

use overdraft_plan::draw::mix;

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
