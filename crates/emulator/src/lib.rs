//! CUDA's driver without a card: runs kernels from their PTX, on the CPU, one instruction of a warp after the other.
//!
//! `tests/emulated` puts it in the driver's place, so that the CUDA backend runs whole, host code and kernels, where no card is.

mod code;
pub mod driver;
mod exec;
pub mod grid;
mod matrix;
mod numbers;
pub mod order;
pub mod program;
mod ptx;
pub mod space;
