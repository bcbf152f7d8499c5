//! Events: when a stream came to them.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{Device, Error, Handle, Result, Status, Work, current, put, started, status};

/// Of `cuEventCreate`: how a thread waits for it, which none has to here, and that it keeps no time.
const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;

/// Of `cuEventRecordWithFlags`: a node of the graph.
const EXTERNAL: c_uint = 1;

pub(super) struct Event {
    keeps_time: bool,
    /// The last time.
    reached: Mutex<Option<Instant>>,
}

impl Event {
    pub(super) fn reach(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn reached(&self) -> Result<Instant> {
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.filter(|_| self.keeps_time).ok_or(Error::InvalidHandle)
    }
}

impl Device {
    fn mark(&self, event: Handle, stream: Handle, flags: c_uint) -> Result<()> {
        let event = self.events.get(event)?;
        match (flags, self.streams.get(stream)?.is_capturing()) {
            (0, false) | (EXTERNAL, true) => self.submit(stream, Work::Mark(event)),
            // An order between streams of one recording.
            (0, true) => Err(Error::NotSupported),
            _ => Err(Error::InvalidValue),
        }
    }

    fn elapsed_ms(&self, from: Handle, to: Handle) -> Result<f32> {
        let (from, to) = (self.events.get(from)?, self.events.get(to)?);
        self.check_sound()?;
        let (from, to) = (from.reached()?, to.reached()?);
        let ms = |later: Instant, earlier| later.duration_since(earlier).as_secs_f64() * 1e3;
        Ok((if to >= from { ms(to, from) } else { -ms(from, to) }) as f32)
    }
}

/// # Safety
/// `to` takes a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut Handle, flags: c_uint) -> Status {
    status(current().and_then(|device| {
        device.check_sound()?;
        if flags & !(BLOCKING_SYNC | DISABLE_TIMING) != 0 {
            return Err(Error::InvalidValue);
        }
        let event = Event { keeps_time: flags & DISABLE_TIMING == 0, reached: Mutex::default() };
        // SAFETY: the caller's promise.
        unsafe { put(to, device.events.add(Arc::new(event))) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> Status {
    status(started().and_then(|device| device.events.remove(event).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) -> Status {
    status(started().and_then(|device| device.mark(event, stream, flags)))
}

/// It was reached when it was recorded, or never was.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> Status {
    status(started().and_then(|device| {
        device.events.get(event)?;
        device.check_sound()
    }))
}

/// # Safety
/// `ms` takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, from: Handle, to: Handle) -> Status {
    // SAFETY: the caller's promise.
    status(started().and_then(|device| unsafe { put(ms, device.elapsed_ms(from, to)?) }))
}
