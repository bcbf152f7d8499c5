//! Servers for tests. Most share one engine; those that drain or fill one have their own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;

use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineConfig};
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_server::handle::{About, EngineHandle, Limits};
use overdraft_server::http::{HttpConfig, Stopped, serve};
use tokio::sync::oneshot;

pub(crate) const CONTEXT: usize = 256;

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

/// The demo pair, as the command sets it up.
pub(crate) fn engine(streams: usize, queue: usize) -> EngineHandle {
    let target = Checkpoint::open(&model("pycoder-q4_k_m.gguf")).unwrap();
    let draft = Checkpoint::open(&model("pycoder-dflash-q8_0.gguf")).unwrap();
    let tokenizer = Arc::new(target.tokenizer().unwrap());
    let mut decoder = Decoder::load(&target, |_, _| {}).unwrap();
    let draft = Draft::load(&draft, &mut decoder).unwrap();
    let config = EngineConfig {
        context: CONTEXT,
        max_seqs: streams,
        draft_mode: Mode::Auto,
        lookup: true,
        cache_bytes: 16 << 20,
        ..EngineConfig::default()
    };
    let engine = Engine::new(decoder, Some(draft), tokenizer, Box::new(Cpu::new(2)), config).unwrap();
    let about = About {
        name: "demo".into(),
        draft_name: Some("demo-draft".into()),
        template: target.chat_template().unwrap(),
    };
    let limits = Limits { queue, max_streams: streams, ..Limits::default() };
    EngineHandle::start(engine, about, limits).unwrap().0
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) handle: EngineHandle,
    /// Of the tasks that serve connections.
    pub(crate) tasks: tokio::runtime::Handle,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Stopped>,
}

impl Server {
    pub(crate) fn start(handle: EngineHandle, config: HttpConfig) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let engine = handle.clone();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let tasks = runtime.handle().clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                // Whoever drops the sender wants the server to go on.
                let stop = async {
                    if stopped.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                serve(listener, engine, config, stop).await.unwrap()
            })
        });
        Self { address, handle, tasks, stop, thread }
    }

    /// Asks it to stop; the thread ends when it has.
    pub(crate) fn stop(self) -> JoinHandle<Stopped> {
        self.stop.send(()).unwrap();
        self.thread
    }
}

static ENGINE: LazyLock<EngineHandle> = LazyLock::new(|| engine(4, 64));

/// A server with settings of its own before the shared engine.
pub(crate) fn with(config: HttpConfig) -> Server {
    Server::start(ENGINE.clone(), config)
}

static PLAIN: LazyLock<Server> = LazyLock::new(|| with(HttpConfig::default()));

/// The server as it is by default.
pub(crate) fn plain() -> SocketAddr {
    PLAIN.address
}

/// Waits until it is so, within reason.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{what}: not after a minute");
}
