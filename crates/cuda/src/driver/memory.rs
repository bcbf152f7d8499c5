//! Device and pinned host memory that frees itself.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::{CudaError, Device, Result, check};

/// What an allocation of so many bytes takes from a device's memory: the driver gives out pages of 2 MB, which only small
/// ones share.
pub(crate) fn device_bytes(len: usize) -> usize {
    const PAGE: usize = 2 << 20;
    if len > PAGE / 2 { len.next_multiple_of(PAGE) } else { len.next_multiple_of(512) }
}

/// Device memory. Never moves, so that graphs may hold its address.
pub(crate) struct DeviceBuffer {
    device: Arc<Device>,
    ptr: sys::CUdeviceptr,
    len: usize,
}

impl DeviceBuffer {
    /// `len` bytes, not cleared.
    pub(crate) fn new(device: &Arc<Device>, what: &'static str, len: usize) -> Result<Self> {
        device.make_current()?;
        let mut ptr = 0;
        // The driver refuses an allocation of nothing.
        // SAFETY: a context is current; `ptr` receives the address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut ptr, len.max(256)) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(CudaError::OutOfMemory { what, needed: len, free: device.memory()?.0 });
        }
        check("cuMemAlloc", result)?;
        Ok(Self { device: device.clone(), ptr, len })
    }

    pub(crate) fn ptr(&self) -> u64 {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated in `new`, freed once. The driver waits for work that uses it.
            unsafe { sys::cuMemFree_v2(self.ptr) };
        }
    }
}

/// Host memory the device copies from and to without a detour.
pub(crate) struct PinnedBuffer {
    device: Arc<Device>,
    ptr: *mut u8,
    len: usize,
}

// SAFETY: plain memory of its own.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Self> {
        device.make_current()?;
        let mut ptr = std::ptr::null_mut();
        // SAFETY: a context is current; `ptr` receives the address.
        let result = unsafe { sys::cuMemAllocHost_v2(&mut ptr, len.max(256)) };
        check("cuMemAllocHost", result)?;
        // SAFETY: freshly allocated with at least `len` bytes.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, len.max(256)) };
        Ok(Self { device: device.clone(), ptr: ptr.cast(), len })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first `n` values.
    ///
    /// # Safety
    /// The device does not write them while the result lives, and any bits are a valid `T`.
    pub(crate) unsafe fn read<T: Copy>(&self, n: usize) -> &[T] {
        assert!(n * size_of::<T>() <= self.len, "{n} values of a pinned buffer of {} bytes", self.len);
        // SAFETY: in bounds (asserted), zeroed or written since, pinned memory is page aligned; the rest is the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), n) }
    }

    /// All of it as words.
    ///
    /// # Safety
    /// The device does not touch it while the result lives.
    pub(crate) unsafe fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: page aligned, initialised, exclusive by `&mut`; the device's part is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.len / 4) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            unsafe { sys::cuMemFreeHost(self.ptr.cast()) };
        }
    }
}
