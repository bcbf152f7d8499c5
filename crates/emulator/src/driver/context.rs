//! The driver, the device and its context, before anything is asked of it.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use super::device::{set_current, start};
use super::{Error, Handle, Result, Status, put, started, status};

/// CUDA 13.0's.
const VERSION: c_int = 13_000;

const NAME: &str = "CUDA emulated on the CPU";

pub(super) fn check_device(device: c_int) -> Result<()> {
    (device == 0).then_some(()).ok_or(Error::InvalidDevice)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Status {
    if flags != 0 {
        return status(Err(Error::InvalidValue));
    }
    start();
    status(Ok(()))
}

/// # Safety
/// `to` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(to: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    status(unsafe { put(to, VERSION) })
}

/// # Safety
/// `to` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(to: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    status(started().and_then(|_| unsafe { put(to, 1) }))
}

/// # Safety
/// `to` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: the caller's promise.
    status(started().and_then(|_| check_device(ordinal)).and_then(|()| unsafe { put(to, ordinal) }))
}

/// # Safety
/// `to` takes `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, len: c_int, device: c_int) -> Status {
    status(started().and_then(|_| {
        check_device(device)?;
        if to.is_null() || len < 1 {
            return Err(Error::InvalidValue);
        }
        let name = &NAME.as_bytes()[..NAME.len().min(len as usize - 1)];
        // SAFETY: the caller's promise; with its zero the name is no longer than `len`.
        unsafe {
            to.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
            to.add(name.len()).write(0);
        }
        Ok(())
    }))
}

/// # Safety
/// `to` takes a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut Handle, device: c_int) -> Status {
    status(started().and_then(|emulated| {
        check_device(device)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, Handle::CONTEXT) }?;
        emulated.n_retained.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }))
}

/// What is still allocated stays: whoever holds a buffer holds its context.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status {
    status(started().and_then(|emulated| {
        check_device(device)?;
        let released =
            emulated.n_retained.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        released.map(|_| ()).map_err(|_| Error::InvalidContext)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> Status {
    status(started().and_then(|emulated| {
        let is_retained = emulated.n_retained.load(Ordering::Relaxed) > 0;
        match context {
            Handle::NULL => set_current(false),
            Handle::CONTEXT if is_retained => set_current(true),
            _ => return Err(Error::InvalidContext),
        }
        Ok(())
    }))
}
