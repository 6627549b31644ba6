//! The same endpoints without a socket, for commands: what they print is what the server answers.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use forthwith_core::clock::SystemClock;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;

use crate::config::ServerConfig;
use crate::loader::ServedModel;
use crate::routes::router;
use crate::state::{AppState, SystemStamps};

/// Models behind the routes of the server, in this process.
pub struct InProcess {
    runtime: Runtime,
    router: Router,
}

/// A call that was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Whether the call was wrong, and not the server.
    pub bad_input: bool,
    /// Why.
    pub message: String,
}

impl InProcess {
    /// Puts models behind the routes.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(models: Vec<ServedModel>) -> io::Result<Self> {
        let clock = Arc::new(SystemClock::start());
        let state = AppState::new(&ServerConfig::default(), clock, Box::new(SystemStamps));
        state.open(models);
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            router: router(state),
        })
    }

    /// Sends a body to a path and waits for the answer.
    ///
    /// # Errors
    /// [`Refused`] with the message that a client would see.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Refused> {
        let failed = |message: String| Refused {
            bad_input: false,
            message,
        };
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .map_err(|error| failed(error.to_string()))?;
        let router = self.router.clone();
        let answer = self.runtime.block_on(async {
            let response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let status = response.status();
            let bytes = to_bytes(response.into_body(), usize::MAX).await;
            bytes.map(|bytes| (status, bytes))
        });
        let (status, bytes) = answer.map_err(|error| failed(error.to_string()))?;
        let json: Value =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        if status == StatusCode::OK {
            return Ok(json);
        }
        let message = json["error"]["message"]
            .as_str()
            .unwrap_or("no reason given");
        Err(Refused {
            bad_input: status.is_client_error(),
            message: message.to_owned(),
        })
    }
}
