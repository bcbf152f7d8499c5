//! The narrow waist between models and backends.
//!
//! A model *records* coarse ops into a [`Plan`] for a bucket of rows; a [`Backend`] replays it. Everything that
//! changes from step to step (tokens, positions, parents, lengths, page tables) is data in a [`Step`], never part
//! of the plan, so a plan is recorded once and replayed forever.

mod backend;
mod defined_rounds;
pub mod draw;
mod host_rounds;
mod op;
mod plan;
mod recorder;
mod round;
mod round_definition;
mod state;
mod step;
mod weights;

pub use backend::{Backend, BackendError, DeviceUse, Footprint, PlanId, StateId};
pub use defined_rounds::DefinedRounds;
pub use host_rounds::HostRounds;
pub use op::*;
pub use plan::{Act, ActSpec, Choice, KeptRows, Plan, RowSet};
pub use recorder::Recorder;
pub use round::{
    DraftPart, Fate, Found, MAX_ENTERING, MAX_FOUND, MAX_LISTED, MAX_RESIDENTS, MAX_ROUND_ROWS,
    MAX_ROUND_TREE, MAX_STOP_IDS, Member, Outcome, Pace, Resident, RoundBlock, RoundDraft, RoundId,
    RoundNode, RoundSpec, Terms,
};
pub use round_definition::{accept, cut, grow};
pub use state::{
    AttentionState, CONV_ROWS, GRID, KvType, LayerState, MAX_DRAFT_DEPTH, NO_PAGE, PAGE, RecurrentState,
    Retention, StateSpec, TAP_ROWS, WINDOW_ROWS, grid_of,
};
pub use step::{NO_PARENT, Row, RowView, SeqView, Step, StepError};
pub use weights::{Matrix, MatrixId, VectorId, Weights};

/// Row counts that plans are recorded for. A step takes the smallest bucket that holds its rows.
pub const BUCKETS: [usize; 15] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048];

/// The smallest bucket with room for `rows`, if any has.
pub fn bucket_for(rows: usize) -> Option<usize> {
    BUCKETS.into_iter().find(|b| *b >= rows)
}
