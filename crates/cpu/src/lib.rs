//! The CPU backend: threads and SIMD.

pub mod linear;
pub mod pool;
