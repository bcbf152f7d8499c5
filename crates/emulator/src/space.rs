//! Memory that kernels reach: what was allocated on the device and what is pinned on the host, one address space of the process's own
//! addresses. Whatever else a kernel touches is a fault.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// As the driver's own allocations are.
const ALIGNMENT: usize = 512;

/// What new memory holds: a kernel that reads it before anything was written there computes with NaNs.
const UNWRITTEN: u8 = 0xff;

#[derive(Default)]
pub struct Space {
    ranges: Mutex<BTreeMap<u64, usize>>,
}

/// `at..end`, allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub at: u64,
    pub end: u64,
}

impl Range {
    pub fn holds(self, at: u64, len: usize) -> bool {
        at >= self.at && at <= self.end && len as u64 <= self.end - at
    }
}

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.max(1), ALIGNMENT).ok()
}

impl Space {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.ranges.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// None where the host has no room.
    pub fn alloc(&self, len: usize) -> Option<u64> {
        let layout = layout(len)?;
        // SAFETY: the layout has a size.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            return None;
        }
        // SAFETY: as long as was asked for.
        unsafe { at.write_bytes(UNWRITTEN, layout.size()) };
        self.ranges().insert(at as u64, len);
        Some(at as u64)
    }

    /// Whether `at` was allocated, and is no longer.
    pub fn free(&self, at: u64) -> bool {
        let Some(len) = self.ranges().remove(&at) else { return false };
        let layout = layout(len).expect("it was allocated with this layout");
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(at as *mut u8, layout) };
        true
    }

    /// For loading: all of `bytes` at `at`.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.find(at, bytes.len())
            .ok_or_else(|| format!("{} bytes at {at:#x} were not allocated", bytes.len()))?;
        // SAFETY: in an allocation (just looked up), which no slice of ours reaches into.
        unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// What lies there.
    pub fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], String> {
        self.find(at, N).ok_or_else(|| format!("{N} bytes at {at:#x} were not allocated"))?;
        // SAFETY: in an allocation (just looked up), all of which was written when it was made.
        Ok(unsafe { (at as *const [u8; N]).read() })
    }

    /// How far from what is allocated, for a fault's text.
    pub(crate) fn nearest(&self, at: u64) -> String {
        let ranges = self.ranges();
        let before = ranges.range(..=at).next_back().map(|(b, len)| (at - b, *len));
        match before {
            Some((offset, len)) if offset < 1 << 30 => format!(" ({offset} bytes into one of {len})"),
            _ => String::new(),
        }
    }

    /// The allocation that holds these bytes.
    pub fn find(&self, at: u64, len: usize) -> Option<Range> {
        let ranges = self.ranges();
        let (&begin, &size) = ranges.range(..=at).next_back()?;
        let range = Range { at: begin, end: begin + size as u64 };
        range.holds(at, len).then_some(range)
    }
}
