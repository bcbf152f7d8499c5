//! What can go wrong with a device, as values.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};
use overdraft_plan::BackendError;

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error("there is no CUDA driver on this machine (libcuda was not found)")]
    NoDriver,
    #[error("the CUDA driver does not start: {0}")]
    DriverFails(String),
    #[error("there is no CUDA device {asked}: the driver knows {known}")]
    NoDevice { asked: usize, known: usize },
    #[error("{device} has compute capability {major}.{minor}; 8.0 or newer is needed")]
    TooOld { device: String, major: i32, minor: i32 },
    #[error("{call} failed: {name}, {text}")]
    Call { call: &'static str, name: String, text: String },
    #[error("{what}: {needed} bytes are needed on the device and {free} are free")]
    OutOfMemory { what: &'static str, needed: usize, free: usize },
    #[error(
        "this build has no kernels for {arch}, and NVRTC, which could compile them, was not found\n\
         hint: install CUDA's NVRTC library and make libnvrtc findable; release builds have kernels of their own for compute capability 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0"
    )]
    NoCompiler { arch: String },
    #[error("kernel module `{module}` does not compile for {arch}:\n{log}")]
    Compile { module: &'static str, arch: String, log: String },
    #[error("this backend cannot run {what}: {why}")]
    Unsupported { what: String, why: String },
}

impl From<CudaError> for BackendError {
    fn from(e: CudaError) -> Self {
        match e {
            CudaError::OutOfMemory { what, needed, free } => {
                BackendError::OutOfMemory { what, needed, available: free }
            }
            CudaError::Unsupported { what, why } => BackendError::Unsupported { what, why },
            other => BackendError::Device(other.to_string()),
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, CudaError>;

/// The result of a driver call as a value.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text_of = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: `text` receives a pointer to a static string, or stays null for codes the driver does not know.
        let known = unsafe { get(result, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        if !known {
            return format!("{result:?}");
        }
        // SAFETY: not null (checked), and a static string of the driver's.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(CudaError::Call { call, name: text_of(sys::cuGetErrorName), text: text_of(sys::cuGetErrorString) })
}
