//! What all requests share: the models, the numbers, and the gates of loading and draining.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use forthwith_core::clock::Clock;
use forthwith_core::units::Bytes;
use tokio::sync::Semaphore;

use crate::access::{AccessRules, Caller};
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::limits::RequestLimits;
use crate::loader::ServedModel;
use crate::metrics::Metrics;

/// What makes two answers to one request differ; injected, so that tests can fix it.
pub trait Stamps: Send + Sync {
    /// A number that no other answer has.
    fn id(&self) -> u128;
    /// A seed for a request that brings none, below 2^53 so that every JSON reader keeps it whole.
    fn seed(&self) -> u64;
    /// Seconds since 1970.
    fn unix_time(&self) -> u64;
}

/// Stamps from the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemStamps;

impl Stamps for SystemStamps {
    fn id(&self) -> u128 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        u128::from_le_bytes(bytes)
    }

    fn seed(&self) -> u64 {
        getrandom::u64().expect("the operating system has random numbers") >> 11
    }

    fn unix_time(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }
}

/// The models, in the order of the command line.
pub(crate) type Models = Arc<OnceLock<Vec<Arc<ServedModel>>>>;

/// The state behind every route; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Shared>, Caller);

struct Shared {
    models: Models,
    draining: AtomicBool,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stamps: Box<dyn Stamps>,
    tokenizing: Arc<Semaphore>,
    max_body: usize,
    max_batch_body: usize,
    body_timeout: Duration,
    access: AccessRules,
    local: bool,
    strict: bool,
    limits: RequestLimits,
}

impl AppState {
    /// A server that is still loading.
    pub fn new(config: &ServerConfig, clock: Arc<dyn Clock>, stamps: Box<dyn Stamps>) -> Self {
        let models = Models::default();
        let shared = Shared {
            metrics: Arc::new(Metrics::new(Arc::clone(&models))),
            models,
            draining: AtomicBool::new(false),
            clock,
            stamps,
            tokenizing: Arc::new(Semaphore::new(config.tokenizer_threads.max(1))),
            max_body: size(config.max_body),
            max_batch_body: size(config.max_batch_body),
            body_timeout: config.body_timeout,
            access: config.access.clone(),
            local: config.host.is_loopback(),
            strict: config.strict_params,
            limits: config.limits,
        };
        Self(Arc::new(shared), Caller::default())
    }

    /// The same for this caller.
    pub(crate) fn on_behalf_of(&self, caller: Caller) -> Self {
        Self(Arc::clone(&self.0), caller)
    }

    /// Whom the request comes from.
    pub(crate) fn caller(&self) -> &Caller {
        &self.1
    }

    pub(crate) fn access(&self) -> &AccessRules {
        &self.0.access
    }

    /// Whether only this machine can reach the server.
    pub(crate) fn is_local(&self) -> bool {
        self.0.local
    }

    /// Whether fields without effect are refused.
    pub(crate) fn is_strict(&self) -> bool {
        self.0.strict
    }

    /// How much one request may bring.
    pub(crate) fn limits(&self) -> &RequestLimits {
        &self.0.limits
    }

    /// Opens the gate: the models answer from now on.
    pub fn open(&self, models: Vec<ServedModel>) {
        // A second opening would change models under running requests; the first one stays.
        let _ = self
            .0
            .models
            .set(models.into_iter().map(Arc::new).collect());
    }

    /// Closes the gate: new requests are refused, running ones go on.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// The models, or the reason why there are none.
    pub(crate) fn ready(&self) -> Result<&[Arc<ServedModel>], ApiError> {
        if self.0.draining.load(Ordering::Acquire) {
            return Err(ApiError::unavailable(
                "shutting_down",
                "the server is shutting down",
            ));
        }
        match self.0.models.get() {
            Some(models) => Ok(models),
            None => Err(ApiError::unavailable("loading", "the model is loading")),
        }
    }

    /// The models if they were loaded, also while draining.
    pub(crate) fn loaded(&self) -> &[Arc<ServedModel>] {
        self.0.models.get().map_or(&[], Vec::as_slice)
    }

    /// The model of that name; without a name, the only one.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
        let models = self.ready()?;
        let found = match (name, models) {
            (None, [only]) => Some(only),
            (None, _) => {
                let message = format!("name one of the served models: {}", names(models));
                return Err(ApiError::field("model", message));
            }
            (Some(name), _) => models.iter().find(|model| model.id == name),
        };
        found.cloned().ok_or_else(|| {
            let message = format!(
                "the model `{}` is not served here; served are: {}",
                name.unwrap_or_default(),
                names(models)
            );
            ApiError::new(StatusCode::NOT_FOUND, message)
                .about("model")
                .coded("model_not_found")
        })
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    pub(crate) fn stamps(&self) -> &dyn Stamps {
        self.0.stamps.as_ref()
    }

    /// The largest body in bytes, of a call with many texts or any other.
    pub(crate) fn max_body(&self, batch: bool) -> usize {
        if batch {
            self.0.max_batch_body
        } else {
            self.0.max_body
        }
    }

    /// How long a body may take.
    pub(crate) fn body_timeout(&self) -> Duration {
        self.0.body_timeout
    }

    /// Runs parsing, templating and tokenizing away from the threads that carry connections.
    ///
    /// An abandoned job keeps its place until it ends, so that clients who leave cannot pile up
    /// work.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = Arc::clone(&self.0.tokenizing).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let state = self.clone();
        let running = tokio::task::spawn_blocking(move || {
            let _place = place;
            job(&state)
        });
        running
            .await
            .unwrap_or_else(|_| Err(ApiError::internal("the request could not be prepared")))
    }
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).unwrap_or(usize::MAX)
}

fn names(models: &[Arc<ServedModel>]) -> String {
    let names: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
    names.join(", ")
}
