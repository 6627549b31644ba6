//! The engine against models that notice every wrong block.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod behaviour;
mod faults;
mod forecast;
mod forks;
mod handle;
mod order;
mod prefix;
mod prompt_logprobs;
mod simulation;
mod texts;
mod time_limit;
mod world;
