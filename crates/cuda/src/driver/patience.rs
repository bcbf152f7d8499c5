//! How long the host has been waiting for the device. A kernel that never ends cannot be stopped from outside; the process can.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait is looked at before it counts as one without end. By looks, not by the clock, which goes on while a process is stopped
/// (Ctrl-Z, a debugger): a look that comes late is none.
const LOOKS: u32 = 8;

/// Waits under way: a number, and how often it was looked at.
struct Waits {
    begun: Vec<(u64, u32)>,
    next: u64,
}

static WAITS: Mutex<Waits> = Mutex::new(Waits { begun: Vec::new(), next: 0 });

fn waits() -> MutexGuard<'static, Waits> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while the host waits.
pub(crate) struct Waiting(u64);

impl Waiting {
    pub(crate) fn begin() -> Self {
        let mut waits = waits();
        let number = waits.next;
        waits.next += 1;
        waits.begun.push((number, 0));
        Self(number)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        waits().begun.retain(|(number, _)| *number != self.0);
    }
}

/// Whether one has now been looked at often enough.
fn look() -> bool {
    let mut waits = waits();
    waits.begun.iter_mut().for_each(|(_, looks)| *looks += 1);
    waits.begun.iter().any(|(_, looks)| *looks > LOOKS)
}

/// Looks now and then, for the life of the process, whether something has been waiting for a device for longer than `limit`, and
/// then calls `act` once.
pub fn when_stuck(limit: Duration, act: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let watch = move || {
        let pause = limit / LOOKS;
        loop {
            let begun = Instant::now();
            std::thread::sleep(pause);
            if begun.elapsed() < 2 * pause && look() {
                return act();
            }
        }
    };
    std::thread::Builder::new().name("device watchdog".into()).spawn(watch).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    #[test]
    fn a_wait_without_end_is_noticed_and_short_ones_are_not() {
        let (tell, told) = mpsc::channel();
        when_stuck(Duration::from_millis(400), move || tell.send(()).unwrap()).unwrap();
        for _ in 0..100 {
            let _short = Waiting::begin();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(told.try_recv().is_err(), "many short waits are none that lasts");
        let begun = Instant::now();
        let _endless = Waiting::begin();
        let _other = Waiting::begin();
        told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(350), "{:?}", begun.elapsed());
    }
}
