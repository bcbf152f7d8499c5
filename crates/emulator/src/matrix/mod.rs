//! What the 32 lanes of a warp do together with matrices, by the layouts of fragments that the PTX ISA manual
//! gives.
//!
//! Every product sums in one order: from C (or zero) over k = 0, 1, ... in f32. Hardware has its own; and
//! here the same numbers give the same bits in every instruction, whatever else it computes beside them.

mod descriptor;
mod floats;
mod fragments;
mod mma;
mod squares;
mod sums;
mod wgmma;
mod wide;

#[cfg(test)]
mod tests;

pub(crate) use descriptor::Descriptor;
pub(crate) use floats::{Half, f16_to_f32, f32_to_f16};
pub(crate) use mma::{mma_m16n8k8_tf32, mma_m16n8k16};
pub(crate) use squares::{Square, ldmatrix, stmatrix};
pub(crate) use wgmma::wgmma;

/// A register of a warp.
pub(crate) type Lanes = [u32; 32];
