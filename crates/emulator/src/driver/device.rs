//! The one device: all there is of it, and who may use it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock};

use super::event::Event;
use super::graph::Graph;
use super::memory::Memory;
use super::module::{Function, Module};
use super::stream::Stream;
use super::work::Fault;
use super::{Error, Handle, Result, Table, Work};
use crate::space::Space;

#[derive(Default)]
pub(super) struct Device {
    is_started: AtomicBool,
    pub(super) n_retained: AtomicUsize,
    pub(super) space: Space,
    pub(super) memory: Mutex<Memory>,
    pub(super) modules: Table<Module>,
    pub(super) functions: Table<Function>,
    pub(super) streams: Table<Stream>,
    pub(super) events: Table<Event>,
    pub(super) graphs: Table<Graph>,
    pub(super) execs: Table<Graph>,
    /// Of the first that went wrong. What the device holds since is not to be trusted, so nothing runs any more.
    fault: OnceLock<Error>,
}

static DEVICE: LazyLock<Device> = LazyLock::new(Device::default);

thread_local! {
    static IS_CURRENT: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn start() {
    DEVICE.is_started.store(true, Ordering::Relaxed);
}

/// For calls that touch no context, or whose handles name it.
pub(super) fn started() -> Result<&'static Device> {
    DEVICE.is_started.load(Ordering::Relaxed).then_some(&*DEVICE).ok_or(Error::NotInitialized)
}

/// For calls that make something in the thread's context.
pub(super) fn current() -> Result<&'static Device> {
    let device = started()?;
    let is_current = IS_CURRENT.get() && device.n_retained.load(Ordering::Relaxed) > 0;
    is_current.then_some(device).ok_or(Error::InvalidContext)
}

pub(super) fn set_current(is_current: bool) {
    IS_CURRENT.set(is_current);
}

impl Device {
    /// Nothing runs, and nothing is waited for, on a device that went wrong.
    pub(super) fn check_sound(&self) -> Result<()> {
        self.fault.get().map_or(Ok(()), |fault| Err(*fault))
    }

    /// Runs it, or adds it to what its stream records.
    pub(super) fn submit(&self, stream: Handle, work: Work) -> Result<()> {
        let stream = self.streams.get(stream)?;
        self.check_sound()?;
        work.check(&self.space)?;
        match stream.record(work) {
            Some(work) => self.run(&stream, &work),
            None => Ok(()),
        }
    }

    pub(super) fn run(&self, stream: &Stream, work: &Work) -> Result<()> {
        self.check_sound()?;
        work.run(&self.space, &mut stream.ahead()).map_err(|Fault { error, text }| {
            if self.fault.set(error).is_ok() {
                eprintln!("emulator: {text}");
            }
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn nothing_runs_after_a_fault() {
        let device = Device::default();
        let (at, len) = (device.alloc(64).unwrap(), 64);
        let stream = device.streams.add(Arc::new(Stream::default()));
        let fill = || Work::Fill { at, byte: 7, len };
        device.submit(stream, fill()).unwrap();
        let graph = Graph { nodes: vec![fill()] };
        let exec = device.execs.add(Arc::new(graph));
        device.replay(exec, stream).unwrap();
        device.free(at).unwrap();
        assert_eq!(device.submit(stream, fill()), Err(Error::InvalidValue), "seen before it is asked for");
        for what in ["the graph's memory is gone", "and so it stays"] {
            assert_eq!(device.replay(exec, stream), Err(Error::IllegalAddress), "{what}");
        }
        assert_eq!(device.wait(stream), Err(Error::IllegalAddress));
        assert_eq!(device.alloc(len), Err(Error::IllegalAddress));
        assert_eq!(device.submit(stream, fill()), Err(Error::IllegalAddress));
    }
}
