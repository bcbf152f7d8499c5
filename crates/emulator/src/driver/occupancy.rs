//! How many blocks of a kernel a multiprocessor would run at once.

use std::ffi::c_int;

use super::attributes::{ALL_SHARED, BLOCK_SHARED, BLOCKS_AT_ONCE, THREADS_AT_ONCE};
use super::{Error, Handle, Result, Status, put, started, status};

/// Registers do not count: nobody knows how many a kernel would have.
fn blocks_at_once(threads: c_int, shared_bytes: usize) -> Result<c_int> {
    let threads = u32::try_from(threads).ok().filter(|n| *n > 0).ok_or(Error::InvalidValue)?;
    let by_shared = ALL_SHARED / shared_bytes.saturating_add(BLOCK_SHARED);
    let by_threads = (THREADS_AT_ONCE / threads) as usize;
    Ok(by_shared.min(by_threads).min(BLOCKS_AT_ONCE) as c_int)
}

/// # Safety
/// `to` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    to: *mut c_int,
    function: Handle,
    threads: c_int,
    shared_bytes: usize,
) -> Status {
    status(started().and_then(|device| {
        let fixed = device.functions.get(function)?.kernel.static_shared;
        // SAFETY: the caller's promise.
        unsafe { put(to, blocks_at_once(threads, shared_bytes.saturating_add(fixed))?) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_out_first_says_how_many_blocks() {
        for (threads, shared_bytes, n) in [
            (32, 0, Ok(32)),
            (128, 0, Ok(16)),
            (1024, 0, Ok(2)),
            (2049, 0, Ok(0)),
            (128, 48 << 10, Ok(4)),
            (128, 227 << 10, Ok(1)),
            (128, (227 << 10) + 1, Ok(0)),
            (128, usize::MAX, Ok(0)),
            (0, 0, Err(Error::InvalidValue)),
            (-1, 0, Err(Error::InvalidValue)),
        ] {
            assert_eq!(blocks_at_once(threads, shared_bytes), n, "{threads} threads, {shared_bytes} bytes");
        }
    }
}
