//! NVIDIA's driver as far as `crates/cuda` calls it: the same names, arguments and results. Everything asked for runs at once, in the
//! thread that asks, unless its stream is being recorded. What a call refuses it refuses as the driver does; what this one does not
//! have (and nobody here asks for) is `CUDA_ERROR_NOT_SUPPORTED`.

mod attributes;
mod context;
mod copies;
mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod occupancy;
mod status;
mod stream;
mod table;
mod work;

#[cfg(test)]
mod tests;

pub use attributes::*;
pub use context::*;
pub use copies::*;
pub use event::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use occupancy::*;
pub use status::{Status, cuGetErrorName, cuGetErrorString};
pub use stream::*;
pub use table::Handle;

use device::{Device, current, started};
use status::{Error, Result, put, status};
use table::Table;
use work::{Place, Work};
