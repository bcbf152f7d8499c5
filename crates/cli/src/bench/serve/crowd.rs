//! So many clients at once, each with the next request as soon as its last is answered.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::client::{Ask, Told};

/// What a crowd was told, by request, and how long it took.
pub(crate) struct Served {
    pub(crate) told: Vec<Told>,
    pub(crate) seconds: f64,
}

impl Served {
    pub(crate) fn rate(&self) -> f64 {
        self.told.iter().map(|t| t.tokens).sum::<usize>() as f64 / self.seconds
    }

    pub(crate) fn first_ms(&self) -> impl Iterator<Item = f64> {
        self.told.iter().map(|t| millis(t.first))
    }

    pub(crate) fn gaps_ms(&self) -> impl Iterator<Item = f64> {
        self.told.iter().flat_map(|t| t.gaps.iter().copied().map(millis))
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Sends all of `asks`, `streams` at a time. The first failure ends it, as does `stop`.
pub(crate) fn serve(
    address: SocketAddr,
    asks: &[Ask],
    streams: usize,
    stop: impl Fn() -> bool + Sync,
) -> Result<Served, String> {
    let (next, is_broken) = (AtomicUsize::new(0), AtomicBool::new(false));
    let told: Mutex<Vec<(usize, Result<Told, String>)>> = Mutex::new(Vec::with_capacity(asks.len()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..streams.min(asks.len()) {
            scope.spawn(|| {
                while !is_broken.load(Ordering::Relaxed) && !stop() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(ask) = asks.get(at) else { break };
                    let answer = ask.send(address);
                    is_broken.fetch_or(answer.is_err(), Ordering::Relaxed);
                    // Nobody panics while it is held.
                    told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, answer));
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut told = told.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    told.sort_by_key(|t| t.0);
    let told = told.into_iter().map(|t| t.1).collect::<Result<Vec<Told>, String>>()?;
    Ok(Served { told, seconds })
}
