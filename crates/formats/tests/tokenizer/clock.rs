//! Time that does not depend on what else the machine does.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time this thread has run, so that other work on the machine does not count; the clock where there is no such file.
pub(crate) fn processor_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let clock = || START.get_or_init(Instant::now).elapsed();
    let Ok(stat) = std::fs::read_to_string("/proc/thread-self/schedstat") else { return clock() };
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).map_or_else(clock, Duration::from_nanos)
}
