//! What a stream is asked for.

use std::sync::Arc;

use super::event::Event;
use super::{Error, Result};
use crate::grid::{self, Launch};
use crate::order::Ahead;
use crate::space::Space;

/// In a graph it is run as often as the graph is.
pub(super) enum Work {
    /// Checked when it was made: what it allows and needs does not change.
    Launch(Launch),
    Copy {
        from: Place,
        to: Place,
        len: usize,
    },
    Fill {
        at: u64,
        byte: u8,
        len: usize,
    },
    Mark(Arc<Event>),
}

#[derive(Clone, Copy)]
pub(super) enum Place {
    Device(u64),
    Host(u64),
}

impl Place {
    fn at(self) -> u64 {
        match self {
            Self::Device(at) | Self::Host(at) => at,
        }
    }

    fn is_there(self, len: usize, space: &Space) -> bool {
        match self {
            Self::Device(at) => space.find(at, len).is_some(),
            // What is not pinned is the caller's own, who alone knows how long it is.
            Self::Host(at) => at != 0 && (space.find(at, 1).is_none() || space.find(at, len).is_some()),
        }
    }
}

/// What went wrong on the device, and in which words a reader finds it.
pub(super) struct Fault {
    pub(super) error: Error,
    pub(super) text: String,
}

impl Work {
    pub(super) fn check(&self, space: &Space) -> Result<()> {
        let is_there = match self {
            Self::Launch(_) | Self::Mark(_) => true,
            Self::Copy { from, to, len } => {
                // The driver lets overlapping ones pass and copies in any order.
                let is_apart = from.at().abs_diff(to.at()) >= *len as u64;
                is_apart && from.is_there(*len, space) && to.is_there(*len, space)
            }
            Self::Fill { at, len, .. } => space.find(*at, *len).is_some(),
        };
        is_there.then_some(()).ok_or(Error::InvalidValue)
    }

    /// `ahead`: what the stream was asked for before.
    pub(super) fn run(&self, space: &Space, ahead: &mut Ahead) -> std::result::Result<(), Fault> {
        // Of a graph's buffers some may be gone by now.
        self.check(space).map_err(|_| Fault { error: Error::IllegalAddress, text: self.to_string() })?;
        if !matches!(self, Self::Launch(_)) {
            ahead.clear();
        }
        match self {
            Self::Launch(launch) => grid::run(launch, space, ahead).map_err(|text| Fault {
                error: Error::LaunchFailed,
                text: format!("kernel {}: {text}", launch.kernel.name),
            })?,
            Self::Copy { from, to, len } => {
                let (from, to) = (from.at() as *const u8, to.at() as *mut u8);
                // SAFETY: what the device has is allocated and does not overlap (checked); the rest was promised by who asked for
                // the copy, and that nobody else uses these bytes meanwhile.
                unsafe { to.copy_from_nonoverlapping(from, *len) };
            }
            // SAFETY: allocated (checked), and nobody else uses these bytes meanwhile, as who asked for it promised.
            Self::Fill { at, byte, len } => unsafe { (*at as *mut u8).write_bytes(*byte, *len) },
            Self::Mark(event) => event.reach(),
        }
        Ok(())
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Launch(launch) => write!(f, "kernel {}", launch.kernel.name),
            Self::Copy { from, to, len } => {
                write!(f, "copy of {len} bytes from {:#x} to {:#x}", from.at(), to.at())
            }
            Self::Fill { at, len, .. } => write!(f, "memset of {len} bytes at {at:#x}"),
            Self::Mark(_) => write!(f, "event"),
        }
    }
}
