//! From PTX to instructions that [`crate::exec`] runs.

mod allocate;
mod arithmetic;
mod body;
mod convert;
mod memory;
mod module;
mod names;
mod statements;
mod sync;
mod tokens;

pub(crate) use module::read;
