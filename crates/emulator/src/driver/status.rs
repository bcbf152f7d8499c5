//! What a call answers: 0, or why not.

use std::ffi::{CStr, c_char};

/// `CUresult`. Callers hold it in an enum of the driver's codes: only those below may come out.
pub type Status = u32;

pub(super) type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Error {
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    NoBinaryForGpu = 209,
    InvalidPtx = 218,
    InvalidHandle = 400,
    IllegalState = 401,
    NotFound = 500,
    IllegalAddress = 700,
    LaunchFailed = 719,
    NotSupported = 801,
    CaptureUnsupported = 900,
    CaptureInvalidated = 901,
    InvalidClusterSize = 912,
}

/// Name and explanation of each code.
const TEXTS: [(u32, &CStr, &CStr); 18] = [
    (0, c"CUDA_SUCCESS", c"no error"),
    (Error::InvalidValue as u32, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (Error::OutOfMemory as u32, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (Error::NotInitialized as u32, c"CUDA_ERROR_NOT_INITIALIZED", c"cuInit was not called"),
    (Error::InvalidDevice as u32, c"CUDA_ERROR_INVALID_DEVICE", c"there is no such device"),
    (Error::InvalidImage as u32, c"CUDA_ERROR_INVALID_IMAGE", c"not a module"),
    (Error::InvalidContext as u32, c"CUDA_ERROR_INVALID_CONTEXT", c"no context, or not this thread's"),
    (Error::NoBinaryForGpu as u32, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"machine code, where only PTX runs"),
    (Error::InvalidPtx as u32, c"CUDA_ERROR_INVALID_PTX", c"PTX that is not understood"),
    (Error::InvalidHandle as u32, c"CUDA_ERROR_INVALID_HANDLE", c"a handle that is none, or no longer"),
    (Error::IllegalState as u32, c"CUDA_ERROR_ILLEGAL_STATE", c"begun twice, or ended and not begun"),
    (Error::NotFound as u32, c"CUDA_ERROR_NOT_FOUND", c"the module has no such kernel"),
    (Error::IllegalAddress as u32, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"memory that is not allocated"),
    (Error::LaunchFailed as u32, c"CUDA_ERROR_LAUNCH_FAILED", c"a kernel failed (stderr says how)"),
    (Error::NotSupported as u32, c"CUDA_ERROR_NOT_SUPPORTED", c"not emulated"),
    (Error::CaptureUnsupported as u32, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"not while recording"),
    (Error::CaptureInvalidated as u32, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"the recording was spoilt"),
    (Error::InvalidClusterSize as u32, c"CUDA_ERROR_INVALID_CLUSTER_SIZE", c"the grid is no whole clusters"),
];

pub(super) fn status(result: Result<()>) -> Status {
    match result {
        Ok(()) => 0,
        Err(error) => error as u32,
    }
}

/// # Safety
/// `to` is null or takes a `T`.
pub(super) unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Error::InvalidValue);
    }
    // SAFETY: not null (checked); the rest is the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// # Safety
/// `to` is null or takes a pointer.
unsafe fn put_text(
    status: Status,
    to: *mut *const c_char,
    of: fn(&(u32, &CStr, &CStr)) -> *const c_char,
) -> Status {
    let known = TEXTS.iter().find(|(code, ..)| *code == status);
    // SAFETY: the caller's promise. Codes that are none have no text.
    let put = unsafe { put(to, known.map_or(std::ptr::null(), of)) };
    self::status(put.and(known.map(|_| ()).ok_or(Error::InvalidValue)))
}

/// # Safety
/// As [`put_text`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(status: Status, to: *mut *const c_char) -> Status {
    // SAFETY: the caller's promise.
    unsafe { put_text(status, to, |(_, name, _)| name.as_ptr()) }
}

/// # Safety
/// As [`put_text`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(status: Status, to: *mut *const c_char) -> Status {
    // SAFETY: the caller's promise.
    unsafe { put_text(status, to, |(.., text)| text.as_ptr()) }
}
