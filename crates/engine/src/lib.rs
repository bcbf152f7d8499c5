//! Sequences, pages, memory, sampling and the step that moves them on. Knows no HTTP and no kernel.

mod clock;
mod constraint;
mod engine;
mod error;
mod event;
mod experience;
mod footprint;
mod ledger;
mod logprobs;
mod memory;
pub mod noise;
mod options;
mod plans;
mod propose;
mod request;
mod resident;
mod round;
mod round_sizes;
pub mod sampling;
mod schedule;
mod sequence;
pub mod spec;
mod stats;
mod stop;

pub use clock::{Clock, SystemClock};
pub use constraint::Constraint;
pub use engine::{Engine, EngineConfig};
pub use error::{EngineError, Result};
pub use event::{Event, Events, Origin, Witness};
pub use experience::Experience;
pub use footprint::plan_state;
pub use ledger::{Ledger, available_memory, human};
pub use logprobs::{Logprobs, MAX_TOP};
pub use options::{Options, Speculative};
pub use overdraft_plan::draw::Drawing;
pub use request::{Bounds, Finish, Request, SeqId};
pub use sampling::Sampling;
pub use stats::{Phases, Plain, Stats};
pub use stop::TextStream;

pub use overdraft_plan::DeviceUse;
