//! Listening, connections with limits, and an orderly end.
//!
//! On SIGTERM or Ctrl-C the server takes no more connections, refuses new requests on open ones
//! and lets running answers finish within the drain time-out. A second signal, or the time-out,
//! cancels what still runs.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use forthwith_core::clock::SystemClock;
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams, TextParts};
use forthwith_core::units::TokenId;
use forthwith_engine::Event;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::ServerConfig;
use crate::loader::{Loader, Purpose, ServedModel};
use crate::reader::{SEND_BUFFER, Watched};
use crate::routes::router;
use crate::state::{AppState, SystemStamps};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long cancelled answers have to say so before their connections are cut.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long to wait after the system refused a connection, such as for want of file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The server could not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}; choose another --host or --port")]
    Listen {
        /// Where to listen.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A model did not load.
    #[error("{0}")]
    Load(String),
    /// A loaded model did not generate.
    #[error("the model `{model}` does not answer: {reason}")]
    WarmUp {
        /// The model's name.
        model: String,
        /// What went wrong.
        reason: String,
    },
    /// The system refused threads or signals.
    #[error("cannot start the server: {0}")]
    Start(io::Error),
}

/// A server that holds its address and does not serve yet.
#[derive(Debug)]
pub struct BoundServer {
    config: ServerConfig,
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
}

/// Binds, loads and serves until the process is told to stop.
///
/// `on_ready` runs once requests are answered.
///
/// # Errors
/// The address is taken, or a model does not load or does not answer.
pub fn serve(
    config: &ServerConfig,
    loader: Box<dyn Loader>,
    on_ready: impl FnOnce(SocketAddr) + Send,
) -> Result<(), ServeError> {
    bind(config)?.run(loader, on_ready)
}

/// Takes the address; connections wait until [`BoundServer::run`].
///
/// # Errors
/// The address cannot be used.
pub fn bind(config: &ServerConfig) -> Result<BoundServer, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads.max(1))
        .thread_name("forthwith-http")
        .enable_all()
        .build()
        .map_err(ServeError::Start)?;
    let wanted = SocketAddr::new(config.host, config.port);
    let listen = || {
        let _entered = runtime.enter();
        let socket = match wanted {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.set_reuseaddr(true)?;
        // Connections inherit it.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(wanted)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let (listener, address) = listen().map_err(|source| ServeError::Listen {
        address: wanted,
        source,
    })?;
    Ok(BoundServer {
        config: config.clone(),
        runtime,
        listener,
        address,
    })
}

impl BoundServer {
    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loads and serves until the process is told to stop.
    ///
    /// # Errors
    /// A model does not load or does not answer.
    pub fn run(
        self,
        loader: Box<dyn Loader>,
        on_ready: impl FnOnce(SocketAddr) + Send,
    ) -> Result<(), ServeError> {
        let Self {
            config,
            runtime,
            listener,
            address,
        } = self;
        let ready = || on_ready(address);
        let result = runtime.block_on(run(&config, listener, loader, ready));
        runtime.shutdown_timeout(LAST_WORDS);
        result
    }
}

async fn run(
    config: &ServerConfig,
    listener: TcpListener,
    loader: Box<dyn Loader>,
    on_ready: impl FnOnce(),
) -> Result<(), ServeError> {
    let mut stop = StopSignals::listen().map_err(ServeError::Start)?;
    let state = AppState::new(
        config,
        Arc::new(SystemClock::start()),
        Box::new(SystemStamps),
    );
    let connections = GracefulShutdown::new();
    let mut accepting = Box::pin(accept(listener, &state, config, &connections));
    let mut loading = load(loader).map_err(ServeError::Start)?;
    let mut on_ready = Some(on_ready);
    loop {
        tokio::select! {
            loaded = &mut loading, if on_ready.is_some() => {
                let lost = || Err(ServeError::Load("loading the model failed unexpectedly".to_owned()));
                state.open(loaded.unwrap_or_else(|_| lost())?);
                if let Some(on_ready) = on_ready.take() {
                    on_ready();
                }
            }
            never = &mut accepting => match never {},
            () = stop.next() => break,
        }
    }
    state.drain();
    drop(accepting);
    drain(config.drain_timeout, &state, connections, &mut stop).await;
    Ok(())
}

/// Waits for running answers; cancels them when the time is up or a second signal comes.
async fn drain(
    patience: Duration,
    state: &AppState,
    connections: GracefulShutdown,
    stop: &mut StopSignals,
) {
    let finished = connections.shutdown();
    tokio::pin!(finished);
    let in_time = tokio::select! {
        () = &mut finished => true,
        () = tokio::time::sleep(patience) => false,
        () = stop.next() => false,
    };
    for model in state.loaded() {
        model.engine.shutdown(in_time);
    }
    if !in_time {
        // Cancelled answers end with an error event; who does not read it in time is cut off.
        let _ = tokio::time::timeout(LAST_WORDS, finished).await;
    }
}

/// Loads on a thread of its own, and lets every model generate once.
fn load(
    loader: Box<dyn Loader>,
) -> io::Result<oneshot::Receiver<Result<Vec<ServedModel>, ServeError>>> {
    let (sender, receiver) = oneshot::channel();
    let name = "forthwith-load".to_owned();
    thread::Builder::new().name(name).spawn(move || {
        let loaded = loader.load().map_err(ServeError::Load).and_then(|models| {
            check_names(&models)?;
            models.iter().try_for_each(warm_up)?;
            Ok(models)
        });
        // The server may have been stopped meanwhile.
        let _ = sender.send(loaded);
    })?;
    Ok(receiver)
}

/// Requests choose by name, so there must be one and no two may be equal.
fn check_names(models: &[ServedModel]) -> Result<(), ServeError> {
    let mut names: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    match (names.is_empty(), twice) {
        (true, _) => Err(ServeError::Load("there is no model to serve".to_owned())),
        (_, Some(pair)) => {
            let message = format!("two models are named `{}`; serve one of them", pair[0]);
            Err(ServeError::Load(message))
        }
        _ => Ok(()),
    }
}

/// Computes one token, so that the first request finds everything in place.
fn warm_up(model: &ServedModel) -> Result<(), ServeError> {
    let failed = |reason: String| ServeError::WarmUp {
        model: model.id.clone(),
        reason,
    };
    let tokens = vec![model.tokenizer.bos().unwrap_or(TokenId::new(0))];
    let request = if model.purpose == Purpose::Generate {
        let parts = RequestParts {
            max_tokens: Some(1),
            sampling: SamplingParams::greedy(),
            ..RequestParts::new(tokens)
        };
        GenerationRequest::new(parts, model.limits)
    } else {
        GenerationRequest::vectors(TextParts::new(tokens), None, model.limits)
    };
    let request = request.map_err(|error| failed(error.to_string()))?;
    let (sender, events) = mpsc::channel();
    let sink = move |event: Event| {
        let _ = sender.send(event);
    };
    let submitted = model.engine.submit(request, Box::new(sink));
    let _handle = submitted.map_err(|error| failed(error.to_string()))?;
    loop {
        match events.recv() {
            Ok(Event::Token(_) | Event::Prompt(_) | Event::Vectors(_) | Event::Scores(_)) => {}
            Ok(Event::Finished(_)) => return Ok(()),
            Ok(Event::Failed(reason)) => return Err(failed(reason.message)),
            Err(_) => return Err(failed("the engine stopped".to_owned())),
        }
    }
}

/// Accepts for ever; each connection lives on a task of its own.
async fn accept(
    listener: TcpListener,
    state: &AppState,
    config: &ServerConfig,
    connections: &GracefulShutdown,
) -> Infallible {
    let router = router(state.clone());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A token is smaller than a packet; waiting for more of them would delay each.
                let _ = stream.set_nodelay(true);
                let metrics = Arc::clone(state.metrics());
                let stream = Watched::new(stream, config.stall_timeout, metrics);
                let served = connection(stream, router.clone(), config, connections.watcher());
                tokio::spawn(served);
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

fn connection(
    stream: Watched<TcpStream>,
    router: Router,
    config: &ServerConfig,
    watcher: Watcher,
) -> impl Future<Output = ()> + Send + use<> {
    let reader = stream.reader();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(reader.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_headers(config.max_headers)
        .max_header_size(config.max_header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let watched = watcher.watch(connection);
    async move {
        // A client that breaks off or breaks the protocol harms its own connection only.
        let _ = watched.await;
    }
}

/// SIGTERM and Ctrl-C.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
