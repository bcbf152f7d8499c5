//! The whole engine but its kernels under a seeded simulation: scheduler, pages, prefix cache, speculation and handle
//! are the real ones, device, time and clients are made up. A seed says everything, so a failure can be looked at again.

mod device;
mod random;
mod text;
mod throughput;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overdraft_engine::Clock;

/// Time that moves only when told to.
pub(crate) struct VirtualClock {
    origin: Instant,
    nanos: AtomicU64,
}

impl VirtualClock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), nanos: AtomicU64::new(0) }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn advance_to(&self, to: Instant) {
        self.nanos.fetch_max((to - self.origin).as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.origin + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}
