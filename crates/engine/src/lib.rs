//! Scheduler, paged KV cache, sampler: the product.
//!
//! An [`Engine`] turns requests into tokens, one [`Engine::step`] at a time. It knows tokens and
//! blocks; it does not know text, JSON, threads or time (a clock is used to stamp events, never to
//! decide). [`EngineHandle`] puts an engine on a thread of its own and is the only way in and out.
#![forbid(unsafe_code)]

mod batch;
pub mod budget;
mod engine;
mod event;
mod handle;
mod kv;
mod report;
mod sampling;
mod scheduler;
mod sequence;

pub use engine::{Engine, EngineConfig};
pub use event::{Event, EventSink, FinishReason, Finished, Timings, TokenEvent, TokenLogprob};
pub use handle::{EngineHandle, RequestHandle, SubmitError};
pub use report::{Counters, EngineSnapshot, StepReport};
