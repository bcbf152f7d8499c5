//! `overdraft serve`: the model behind HTTP, until it is asked to stop.

pub(crate) mod args;
mod file;

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use overdraft_models::RecommendedSampling;
use overdraft_server::handle::{About, EngineHandle, Limits};
use overdraft_server::http::keys::Keys;
use overdraft_server::http::log::{Log, LogFormat};
use overdraft_server::http::origin::Origins;
use overdraft_server::http::trace::Exporter;
use overdraft_server::http::{HttpConfig, Stopped};
use tokio::runtime::Runtime;

use crate::args::Command;
use crate::config::Machine;
use crate::cost_cache::CostCache;
use crate::draft;
use crate::failure::{Failure, Result};
use crate::input;
use crate::interrupt;
use crate::model::Model;
use crate::output::Output;
use crate::screen::Screen;
use args::{LogArg, ServeArgs};

/// Keys, one on each line or separated by commas.
const KEYS_VARIABLE: &str = "OVERDRAFT_API_KEYS";

/// For supervisors: starting again helps.
const ENGINE_LOST: u8 = 3;

/// Workers read and write sockets; the model computes on threads of its own. Templates and grammars of so many requests
/// are worked on at once.
const WORKERS: usize = 2;
const READERS: usize = 4;

/// For the last spans to reach their collector when the server ends.
const TRACE_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode> {
    let args = match &args.config {
        None => args,
        Some(path) => match file::merged(path)?.command {
            Command::Serve(merged) => *merged,
            _ => args,
        },
    };
    if args.model.drafting.show_draft {
        return Err(Failure::input(
            "--show-draft: a server has no terminal to colour; the page at / does it",
        ));
    }
    let screen = Screen::new(args.quiet);
    // Everything that can be wrong with little work comes before the weights are read.
    let keys = keys(args.safety.api_key_file.as_deref())?;
    let address = resolve(&args.address.host, args.address.port)?;
    let listener = listen(address)?;
    if !address.ip().is_loopback() && !keys.are_needed() {
        screen.note("other machines can reach this server, and no key is needed (--api-key-file)");
    }
    let runtime = runtime()?;
    // Probes and clients hear that the model is on its way.
    let copy = listener.try_clone().map_err(cannot_start)?;
    let waiting = runtime.spawn(overdraft_server::http::loading(asynchronous(&runtime, copy)?));
    let loaded = load(&args, &screen)?;
    let mut config = http_config(&args, keys, address.ip(), loaded.recommended);
    let exporter = match args.otlp_endpoint.clone() {
        None => None,
        Some(endpoint) => {
            let (tracer, exporter) = Exporter::start(endpoint, config.log.clone()).map_err(cannot_start)?;
            config.tracer = tracer;
            Some(exporter)
        }
    };
    waiting.abort();
    let ready = format!(
        "{} at http://{} ({} streams)\n",
        loaded.handle.facts().about.name,
        listener.local_addr().map_err(cannot_start)?,
        loaded.handle.limits().max_streams
    );
    let listener = asynchronous(&runtime, listener)?;
    let handle = loaded.handle.clone();
    let stopped = runtime.block_on(async {
        let signal = signals().map_err(cannot_start)?;
        Output::new().write(&ready)?;
        overdraft_server::http::serve(listener, loaded.handle, config, signal).await.map_err(Failure::input)
    })?;
    exporter.into_iter().for_each(|exporter| exporter.finish(TRACE_PATIENCE));
    // Streams of clients that do not read may be left; they are not waited for.
    runtime.shutdown_background();
    match stopped {
        Stopped::Drained => {
            // It was told to drain, so it ends by itself.
            let _ = loaded.thread.join();
            loaded.costs.inspect(|costs| costs.keep_learned(&handle.learned()));
            Ok(ExitCode::SUCCESS)
        }
        Stopped::CutOff => Err(Failure::internal(format!(
            "requests were still running after --drain-timeout {} s, and were cut off",
            args.load.drain_timeout
        ))),
        Stopped::EngineLost => Err(Failure {
            code: ENGINE_LOST,
            message: "the engine stopped or a step never returned; the log says why".into(),
            hint: Some("start the server again".into()),
        }),
    }
}

/// A model on its thread.
struct Loaded {
    handle: EngineHandle,
    thread: JoinHandle<()>,
    /// Where what it learns of this machine is kept.
    costs: Option<CostCache>,
    recommended: RecommendedSampling,
}

fn load(args: &ServeArgs, screen: &Screen) -> Result<Loaded> {
    let model = Model::open(args.model.pair.model.as_deref())?;
    let mut machine = Machine::resolve(&args.model, model.hyper.context, screen)?;
    machine.streams = usize::from(args.load.max_streams);
    machine.kv_memory = args.load.kv_memory;
    machine.cache_memory = args.load.cache_memory;
    machine.token_gap = Some(Duration::from_millis(args.load.token_gap.into()));
    model.greet(screen);
    let draft = draft::choose(&args.model, &model, screen)?;
    let mut engine = model.start(&machine, draft.as_ref(), screen)?;
    let costs = model.cost_cache(&machine, draft.as_ref(), &engine);
    costs.as_ref().inspect(|costs| {
        costs.recall(&mut engine);
    });
    let about = About {
        name: name(args.model.pair.model.as_deref()),
        draft_name: draft.as_ref().map(|d| name(Some(Path::new(d.name())))),
        template: model.checkpoint.chat_template()?,
    };
    let max_streams = engine.config().max_seqs;
    let limits = Limits { queue: args.load.queue as usize, max_streams, ..Limits::default() };
    let (handle, thread) = EngineHandle::start(engine, about, limits).map_err(cannot_start)?;
    Ok(Loaded { handle, thread, costs, recommended: model.checkpoint.recommended_sampling()? })
}

fn http_config(args: &ServeArgs, keys: Keys, ip: IpAddr, recommended: RecommendedSampling) -> HttpConfig {
    let format = match args.log_format {
        LogArg::Text => LogFormat::Text,
        LogArg::Json => LogFormat::Json,
    };
    HttpConfig {
        keys,
        origins: Origins {
            loopback_only: ip.is_loopback(),
            hosts: args.safety.allow_host.clone(),
            cors: args.safety.cors_origin.clone(),
        },
        log: if args.quiet { Log::none() } else { Log::to_stderr(format) },
        aliases: args.address.alias.clone(),
        recommended,
        max_body_bytes: args.safety.max_body,
        request_timeout: args.load.request_timeout.map(|s| Duration::from_secs(s.into())),
        drain_timeout: Duration::from_secs(args.load.drain_timeout.into()),
        ..HttpConfig::default()
    }
}

fn cannot_start(error: std::io::Error) -> Failure {
    Failure::internal(format!("the server could not start: {error}"))
}

fn runtime() -> Result<Runtime> {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(WORKERS).max_blocking_threads(READERS).enable_all().build().map_err(cannot_start)
}

/// For tasks of `runtime`.
fn asynchronous(runtime: &Runtime, listener: TcpListener) -> Result<tokio::net::TcpListener> {
    let _inside = runtime.enter();
    listener.set_nonblocking(true).map_err(cannot_start)?;
    tokio::net::TcpListener::from_std(listener).map_err(cannot_start)
}

/// Ready at the first Ctrl-C or SIGTERM. The second ends the process at once.
fn signals() -> std::io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut either = async move || {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(async move {
        either().await;
        tokio::spawn(async move {
            either().await;
            std::process::exit(interrupt::EXIT_CODE.into());
        });
    })
}

/// From the file, or else from the environment.
fn keys(file: Option<&Path>) -> Result<Keys> {
    if let Some(path) = file {
        let named = |e| Failure::input(format!("{}: {e}", path.display()));
        return Keys::from_lines(&input::read_file(path)?).map_err(named);
    }
    match std::env::var(KEYS_VARIABLE) {
        Ok(text) => Keys::from_lines(&text.replace(',', "\n"))
            .map_err(|e| Failure::input(format!("{KEYS_VARIABLE}: {e}"))),
        Err(std::env::VarError::NotPresent) => Ok(Keys::open()),
        // Open to everybody is not what whoever set it had in mind.
        Err(_) => Err(Failure::input(format!("{KEYS_VARIABLE}: is not UTF-8 text"))),
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let found = (bare, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.ok_or_else(|| {
        Failure::input(format!("--host {host}: is no address of this machine"))
            .hint("127.0.0.1 is this machine alone, 0.0.0.0 everybody")
    })
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    use std::io::ErrorKind;
    TcpListener::bind(address).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => {
            Failure::input(format!("port {} is taken: another program listens at {address}", address.port()))
                .hint(format!(
                    "stop that one, or take another port: --port {}",
                    address.port().saturating_add(1)
                ))
        }
        ErrorKind::PermissionDenied => {
            Failure::input(format!("port {} may not be listened at by this user", address.port()))
                .hint("ports from 1024 on are free for all: --port 8080")
        }
        ErrorKind::AddrNotAvailable => {
            Failure::input(format!("{} is not an address of this machine", address.ip()))
                .hint("127.0.0.1 is this machine alone, 0.0.0.0 everybody")
        }
        _ => Failure::input(format!("{address}: {e}")),
    })
}

/// A file's name without its ending, a folder's name, or the demo's.
fn name(path: Option<&Path>) -> String {
    let Some(path) = path else { return "demo".into() };
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned())
}
