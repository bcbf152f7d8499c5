//! The CPU backend: threads and SIMD, and beside them the plain definition of every op, which all backends are
//! tested against.

mod backend;
pub mod conformance;
mod lanes;
pub mod linear;
pub mod machine;
mod math;
mod memory;
mod ops;
pub mod pool;
mod shared;
mod simd;
mod sums;
pub mod workload;

pub use backend::Cpu;
