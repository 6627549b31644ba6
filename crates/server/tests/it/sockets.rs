//! A server on a real socket, and clients that speak to it byte by byte.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forthwith_server::{Loader, ServeError, ServedModel, ServerConfig, bind};

use crate::support::{Gate, PLAIN, Shape, toy};

/// A signal reaches every server of the process, so one runs at a time.
static SERVER: Mutex<()> = Mutex::new(());

/// Waits for its turn; hold it while a server runs.
pub(crate) fn only_server() -> MutexGuard<'static, ()> {
    SERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads when it is told to.
pub(crate) struct Slow {
    pub(crate) go: mpsc::Receiver<Result<(), String>>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) context: usize,
}

impl Loader for Slow {
    fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String> {
        self.go.recv().unwrap()?;
        let shape = Shape {
            context: self.context,
            ..Shape::default()
        };
        Ok(vec![toy("toy", Some(PLAIN), shape, self.gate)])
    }
}

pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: 0,
        ..ServerConfig::default()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// A server that is ready; a test ends it with [`Running::stop`].
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Arc<Gate>,
    serving: JoinHandle<Result<(), ServeError>>,
    _turn: MutexGuard<'static, ()>,
}

impl Running {
    pub(crate) fn start(config: &ServerConfig, context: usize) -> Self {
        let turn = only_server();
        let (go, gone) = mpsc::channel();
        go.send(Ok(())).unwrap();
        let gate = Arc::new(Gate::default());
        let loader = Box::new(Slow {
            go: gone,
            gate: Arc::clone(&gate),
            context,
        });
        let server = bind(config).unwrap();
        let (ready, is_ready) = mpsc::channel();
        let serving = thread::spawn(move || server.run(loader, move |at| ready.send(at).unwrap()));
        Self {
            address: is_ready.recv_timeout(Duration::from_secs(20)).unwrap(),
            gate,
            serving,
            _turn: turn,
        }
    }

    pub(crate) fn stop(self) {
        terminate();
        self.serving.join().unwrap().unwrap();
    }
}

/// Sends a request and reads until the server closes.
pub(crate) fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A refused upload may end in a reset after the answer.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    )
}

pub(crate) fn post(body: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) fn terminate() {
    let me = std::process::id().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-TERM", &me])
        .status();
    assert!(killed.unwrap().success());
}

/// Waits until the metrics have this.
pub(crate) fn wait_for(address: SocketAddr, line: &str) {
    for _ in 0..4000 {
        if get(address, "/metrics").contains(line) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {line}\n{}", get(address, "/metrics"));
}
