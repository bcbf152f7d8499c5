//! What callers hold handles of.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Error, Result};

/// A pointer to the caller, who may not follow it. Here a number that is never given twice, nor to two kinds of things: a handle that
/// was destroyed, or is of another kind, is known for what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Handle(usize);

impl Handle {
    pub(super) const NULL: Self = Self(0);
    /// There is one device, hence one primary context.
    pub(super) const CONTEXT: Self = Self(1);

    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(2);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What is in use while it is removed stays until it is not.
pub(super) struct Table<T> {
    entries: Mutex<HashMap<Handle, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<T> Table<T> {
    fn entries(&self) -> MutexGuard<'_, HashMap<Handle, Arc<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, entry: Arc<T>) -> Handle {
        let handle = Handle::new();
        self.entries().insert(handle, entry);
        handle
    }

    pub(super) fn get(&self, handle: Handle) -> Result<Arc<T>> {
        self.entries().get(&handle).cloned().ok_or(Error::InvalidHandle)
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Arc<T>> {
        self.entries().remove(&handle).ok_or(Error::InvalidHandle)
    }
}
