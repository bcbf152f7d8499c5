//! Connections: accepted, bounded in number and patience, and let finish when the server stops.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::app::{App, HttpConfig};
use super::log::Log;
use super::patient::Patient;
use super::routes::router;
use crate::handle::{EngineHandle, Health};

/// Bytes of a request's head at most, and of what is read ahead of it.
const MAX_HEAD_BYTES: usize = 32 << 10;
const MAX_HEADERS: usize = 100;

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything that had begun was finished.
    Drained,
    /// Some requests were cut off when their time was over.
    CutOff,
    /// The engine stopped, or a step of it never returned: only a new process helps.
    EngineLost,
}

/// Ready when the engine is beyond help, and those who waited for it have heard so.
async fn lost(handle: &EngineHandle, log: &Log) {
    let mut was_stuck = false;
    loop {
        sleep(Duration::from_millis(500)).await;
        match handle.health() {
            Health::Ready | Health::Draining => was_stuck = false,
            Health::Dead { reason } => {
                log.line("engine-stopped", &[("reason", reason.into())]);
                break sleep(Duration::from_secs(1)).await;
            }
            Health::Stuck { seconds } => {
                if !std::mem::replace(&mut was_stuck, true) {
                    log.line("engine-stuck", &[("seconds", seconds.into())]);
                }
                // A first step may compile kernels: slow is not lost until twice the time has passed.
                if Duration::from_secs(seconds) > 2 * handle.limits().watchdog {
                    break;
                }
            }
        }
    }
}

/// Serves until `stop` is ready, then drains: health says so at once, new requests are refused with the advice to go
/// elsewhere, and what runs may finish within its time.
pub async fn serve(
    listener: TcpListener,
    handle: EngineHandle,
    config: HttpConfig,
    stop: impl Future<Output = ()>,
) -> Result<Stopped, String> {
    let (log, drain_timeout) = (config.log.clone(), config.drain_timeout);
    let (max_connections, head_timeout) = (config.max_connections, config.head_timeout);
    let write_timeout = config.write_timeout;
    let app = Arc::new(App::new(handle.clone(), config)?);
    // Sorting a large vocabulary takes seconds; the first grammar should not wait for it. Where it fails, requests that
    // need it hear why.
    let grammars = app.grammars.clone();
    tokio::task::spawn_blocking(move || grammars.warm());
    let service = router(app);
    let room = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);

    let mut drained = std::pin::pin!(async {
        stop.await;
        handle.drain();
        log.line(
            "draining",
            &[("running", handle.gauges().running.into()), ("waiting", handle.gauges().waiting.into())],
        );
        // Connections are still answered while it lasts: probes must see 503, and clients where to go.
        let over = async {
            while handle.gauges().running + handle.gauges().waiting > 0 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(drain_timeout, over).await.is_ok()
    });
    let mut lost = std::pin::pin!(lost(&handle, &log));
    let drained = loop {
        tokio::select! {
            drained = &mut drained => break drained,
            () = &mut lost => return Ok(Stopped::EngineLost),
            accepted = listener.accept() => {
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Out of file descriptors, or a connection that was gone already: others go on.
                        log.line("accept-failed", &[("error", error.kind().to_string().into())]);
                        sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                };
                // A full house closes the door at once; waiting would fill the system's queue instead.
                let Ok(place) = room.clone().try_acquire_owned() else { continue };
                // Small chunks must not wait for acknowledgements.
                let _ = stream.set_nodelay(true);
                let stream = TokioIo::new(Patient::new(stream, write_timeout));
                let connection = http.serve_connection(stream, TowerToHyperService::new(service.clone()));
                let watched = graceful.watch(connection);
                tokio::spawn(async move {
                    // Whatever ends a connection is its client's affair.
                    let _ = watched.await;
                    drop(place);
                });
            }
        }
    };
    drop(listener);
    // The engine is done; what is left is the last bytes of answers.
    let closed = timeout(Duration::from_secs(5), graceful.shutdown()).await.is_ok();
    let stopped = if drained && closed { Stopped::Drained } else { Stopped::CutOff };
    log.line("stopped", &[("drained", (stopped == Stopped::Drained).into())]);
    Ok(stopped)
}
