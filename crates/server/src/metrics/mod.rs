//! `GET /metrics`: what the engines and the requests did, in the `OpenMetrics` format.
//!
//! Gauges and token counters are read from the engines at the moment of the scrape; they are the
//! engine's own state, summed over the served models. Names that existing dashboards and routers
//! read, those of vLLM, are given beside our own where they mean the same.

mod engines;

use std::fmt;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use forthwith_engine::Timings;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::engines::Engines;
use crate::error::ApiError;
use crate::state::{AppState, Models};

/// Seconds to a first token or a whole answer.
const LONG: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds between two tokens.
const SHORT: [f64; 17] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
    10.0, 40.0,
];
/// Tokens of one request.
const COUNTS: [f64; 15] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 1e5,
];

/// Our name, vLLM's name and the meaning of each histogram, in the order of their registration.
const HISTOGRAMS: [(&str, &str, &str); 8] = [
    (
        "forthwith_time_to_first_token_seconds",
        "vllm:time_to_first_token_seconds",
        "Seconds from a request's arrival to its first token",
    ),
    (
        "forthwith_inter_token_latency_seconds",
        "vllm:inter_token_latency_seconds",
        "Seconds between two tokens of an answer",
    ),
    (
        "forthwith_request_seconds",
        "vllm:e2e_request_latency_seconds",
        "Seconds from a request's arrival to its end",
    ),
    (
        "forthwith_request_queue_seconds",
        "vllm:request_queue_time_seconds",
        "Seconds that a request waited for its first step",
    ),
    (
        "forthwith_request_prefill_seconds",
        "vllm:request_prefill_time_seconds",
        "Seconds from a request's first step to its first token",
    ),
    (
        "forthwith_request_decode_seconds",
        "vllm:request_decode_time_seconds",
        "Seconds from a request's first token to its last",
    ),
    (
        "forthwith_request_prompt_tokens",
        "vllm:request_prompt_tokens",
        "Tokens of a prompt",
    ),
    (
        "forthwith_request_generated_tokens",
        "vllm:request_generation_tokens",
        "Tokens of an answer",
    ),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishedReason {
    finished_reason: &'static str,
}

/// The server's own numbers, and the registry that names all.
pub(crate) struct Metrics {
    registry: Registry,
    finished: Family<Reason, Counter>,
    succeeded: Family<FinishedReason, Counter>,
    refused: Counter,
    stalled: Counter,
    first_token: Histogram,
    next_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
}

impl Metrics {
    /// Names every metric; the engines' numbers come from `models`, once they are loaded.
    pub(crate) fn new(models: Models) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            finished: Family::default(),
            succeeded: Family::default(),
            refused: Counter::default(),
            stalled: Counter::default(),
            first_token: Histogram::new(LONG),
            next_token: Histogram::new(SHORT),
            whole: Histogram::new(LONG),
            queue: Histogram::new(LONG),
            prefill: Histogram::new(LONG),
            decode: Histogram::new(LONG),
            prompt_tokens: Histogram::new(COUNTS),
            generated_tokens: Histogram::new(COUNTS),
        };
        metrics.register_counters();
        metrics.register_histograms();
        metrics
            .registry
            .register_collector(Box::new(Engines::new(models)));
        metrics
    }

    fn register_counters(&mut self) {
        let registry = &mut self.registry;
        let help = "Requests that ended, by reason";
        registry.register("forthwith_requests_finished", help, self.finished.clone());
        registry.register("vllm:request_success", help, self.succeeded.clone());
        registry.register(
            "forthwith_requests_refused",
            "Requests refused because the queue was full or closing",
            self.refused.clone(),
        );
        registry.register(
            "forthwith_stalled_readers",
            "Connections closed because their client took nothing for the stall timeout",
            self.stalled.clone(),
        );
    }

    fn register_histograms(&mut self) {
        let histograms = [
            &self.first_token,
            &self.next_token,
            &self.whole,
            &self.queue,
            &self.prefill,
            &self.decode,
            &self.prompt_tokens,
            &self.generated_tokens,
        ];
        for (&(own, twin, help), histogram) in HISTOGRAMS.iter().zip(histograms) {
            self.registry.register(own, help, histogram.clone());
            self.registry.register(twin, help, histogram.clone());
        }
    }

    /// A first token came, this long after its request.
    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// A further token came, this long after the one before.
    pub(crate) fn next_token(&self, after: Duration) {
        self.next_token.observe(after.as_secs_f64());
    }

    /// The engine told where a request's time went.
    pub(crate) fn timings(&self, timings: &Timings) {
        self.queue.observe(timings.queue.as_secs_f64());
        self.prefill.observe(timings.prefill.as_secs_f64());
        self.decode.observe(timings.decode.as_secs_f64());
    }

    /// An answer is complete, with its tokens of prompt and answer.
    pub(crate) fn finished(&self, reason: &'static str, after: Duration, tokens: (usize, usize)) {
        self.ended(reason);
        // vLLM knows no such reason; the answer says `length` as well.
        let finished_reason = match reason {
            "time_limit" => "length",
            other => other,
        };
        let finished_reason = FinishedReason { finished_reason };
        self.succeeded.get_or_create(&finished_reason).inc();
        self.whole.observe(after.as_secs_f64());
        self.prompt_tokens.observe(count(tokens.0));
        self.generated_tokens.observe(count(tokens.1));
    }

    /// A request ended, complete or not.
    pub(crate) fn ended(&self, reason: &'static str) {
        self.finished.get_or_create(&Reason { reason }).inc();
    }

    /// The engine did not take a request.
    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    /// A client took nothing for too long.
    pub(crate) fn stalled(&self) {
        self.stalled.inc();
    }

    fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Answers a scrape; it waits for no engine.
pub(crate) async fn show(State(state): State<AppState>) -> Result<Response, ApiError> {
    let text = state.metrics().text();
    let text = text.map_err(|_| ApiError::internal("the metrics could not be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn count(value: usize) -> f64 {
    value as f64
}
