//! Scheduler, paged KV cache, sampler: the product.
//!
//! An [`Engine`] turns requests into tokens, one [`Engine::step`] at a time. It knows tokens and
//! blocks; it does not know text, JSON or time (a clock is used to stamp events, never to decide),
//! and has no threads but those that the executor lends. [`EngineHandle`] puts an engine on a thread of its own and is the only way in and out.
//!
//! ```
//! # use std::sync::{Arc, mpsc::channel};
//! # use forthwith_core::{clock::SystemClock, units::{Blocks, TokenId, Tokens}};
//! # use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams};
//! # use forthwith_engine::{Engine, EngineConfig, EngineHandle, Event};
//! # use forthwith_models::toy::Toy;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let toy = Arc::new(Toy::embedded());
//! # let config = EngineConfig {
//! #     max_running: 8,
//! #     max_step_tokens: Tokens::new(64),
//! #     context: Tokens::new(256),
//! #     max_waiting: 100,
//! #     ..EngineConfig::default()
//! # };
//! # let word = |word: &str| {
//! #     let id = toy.words().iter().position(|known| known == word).unwrap();
//! #     TokenId::new(u32::try_from(id).unwrap())
//! # };
//! let executor = Box::new(Arc::clone(&toy).executor(Blocks::new(64)));
//! let handle = EngineHandle::spawn(Engine::new(executor, config, Arc::new(SystemClock::start())));
//! let parts = RequestParts {
//!     max_tokens: Some(6),
//!     sampling: SamplingParams::greedy(),
//!     ..RequestParts::new(vec![word("the"), word("server")])
//! };
//! let (sender, events) = channel();
//! let sink = Box::new(move |event| drop(sender.send(event)));
//! let _request = handle.submit(GenerationRequest::new(parts, handle.limits())?, sink)?;
//! let mut answer = Vec::new();
//! for event in events {
//!     if let Event::Token(token) = event {
//!         answer.push(toy.words()[token.token.index()].as_str());
//!     }
//! }
//! assert_eq!(answer.join(" "), "streams the gpu reads the gpu");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod batch;
pub mod budget;
mod cost;
mod engine;
mod event;
mod gap;
mod group;
mod guide;
mod handle;
mod heartbeat;
mod kv;
mod outlook;
mod report;
mod sampling;
mod scheduler;
mod sequence;

pub use cost::PredictionError;
pub use engine::{Engine, EngineConfig};
pub use event::{
    Event, EventSink, Failure, Fault, FinishReason, Finished, PromptLogprob, Timings, TokenEvent,
    TokenLogprob,
};
pub use gap::TargetGap;
pub use group::Submission;
pub use handle::{EngineHandle, RequestHandle, SubmitError};
pub use heartbeat::EngineHealth;
pub use kv::{PrefixCacheConfig, PrefixKey, ReuseStop};
pub use report::{Counters, EngineSnapshot, StepReport, StepTimes};
