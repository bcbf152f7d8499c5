//! Points in a queue's work that know when they were reached.

use std::sync::Arc;

use cudarc::driver::sys;

use super::{Device, Result, Waiting, check};

pub(crate) struct Event {
    device: Arc<Device>,
    event: sys::CUevent,
}

// SAFETY: a handle; the driver allows any thread with the context current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Whether the driver has the calls of this file: older ones than 12.8 name one of them otherwise.
    pub(crate) fn are_there() -> bool {
        let mut version = 0;
        // SAFETY: `version` receives the number.
        let asked = check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) });
        asked.is_ok() && version >= 12_080
    }

    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        device.make_current()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: a context is current; `event` receives the handle. No flags: it keeps the time.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Self { device: device.clone(), event })
    }

    pub(super) fn handle(&self) -> sys::CUevent {
        self.event
    }

    /// Until it is reached.
    pub(crate) fn wait(&self) -> Result<()> {
        let _waiting = Waiting::begin();
        // SAFETY: a live event.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event) })
    }

    /// Milliseconds from `earlier` to this one, of the device's clock, in steps of about half a microsecond. Both have
    /// been reached.
    pub(crate) fn since(&self, earlier: &Self) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: both are live events; `ms` receives the time.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, earlier.event, self.event) };
        check("cuEventElapsedTime", result)?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: created in `new`, destroyed once; the driver keeps it for work that still needs it.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
