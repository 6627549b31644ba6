//! What a caller asks for, unchecked.

use std::sync::Arc;

use super::{LogitEdits, SamplingParams, Scheduling, StopRules};
use crate::constraint::Constraint;
use crate::units::TokenId;

/// What a caller asks for, unchecked.
#[derive(Clone, Debug)]
pub struct RequestParts {
    /// The prompt, special tokens included.
    pub prompt: Vec<TokenId>,
    /// The most tokens to generate; `None` is what the context leaves.
    pub max_tokens: Option<u64>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is changed about the logits.
    pub edits: Arc<LogitEdits>,
    /// The form that the answer must have.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// When to stop.
    pub stop: StopRules,
    /// Report the log-probability of each chosen token and of this many of the most likely ones.
    pub logprobs: Option<u32>,
    /// The same for each token of the prompt but the first. The answer may then be empty.
    pub prompt_logprobs: Option<u32>,
    /// Only requests with the same salt share cached blocks; at most [`super::MAX_CACHE_SALT`] bytes.
    pub cache_salt: Option<Vec<u8>>,
    /// Compute the whole prompt, whatever the cache holds, and share nothing.
    pub bypass_cache: bool,
    /// Where the request stands among others.
    pub scheduling: Scheduling,
}

impl RequestParts {
    /// A request to continue a prompt, everything else as by default.
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Self {
            prompt,
            max_tokens: None,
            sampling: SamplingParams::default(),
            edits: Arc::default(),
            constraint: None,
            stop: StopRules::default(),
            logprobs: None,
            prompt_logprobs: None,
            cache_salt: None,
            bypass_cache: false,
            scheduling: Scheduling::default(),
        }
    }
}
