//! Memory of the device, and of the host where the device reaches it.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{MutexGuard, PoisonError};

use super::{Device, Error, Result, Status, current, put, started, status};

/// The device's, in bytes: more than any test takes, and a machine without a card has it.
const TOTAL: usize = 8 << 30;

/// What callers allocated. The space also holds what modules brought.
#[derive(Default)]
pub(super) struct Memory {
    device: HashMap<u64, usize>,
    pinned: HashSet<u64>,
    taken: usize,
}

impl Device {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn alloc(&self, len: usize) -> Result<u64> {
        self.check_sound()?;
        if len == 0 {
            return Err(Error::InvalidValue);
        }
        let mut memory = self.memory();
        if len > TOTAL - memory.taken {
            return Err(Error::OutOfMemory);
        }
        let at = self.space.alloc(len).ok_or(Error::OutOfMemory)?;
        memory.taken += len;
        memory.device.insert(at, len);
        Ok(at)
    }

    /// Also after a fault: the host wants its memory back.
    pub(super) fn free(&self, at: u64) -> Result<()> {
        let mut memory = self.memory();
        let len = memory.device.remove(&at).ok_or(Error::InvalidValue)?;
        memory.taken -= len;
        self.space.free(at).then_some(()).ok_or(Error::InvalidValue)
    }

    fn alloc_host(&self, len: usize) -> Result<u64> {
        self.check_sound()?;
        if len == 0 {
            return Err(Error::InvalidValue);
        }
        let at = self.space.alloc(len).ok_or(Error::OutOfMemory)?;
        self.memory().pinned.insert(at);
        Ok(at)
    }

    fn free_host(&self, at: u64) -> Result<()> {
        let is_pinned = self.memory().pinned.remove(&at);
        (is_pinned && self.space.free(at)).then_some(()).ok_or(Error::InvalidValue)
    }
}

/// # Safety
/// Both take a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    status(current().and_then(|device| {
        let taken = device.memory().taken;
        // SAFETY: the caller's promise.
        unsafe { put(free, TOTAL - taken).and_then(|()| put(total, TOTAL)) }
    }))
}

/// # Safety
/// `to` takes an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, len: usize) -> Status {
    // SAFETY: the caller's promise.
    status(current().and_then(|device| unsafe { put(to, device.alloc(len)?) }))
}

/// # Safety
/// Nothing uses the memory any more: what runs and was asked for by another thread is not waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(at: u64) -> Status {
    status(started().and_then(|device| device.free(at)))
}

/// # Safety
/// `to` takes an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(to: *mut *mut c_void, len: usize) -> Status {
    // SAFETY: the caller's promise.
    status(current().and_then(|device| unsafe { put(to, device.alloc_host(len)? as *mut c_void) }))
}

/// # Safety
/// As [`cuMemFree_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> Status {
    status(started().and_then(|device| device.free_host(at as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_holds_so_much_and_gets_back_what_was_its_own() {
        let device = Device::default();
        let taken = || device.memory().taken;
        let (large, small) = (device.alloc(3 << 20).unwrap(), device.alloc(1).unwrap());
        assert_eq!(taken(), (3 << 20) + 1);
        assert_eq!(device.alloc(TOTAL - (3 << 20)), Err(Error::OutOfMemory));
        assert_eq!(device.alloc(usize::MAX), Err(Error::OutOfMemory));
        assert_eq!(device.alloc(0), Err(Error::InvalidValue));
        let pinned = device.alloc_host(100).unwrap();
        assert_eq!(taken(), (3 << 20) + 1, "the host's memory is another");
        for (at, why) in [(small + 1, "inside"), (pinned, "pinned"), (0, "null")] {
            assert_eq!(device.free(at), Err(Error::InvalidValue), "{why}");
        }
        assert_eq!(device.free_host(small), Err(Error::InvalidValue));
        for at in [large, small] {
            assert_eq!(device.free(at), Ok(()));
            assert_eq!(device.free(at), Err(Error::InvalidValue), "twice");
        }
        assert_eq!((device.free_host(pinned), taken()), (Ok(()), 0));
    }
}
