//! What the operator decided, complete: no field is optional.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use forthwith_core::units::Bytes;

use crate::access::AccessRules;
use crate::limits::RequestLimits;

/// Where to listen, and the limits a client meets before its request reaches an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port to listen on; 0 takes a free one.
    pub port: u16,
    /// The largest request body; a larger one is answered 413.
    pub max_body: Bytes,
    /// The same for calls for vectors, labels and scores, which bring many texts.
    pub max_batch_body: Bytes,
    /// The largest request line and headers together; more is answered 431.
    pub max_header_bytes: usize,
    /// The most headers of a request; more are answered 431.
    pub max_headers: usize,
    /// How long a client may take to send its headers.
    pub header_timeout: Duration,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// How long a client may take nothing of its answer before the answer is cancelled and the
    /// connection closed.
    pub stall_timeout: Duration,
    /// How long running answers may take after the signal to stop.
    pub drain_timeout: Duration,
    /// How many requests are parsed, templated and tokenized at a time.
    pub tokenizer_threads: usize,
    /// How many threads carry connections.
    pub worker_threads: usize,
    /// Whether a request with a field that has no effect is refused; otherwise its answer says so.
    pub strict_params: bool,
    /// How much one request may bring.
    pub limits: RequestLimits,
    /// Who may ask, and by which name.
    pub access: AccessRules,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            max_body: Bytes::new(8 << 20),
            max_batch_body: Bytes::new(32 << 20),
            max_header_bytes: 64 << 10,
            max_headers: 100,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            tokenizer_threads: 2,
            worker_threads: 2,
            strict_params: false,
            limits: RequestLimits::default(),
            access: AccessRules::default(),
        }
    }
}
