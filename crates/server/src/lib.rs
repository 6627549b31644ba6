//! HTTP in front of the engine: wire types, routes, streaming, metrics, and nothing of models.
//!
//! A request travels: [`access`] checks who asks, [`extract`] reads the body within its limits, an endpoint under [`api`]
//! turns JSON into requests for the engine on a worker thread, [`answers`] carries tokens back as
//! text, [`sse`] or a plain answer writes them down. The engine's thread is crossed twice: in by
//! `EngineHandle::submit`, out by an event channel.
//!
//! The binary injects what to serve through [`Loader`] and calls [`serve`]:
//!
//! ```no_run
//! use forthwith_server::{Loader, ServedModel, ServerConfig, serve};
//!
//! struct Nothing;
//! impl Loader for Nothing {
//!     fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String> {
//!         Err("no model was named".to_owned())
//!     }
//! }
//!
//! let ended = serve(&ServerConfig::default(), Box::new(Nothing), |address| {
//!     eprintln!("ready on http://{address}");
//! });
//! assert!(ended.is_err());
//! ```
#![forbid(unsafe_code)]

mod access;
mod answers;
mod api;
mod config;
mod cors;
mod error;
mod extract;
mod identity;
mod in_process;
mod limits;
mod loader;
mod metrics;
mod reader;
mod routes;
mod serve;
mod sse;
mod state;
mod texts;

pub use access::{AccessRules, ApiKeys, KeyFileError};
pub use config::ServerConfig;
pub use cors::{Origin, OriginError};
pub use identity::Identity;
pub use in_process::{InProcess, Refused};
pub use limits::RequestLimits;
pub use loader::{Loader, Purpose, Scoring, ServedModel};
pub use routes::router;
pub use serve::{BoundServer, ServeError, bind, serve};
pub use state::{AppState, Stamps, SystemStamps};
