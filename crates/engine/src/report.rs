//! Numbers out: what a step did and where the engine stands. No metrics library.

use std::time::Duration;

use forthwith_core::units::{Blocks, Tokens};

use crate::cost::PredictionError;

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Sequences that took part.
    pub segments: usize,
    /// Sequences that got a token.
    pub sampled: usize,
    /// Sequences that joined.
    pub admitted: usize,
    /// Sequences that were sent back to wait because the cache was full.
    pub preempted: usize,
    /// Sequences that were sent back to wait for the sake of a better priority.
    pub displaced: usize,
    /// Requests that ended before the step, because their time was over.
    pub expired: usize,
    /// Whether the step failed; its requests got [`crate::Event::Failed`].
    pub faulted: bool,
}

/// Sums since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests taken in.
    pub accepted: u64,
    /// Prompt tokens of requests taken in; the prompt of a group counts once.
    pub accepted_tokens: u64,
    /// Prompt tokens computed; work repeated after a preemption is not counted again.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache instead.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Answers that ended with an end or stop token.
    pub finished_end: u64,
    /// Answers that reached their length.
    pub finished_length: u64,
    /// Texts whose vectors or scores were computed.
    pub finished_texts: u64,
    /// Requests whose owner left.
    pub cancelled: u64,
    /// Requests that waited too long to begin.
    pub expired: u64,
    /// Requests that had begun when their time was over.
    pub timed_out: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Times a sequence was sent back to wait because the cache was full.
    pub preemptions: u64,
    /// Times a sequence was sent back to wait for the sake of a better priority.
    pub displacements: u64,
    /// Times a cached block was emptied because its memory was needed.
    pub evictions: u64,
    /// Blocks copied for sequences that continue inside a block of another.
    pub copied_blocks: u64,
    /// Steps that ran the model.
    pub steps: u64,
    /// Tokens that went through the model, repeated work included.
    pub step_tokens: u64,
    /// Steps that failed.
    pub faults: u64,
}

/// What the time of all steps went into, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// The model, copies of blocks before it included.
    pub model: Duration,
    /// Choosing tokens.
    pub sampling: Duration,
    /// Planning, and telling what came of it.
    pub scheduling: Duration,
}

/// Where the engine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSnapshot {
    /// Sequences that hold cache blocks.
    pub running: usize,
    /// Requests that wait, preempted ones included.
    pub waiting: usize,
    /// Prompt tokens of requests that wait; the prompt of a group counts once.
    pub waiting_tokens: Tokens,
    /// Cache blocks that running sequences hold.
    pub kv_used: Blocks,
    /// Cache blocks that nobody holds but that would be found again; they count as free.
    pub kv_cached: Blocks,
    /// Cache blocks in all.
    pub kv_total: Blocks,
    /// Positions in one block.
    pub block_size: Tokens,
    /// Sums since the engine began.
    pub counters: Counters,
    /// What the time of all steps went into.
    pub step_times: StepTimes,
    /// How far predicted times of steps were off.
    pub step_prediction: PredictionError,
    /// How far predicted times to the first token were off.
    pub first_token_prediction: PredictionError,
}
