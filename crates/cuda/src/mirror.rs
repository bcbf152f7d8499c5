//! What was read back from the last run, kept so that it can be lent out.

use std::cell::RefCell;
use std::sync::Arc;

use crate::driver::{Device, PinnedBuffer, Queue, Result};
use crate::plan_memory::CHOICE_BYTES;

type Choices = Box<[(u32, f32)]>;

/// Host copies of device buffers. `read` takes `&self`, so copies are added behind a cell; they are only taken away
/// behind `&mut`, when nothing borrowed from them can be left.
#[derive(Default)]
pub(crate) struct Mirror {
    /// By device address.
    held: RefCell<Vec<(u64, PinnedBuffer)>>,
    choices: RefCell<Vec<(u64, Choices)>>,
    spare: RefCell<Vec<PinnedBuffer>>,
    /// What stands for numbers that could not be read.
    blanks: RefCell<Vec<Box<[f32]>>>,
}

impl Mirror {
    /// Forgets the last run's copies, and keeps their memory.
    pub(crate) fn clear(&mut self) {
        let spare = self.spare.get_mut();
        spare.extend(self.held.get_mut().drain(..).map(|h| h.1));
        self.choices.get_mut().clear();
        self.blanks.get_mut().clear();
    }

    /// `n` floats at device address `from`.
    ///
    /// # Safety
    /// They are inside a live device buffer that nothing after the last run has written.
    pub(crate) unsafe fn floats(
        &self,
        device: &Arc<Device>,
        queue: &Queue,
        from: u64,
        n: usize,
    ) -> Result<&[f32]> {
        if let Some((_, copy)) = self.held.borrow().iter().find(|h| h.0 == from) {
            // SAFETY: as below.
            return Ok(unsafe { lend(copy, n) });
        }
        // SAFETY: the caller's promise.
        let copy = unsafe { self.copy(device, queue, from, 4 * n) }?;
        // SAFETY: the copy is complete, and its memory stays where it is until `clear`, which needs `&mut self`.
        let floats = unsafe { lend(&copy, n) };
        self.held.borrow_mut().push((from, copy));
        Ok(floats)
    }

    /// `n` times not a number, where a copy failed: readers that index what they asked for need not know.
    pub(crate) fn blank(&self, n: usize) -> &[f32] {
        let blank = vec![f32::NAN; n].into_boxed_slice();
        let floats: *const [f32] = &*blank;
        self.blanks.borrow_mut().push(blank);
        // SAFETY: the box's memory stays where it is until `clear`, which needs `&mut self`.
        unsafe { &*floats }
    }

    /// The same for choices: none was made.
    pub(crate) fn blank_choices(&self, n: usize) -> &[(u32, f32)] {
        let blank = vec![(u32::MAX, f32::NEG_INFINITY); n].into_boxed_slice();
        let pairs: *const [(u32, f32)] = &*blank;
        // Address 0 is no buffer's, so no reader finds it.
        self.choices.borrow_mut().push((0, blank));
        // SAFETY: as above.
        unsafe { &*pairs }
    }

    /// `n` choices at device address `from`, or what a run left of them `here`.
    ///
    /// # Safety
    /// As of [`Self::floats`]; what is here is complete.
    pub(crate) unsafe fn choices(
        &self,
        device: &Arc<Device>,
        queue: &Queue,
        from: u64,
        n: usize,
        here: Option<&PinnedBuffer>,
    ) -> Result<&[(u32, f32)]> {
        if !self.choices.borrow().iter().any(|c| c.0 == from) {
            let copy = match here {
                Some(_) => None,
                // SAFETY: the caller's promise.
                None => Some(unsafe { self.copy(device, queue, from, CHOICE_BYTES * n) }?),
            };
            // SAFETY: either is complete, and words have no invalid bits.
            let words = here.or(copy.as_ref()).map_or(&[][..], |words| unsafe { words.read::<u32>(2 * n) });
            let pairs = words.chunks_exact(2).map(|c| (c[0], f32::from_bits(c[1]))).collect();
            self.choices.borrow_mut().push((from, pairs));
            self.spare.borrow_mut().extend(copy);
        }
        let held = self.choices.borrow();
        let pairs = held.iter().find(|c| c.0 == from).map_or(&[][..], |c| &c.1[..n]);
        // SAFETY: the box's memory stays where it is until `clear`, which needs `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(pairs.as_ptr(), pairs.len()) })
    }

    /// # Safety
    /// As of [`Self::floats`].
    unsafe fn copy(
        &self,
        device: &Arc<Device>,
        queue: &Queue,
        from: u64,
        bytes: usize,
    ) -> Result<PinnedBuffer> {
        let fitting = self.spare.borrow().iter().position(|s| s.len() >= bytes);
        let copy = match fitting {
            Some(i) => self.spare.borrow_mut().swap_remove(i),
            None => PinnedBuffer::new(device, bytes)?,
        };
        if bytes > 0 {
            // SAFETY: the caller's promise; waited for below.
            unsafe { queue.fetch(from, &copy, bytes) }?;
            queue.wait()?;
        }
        Ok(copy)
    }
}

/// # Safety
/// The copy is complete, and its memory is neither freed nor written while `'a` lasts.
unsafe fn lend<'a>(copy: &PinnedBuffer, n: usize) -> &'a [f32] {
    // SAFETY: the caller's promise; floats have no invalid bits.
    let floats = unsafe { copy.read::<f32>(n) };
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(floats.as_ptr(), floats.len()) }
}
