//! The engine on its own thread: submit, stream, cancel, and what it is doing. Nothing here blocks an async task.

pub(crate) mod desk;
mod facts;
mod figures;
mod histogram;
mod job;
mod stream;
mod thread;
mod turns;
mod update;

pub use facts::{About, ModelFacts};
pub use figures::{FailCounts, FinishCounts, Gauges, Totals};
pub use histogram::Histogram;
pub use job::{Job, Limits, Refused};
pub use stream::Stream;
pub use thread::{EngineHandle, Health};
pub use update::{FailKind, Timings, TokenOut, Update};
