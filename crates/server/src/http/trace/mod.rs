//! OpenTelemetry, where it was asked for: one span for each request that the model answers, sent to a collector. Nothing
//! that clients wrote is in it but the ids of their trace.

mod endpoint;
mod export;
mod span;

pub use endpoint::Endpoint;
pub use export::{Exporter, Tracer};
pub(crate) use span::{Ended, Span};
