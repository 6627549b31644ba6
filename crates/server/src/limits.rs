//! How much one request may bring.

use forthwith_core::request::MAX_LOGPROBS;

use crate::error::ApiError;

/// Counts and sizes that are checked before a request costs anything; one beyond them is a 400 that tells
/// both numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// How deep the objects and lists of a body may nest.
    pub depth: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Tools of a request.
    pub tools: usize,
    /// Stop strings of a request.
    pub stops: usize,
    /// The longest stop string or forbidden word, in bytes.
    pub stop_bytes: usize,
    /// Entries of `logit_bias`.
    pub logit_bias: usize,
    /// Choices of a prompt.
    pub choices: u32,
    /// Alternatives that are told of a token; the engine tells no more than
    /// [`MAX_LOGPROBS`](forthwith_core::request::MAX_LOGPROBS).
    pub logprobs: u32,
    /// Prompts of a call for completions.
    pub prompts: usize,
    /// Texts of a call for vectors, labels or scores.
    pub texts: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            depth: 64,
            messages: 2048,
            tools: 128,
            stops: 16,
            stop_bytes: 512,
            logit_bias: 1024,
            choices: 16,
            logprobs: MAX_LOGPROBS,
            prompts: 64,
            texts: 2048,
        }
    }
}

impl RequestLimits {
    /// A wish for alternatives, if it is within the limit.
    pub(crate) fn alternatives(&self, field: &'static str, wanted: u64) -> Result<u32, ApiError> {
        let most = self.logprobs.min(MAX_LOGPROBS);
        let count = u32::try_from(wanted).ok().filter(|&count| count <= most);
        count.ok_or_else(|| {
            let message = format!("{field} is {wanted}, allowed is 0 to {most}");
            ApiError::field(field, message)
        })
    }
}
