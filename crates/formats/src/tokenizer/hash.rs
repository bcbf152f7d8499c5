//! Hashing for the tables a vocabulary needs: loading hashes a million short strings, encoding every word. A multiply
//! and fold of the bytes, 8 at a time, costs a few cycles; the seed is drawn per table, so a file cannot be written to
//! collide.

use std::hash::{BuildHasher, RandomState};

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy)]
pub(super) struct Seed(u64, u64);

impl Seed {
    pub(super) fn random() -> Self {
        let state = RandomState::new();
        Self(state.hash_one(0u8), state.hash_one(1u8) | 1)
    }

    #[inline]
    pub(super) fn hash_word(self, word: u64, len: u64) -> u64 {
        fold(fold(word ^ self.0, self.1 ^ len << 1), MULTIPLIER)
    }

    pub(super) fn hash_bytes(self, bytes: &[u8]) -> u64 {
        let mut hash = self.0 ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), self.1);
        }
        let mut last = 0;
        for &byte in rest {
            last = last << 8 | u64::from(byte);
        }
        fold(fold(hash ^ last, self.1), MULTIPLIER)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
