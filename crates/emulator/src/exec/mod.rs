//! Runs [`crate::code`]: warps by turns, lanes of a warp together as far as they are at the same place.
//!
//! What is exact: who waits for whom, which addresses are touched, every instruction's result but for approximations (`ex2`, `rsqrt`) and
//! the order of sums in matrix instructions. What is not: time. Copies, stores and matrices are done when they are asked for and seen by all at once,
//! so what only lacks a fence is not found. Launches run one after the other; what lacks a wait for the one ahead is found by [`crate::order`].

mod access;
mod addresses;
mod exchange;
mod lanes;
mod matrices;
mod meeting;
mod step;
mod warp;

pub(crate) use addresses::{Memory, SHARED_BASE, window};
pub(crate) use meeting::{ClusterMeeting, Meetings};
pub(crate) use warp::{Around, Outcome, Warp, Where};
