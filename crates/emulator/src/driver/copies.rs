//! Copies and fills.

use std::ffi::c_void;

use super::{Handle, Place, Result, Status, Work, started, status};

fn copy(from: Place, to: Place, len: usize, stream: Handle) -> Result<()> {
    let device = started()?;
    // The driver does nothing where there is nothing to do, whatever the addresses.
    if len == 0 { Ok(()) } else { device.submit(stream, Work::Copy { from, to, len }) }
}

/// # Safety
/// `from` holds `len` bytes when the copy is run, and nobody else uses the bytes at `to` then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    stream: Handle,
) -> Status {
    status(copy(Place::Host(from as u64), Place::Device(to), len, stream))
}

/// # Safety
/// `to` has room for `len` bytes when the copy is run, and nobody else uses them then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    len: usize,
    stream: Handle,
) -> Status {
    status(copy(Place::Device(from), Place::Host(to as u64), len, stream))
}

/// # Safety
/// Nobody else uses the bytes when the copy is run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) -> Status {
    status(copy(Place::Device(from), Place::Device(to), len, stream))
}

/// # Safety
/// Nobody else uses the bytes when they are filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(at: u64, byte: u8, len: usize, stream: Handle) -> Status {
    status(started().and_then(|device| {
        if len == 0 { Ok(()) } else { device.submit(stream, Work::Fill { at, byte, len }) }
    }))
}
