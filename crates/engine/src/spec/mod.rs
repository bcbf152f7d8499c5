//! Speculative decoding without a device: what to propose, how much of it is worth verifying, and what to accept.
//!
//! A round: the [`policy`] says whether to draft, a [`drafter`] fills a [`tree`] (by [`ddtree`], [`ngram`] or both),
//! [`budget`] cuts it where the next node costs more than it brings, for all sequences of a step [`together`], the target verifies, [`accept`] walks, and
//! [`calibration`], [`cost`] and policy learn from the outcome. None of this can change a text, only its speed.
#![forbid(unsafe_code)]

pub mod accept;
pub mod budget;
pub mod by_rule;
pub mod calibration;
pub mod cost;
pub mod ddtree;
pub mod drafter;
pub mod forced;
pub mod gate;
pub mod learned;
pub mod ngram;
pub mod policy;
pub mod prospect;
pub mod reach;
pub mod scripted;
pub mod together;
pub mod tree;
pub mod trials;

#[cfg(test)]
mod replay;
#[cfg(test)]
mod simulate;
