//! Streams: what is asked for on one runs at once, or is recorded.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::graph::Graph;
use super::{Device, Error, Handle, Result, Status, Work, current, put, started, status};
use crate::order::Ahead;

#[derive(Default)]
pub(super) struct Stream {
    capture: Mutex<Option<Capture>>,
    ahead: Mutex<Ahead>,
}

#[derive(Default)]
struct Capture {
    nodes: Vec<Work>,
    /// Something was asked for that no graph can hold.
    is_spoilt: bool,
}

impl Stream {
    fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may still be at work, were it a card's.
    pub(super) fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.capture().is_some()
    }

    /// Gives back what is to run at once.
    pub(super) fn record(&self, work: Work) -> Option<Work> {
        match self.capture().as_mut() {
            Some(capture) => {
                capture.nodes.push(work);
                None
            }
            None => Some(work),
        }
    }

    /// For calls that a recording does not survive.
    pub(super) fn spoil(&self) -> Result<()> {
        match self.capture().as_mut() {
            Some(capture) => {
                capture.is_spoilt = true;
                Err(Error::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }

    fn begin(&self) -> Result<()> {
        let mut capture = self.capture();
        if capture.is_some() {
            return Err(Error::IllegalState);
        }
        *capture = Some(Capture::default());
        Ok(())
    }

    fn end(&self) -> Result<Graph> {
        let capture = self.capture().take().ok_or(Error::IllegalState)?;
        if capture.is_spoilt { Err(Error::CaptureInvalidated) } else { Ok(Graph { nodes: capture.nodes }) }
    }
}

impl Device {
    /// Everything asked for is done already.
    pub(super) fn wait(&self, stream: Handle) -> Result<()> {
        self.streams.get(stream)?.spoil()?;
        self.check_sound()
    }
}

/// # Safety
/// `to` takes a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut Handle, flags: c_uint) -> Status {
    // 1: does not wait for the default stream, which nobody has here.
    const NON_BLOCKING: c_uint = 1;
    status(current().and_then(|device| {
        device.check_sound()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(Error::InvalidValue);
        }
        // SAFETY: the caller's promise.
        unsafe { put(to, device.streams.add(Arc::default())) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Status {
    status(started().and_then(|device| device.streams.remove(stream).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> Status {
    status(started().and_then(|device| device.wait(stream)))
}

/// Whose other calls a recording forbids (`mode`) makes no difference: here they do not disturb it.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) -> Status {
    const RELAXED: c_uint = 2;
    status(started().and_then(|device| {
        device.check_sound()?;
        if mode > RELAXED { Err(Error::InvalidValue) } else { device.streams.get(stream)?.begin() }
    }))
}

/// # Safety
/// `to` takes a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, to: *mut Handle) -> Status {
    status(started().and_then(|device| {
        let ended = device.streams.get(stream)?.end();
        let handle = ended.map(|graph| device.graphs.add(Arc::new(graph)));
        // SAFETY: the caller's promise.
        unsafe { put(to, handle.unwrap_or(Handle::NULL)) }.and(handle.map(|_| ()))
    }))
}
