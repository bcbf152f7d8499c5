//! What is known of the device without touching it.

use std::ffi::c_int;

use super::context::check_device;
use super::{Error, Result, Status, put, started, status};

/// Threads of a block.
pub(super) const MAX_THREADS: u32 = 1024;

/// Shared memory of a block that asked for it, as on Hopper and Blackwell's large cards.
pub(super) const MAX_SHARED: usize = 227 << 10;

/// Of one that did not.
pub(super) const USUAL_SHARED: usize = 48 << 10;

/// Shared memory of a multiprocessor, and what each block takes of it beside its own.
pub(super) const ALL_SHARED: usize = 228 << 10;
pub(super) const BLOCK_SHARED: usize = 1 << 10;

/// What a multiprocessor holds at once.
pub(super) const THREADS_AT_ONCE: u32 = 2048;
pub(super) const BLOCKS_AT_ONCE: usize = 32;

/// Values of `CUdevice_attribute`.
fn attribute(which: u32) -> Result<c_int> {
    Ok(match which {
        // Threads of a block.
        1 => MAX_THREADS as c_int,
        // Shared memory of a block that asks for no more.
        8 => USUAL_SHARED as c_int,
        // Lanes of a warp.
        10 => 32,
        // Multiprocessors: enough that work is dealt out, few enough that each has some in a test.
        16 => 4,
        // Compute capability, major and minor. No card has this one: kernels are made for a card that is named, and then as PTX.
        75 => 20,
        76 => 0,
        // Shared memory of a block that asks.
        97 => MAX_SHARED as c_int,
        // Memory that a launch can say something about: what it would say is about caches.
        109 => 0,
        _ => return Err(Error::InvalidValue),
    })
}

/// # Safety
/// `to` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(to: *mut c_int, which: u32, device: c_int) -> Status {
    status(started().and_then(|_| {
        check_device(device)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, attribute(which)?) }
    }))
}
