//! Which neighbours merge, in which order, into what. Filled by [`super::merge_list`].

use super::hash::Seed;

/// No merge for this pair. Greater than every rank.
pub(super) const NO_RANK: u32 = u32::MAX;

pub(super) struct Merge {
    pub(super) left: u32,
    pub(super) right: u32,
    /// Below [`NO_RANK`].
    pub(super) rank: u32,
    pub(super) result: u32,
}

/// Left and right symbol, then rank plus one and result. Zero is an empty slot, and plain numbers so that a new table
/// is untouched zero pages.
type Slot = [u64; 2];

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Merges by pair of *symbols*. A symbol is a token id, or, from `n_tokens` up, a byte sequence that is no normal
/// token: a step on the way to one, or the spelling of a control token. Such a symbol that is left at the end is
/// emitted byte by byte, so merging can never make a control token.
pub(super) struct Merges {
    slots: Vec<Slot>,
    seed: Seed,
    byte_symbols: [u32; 256],
    n_tokens: u32,
    /// Lengths in bytes of the symbols from `n_tokens` up.
    hidden_lens: Vec<u32>,
}

impl Merges {
    /// An empty table for up to `n_merges`.
    pub(super) fn new(n_merges: usize, byte_symbols: [u32; 256], n_tokens: u32) -> Self {
        let n_slots = (n_merges + 1).saturating_mul(4).div_ceil(3).next_power_of_two();
        Self {
            slots: vec![[0; 2]; n_slots],
            seed: Seed::random(),
            byte_symbols,
            n_tokens,
            hidden_lens: Vec::new(),
        }
    }

    pub(super) fn set_hidden_lens(&mut self, lens: Vec<u32>) {
        self.hidden_lens = lens;
    }

    /// `false` when the pair was there.
    pub(super) fn insert(&mut self, new: &Merge, replace: bool) -> bool {
        let key = pair_key(new.left, new.right);
        let at = self.find(key);
        let is_new = self.slots[at][1] == 0;
        if is_new || replace {
            self.slots[at] = [key, u64::from(new.rank + 1) << 32 | u64::from(new.result)];
        }
        is_new
    }

    /// The slot of a pair, or the empty slot where it would be. Ends: a quarter of the slots is always empty.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.seed.hash_word(key, 0) as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot[1] == 0 || slot[0] == key {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// Reads the slot where a pair belongs: many in a row overlap their waits for memory.
    #[inline]
    pub(super) fn touch(&self, left: u32, right: u32) -> u64 {
        self.slots[self.seed.hash_word(pair_key(left, right), 0) as usize & (self.slots.len() - 1)][1]
    }

    /// Rank of a pair and the symbol it becomes; [`NO_RANK`] when it does not merge.
    #[inline]
    pub(super) fn get(&self, left: u32, right: u32) -> (u32, u32) {
        let found = self.slots[self.find(pair_key(left, right))][1];
        // An empty slot's 0 becomes the greatest rank.
        (((found >> 32) as u32).wrapping_sub(1), found as u32)
    }

    #[inline]
    pub(super) fn byte_symbol(&self, byte: u8) -> u32 {
        self.byte_symbols[byte as usize]
    }

    /// The id of the token that is this one byte.
    pub(super) fn byte_token(&self, byte: u8) -> Option<u32> {
        Some(self.byte_symbol(byte)).filter(|&symbol| self.hidden_len(symbol).is_none())
    }

    /// Length in bytes of a symbol that is not a token.
    #[inline]
    pub(super) fn hidden_len(&self, symbol: u32) -> Option<usize> {
        let hidden = symbol.checked_sub(self.n_tokens)?;
        Some(self.hidden_lens[hidden as usize] as usize)
    }
}
