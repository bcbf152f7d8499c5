//! Blocks of host memory on their way to the device. They are taken in turn, so that the next one can be filled while the
//! device has yet to read the last: only who has sent them all has to wait.

use std::sync::Arc;

use crate::driver::{Device, PinnedBuffer, Result};

/// A round sends three at most: waiting taps, a draft's block, the rows to verify.
const BLOCKS: usize = 8;
/// Enough for any step but those of many long contexts.
const SMALLEST: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Outbox {
    blocks: Vec<PinnedBuffer>,
    /// Blocks that the device may still be reading.
    sent: usize,
}

impl Outbox {
    pub(crate) fn is_full(&self) -> bool {
        self.sent == BLOCKS
    }

    /// The device has read all of them.
    pub(crate) fn clear(&mut self) {
        self.sent = 0;
    }

    /// A block of at least so many bytes that nobody reads; not to be asked of a full one.
    pub(crate) fn take(&mut self, device: &Arc<Device>, bytes: usize) -> Result<&mut PinnedBuffer> {
        assert!(!self.is_full(), "whoever sends waits before the first block is used again");
        let at = self.sent;
        let fits = self.blocks.get(at).is_some_and(|block| block.len() >= bytes);
        if !fits {
            // Page tables grow with the context: room for twice as many.
            let block = PinnedBuffer::new(device, (2 * bytes).max(SMALLEST))?;
            match self.blocks.get_mut(at) {
                Some(small) => *small = block,
                None => self.blocks.push(block),
            }
        }
        self.sent += 1;
        Ok(&mut self.blocks[at])
    }
}
