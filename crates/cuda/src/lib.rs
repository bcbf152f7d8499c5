//! The CUDA backend. The driver is loaded at run time: a machine without one runs the same binary on the CPU.

mod backend;
mod driver;
mod kernels;
mod linear;
mod mirror;
mod ops;
mod outbox;
mod plan_memory;
mod repack;
mod rounds;
mod state;
mod step_data;
mod watch;
mod weights;

pub use backend::Cuda;
pub use driver::{CudaError, Device, Pretence, when_stuck};

/// For the tools that compile kernels where there is no device.
pub mod build {
    pub use crate::driver::archive::append;
    pub use crate::driver::compile::{RELEASE_ARCHES, compile_each, nvrtc_is_present};
    pub use crate::kernels::{modules, source_hash};
}
