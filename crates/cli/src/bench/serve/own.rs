//! Our own server inside this process, as `overdraft serve` starts it but for its prefix cache: every prompt is read.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use overdraft_server::handle::{About, EngineHandle, Limits};
use overdraft_server::http::{HttpConfig, serve};
use tokio::sync::oneshot;

use super::super::args::ServeArgs;
use super::super::decode::Pair;
use crate::failure::{Failure, Result};
use crate::run::raw_tokens;
use crate::screen::Screen;

/// As the command's default.
const TOKEN_GAP: Duration = Duration::from_millis(100);

pub(crate) struct Own {
    pub(crate) address: SocketAddr,
    pub(crate) device: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Own {
    pub(crate) fn start(
        args: &ServeArgs,
        prompts: &[String],
        streams: usize,
        screen: &Screen,
    ) -> Result<Self> {
        let failed = |e: std::io::Error| Failure::internal(format!("the server could not start: {e}"));
        let pair = Pair::open(&args.pair, screen)?;
        let longest = prompts.iter().map(|p| raw_tokens(&pair.model.tokenizer, p).len()).max().unwrap_or(0);
        let mut machine = pair.machine(&args.pair, longest + args.max_tokens as usize, screen)?;
        (machine.streams, machine.token_gap) = (streams, Some(TOKEN_GAP));
        let engine = pair.model.start(&machine, pair.draft.as_ref(), screen)?;
        let device = engine.describe();
        let about = About { name: pair.model.checkpoint.name().into(), ..About::default() };
        let limits = Limits { max_streams: engine.config().max_seqs, ..Limits::default() };
        let (handle, _) = EngineHandle::start(engine, about, limits).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = async move {
            let stop = async {
                let _ = stopped.await;
            };
            // What goes wrong with it the clients see.
            let _ = serve(listener, handle, HttpConfig::default(), stop).await;
        };
        let thread = std::thread::Builder::new().name("server".into());
        let thread = thread.spawn(move || runtime.block_on(serving)).map_err(failed)?;
        Ok(Self { address, device, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}
