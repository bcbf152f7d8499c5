//! Buffers that several tasks of one op write at once, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose parts are handed out to tasks. The type checks bounds; that parts do not overlap while written is
/// the claim each caller makes.
pub(crate) struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: a Shared is only a pointer into a `&mut [T]` that outlives it; every access goes through the unsafe
// methods below, whose callers promise that no part is written while another task touches it.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }

    /// # Safety
    /// No task writes into `range` while the result lives.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds (asserted); not written meanwhile (the caller's promise).
        unsafe { std::slice::from_raw_parts(self.ptr.add(range.start), range.len()) }
    }

    /// # Safety
    /// No other task reads or writes `range` while the result lives.
    #[allow(clippy::mut_from_ref, reason = "that is the point of the type; see the safety section")]
    pub(crate) unsafe fn write(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds (asserted); exclusive (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}
