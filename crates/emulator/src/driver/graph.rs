//! Graphs: what a stream recorded, in that order.

use std::ffi::{c_ulonglong, c_void};

use super::{Device, Error, Handle, Result, Status, Work, put, started, status};

pub(super) struct Graph {
    pub(super) nodes: Vec<Work>,
}

impl Device {
    pub(super) fn replay(&self, exec: Handle, stream: Handle) -> Result<()> {
        let (graph, stream) = (self.execs.get(exec)?, self.streams.get(stream)?);
        // The driver would make it a node of the other one.
        stream.spoil()?;
        self.check_sound()?;
        // A graph begins when all before it has ended.
        stream.ahead().clear();
        graph.nodes.iter().try_for_each(|work| self.run(&stream, work))?;
        stream.ahead().clear();
        Ok(())
    }
}

/// How many there are; they have no handles.
///
/// # Safety
/// `n` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut *mut c_void, n: *mut usize) -> Status {
    status(started().and_then(|device| {
        let graph = device.graphs.get(graph)?;
        if !nodes.is_null() {
            return Err(Error::NotSupported);
        }
        // SAFETY: the caller's promise.
        unsafe { put(n, graph.nodes.len()) }
    }))
}

/// # Safety
/// `to` takes a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    to: *mut Handle,
    graph: Handle,
    flags: c_ulonglong,
) -> Status {
    status(started().and_then(|device| {
        let graph = device.graphs.get(graph)?;
        device.check_sound()?;
        if flags != 0 {
            return Err(Error::NotSupported);
        }
        // SAFETY: the caller's promise.
        unsafe { put(to, device.execs.add(graph)) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> Status {
    status(started().and_then(|device| device.graphs.remove(graph).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: Handle) -> Status {
    status(started().and_then(|device| device.execs.remove(exec).map(|_| ())))
}

/// # Safety
/// What its nodes were promised holds each time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> Status {
    status(started().and_then(|device| device.replay(exec, stream)))
}
