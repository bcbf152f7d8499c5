//! The table of cases that every backend is run against, with [`crate::Cpu::reference`] as the oracle.
//!
//! A case is a small plan around one op. Its inputs are embeddings of `f32` tables, so that a row's token picks its
//! numbers; what it leaves in the compared buffers is read back. Nothing but the [`overdraft_plan::Backend`] trait is
//! needed, so a new backend is tested by
//! ```no_run
//! # use overdraft_cpu::{Cpu, conformance::{self, Kind, Tolerances}};
//! for case in Kind::ALL.into_iter().flat_map(conformance::cases) {
//!     conformance::check(&case, Box::new(Cpu::new(2)), &Tolerances::CPU).unwrap();
//! }
//! ```
//! and by the checks of row invariance: [`check_company`], [`check_chunks`] (a promise of the CPU only),
//! [`check_trees`], and [`check_beside`] where prompts have kernels of their own. Only tests use this; nothing of it is linked into a program that does not.

mod case;
mod closeness;
mod invariance;
mod numbers;
mod rows;
mod session;

pub use case::{Arithmetic, Case, CaseBuilder, Input, Kind, Observed};
pub use closeness::{Distance, Tolerances, check, distance};
pub use invariance::{DEEP_TREE, check_beside, check_chunks, check_company, check_trees};
pub use numbers::{Random, float_matrix, random_matrix};
pub use rows::cases;
pub use session::{Order, Part, RowOutput, Session};

use overdraft_plan::BackendError;

/// What a backend got wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("{case}: {found:?} from the reference, where {bound:?} is promised")]
    TooFar { case: String, found: Distance, bound: Distance },
    #[error("{case}: {situation}: output {element} is {got:?}, alone it is {alone:?}")]
    Bits { case: String, situation: String, element: usize, got: f32, alone: f32 },
}
