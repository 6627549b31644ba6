//! A generation request, valid by construction: every limit is checked here and nowhere else.

use std::time::Duration;

use crate::units::{TenantId, TokenId, Tokens};

/// What the model and the operator allow; requests are checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Token ids below this exist.
    pub vocab: usize,
    /// Prompt and answer together.
    pub context: Tokens,
}

/// How the next token is chosen from the logits.
///
/// The order is: penalties, temperature, `top_k`, `top_p`, `min_p`, draw. A temperature of zero
/// (or below 1e-5) takes the most likely token; the lowest id wins a tie.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; `0..=2`.
    pub temperature: f32,
    /// Keeps the `k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of tokens whose probability reaches this; `0..=1`.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one; `0..=1`.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; `> 0`.
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the output; `-2..=2`.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurs in the output; `-2..=2`.
    pub presence_penalty: f32,
    /// The stream of random numbers; equal seeds give equal answers.
    pub seed: u64,
    /// Which of several choices this is; it draws from its own stream.
    pub choice: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            choice: 0,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Whether the most likely token is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature < 1e-5 || self.top_k == 1
    }
}

/// When an answer ends, apart from its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// The model's own end tokens; the answer ends after one of them.
    pub end_tokens: Vec<TokenId>,
    /// Further token ids, asked for by the request.
    pub stop_token_ids: Vec<TokenId>,
    /// Go on after the model's end tokens.
    pub ignore_end: bool,
}

/// Where a request stands among others. It never changes what is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Lower comes first; requests of different priority are never compared otherwise.
    pub priority: i32,
    /// Who asks; tenants of one priority share the engine by served tokens.
    pub tenant: TenantId,
    /// The request ends unanswered if it has not begun after this time.
    pub max_queue_time: Option<Duration>,
    /// The request is refused at once if its first token is expected later than this.
    pub max_time_to_first_token: Option<Duration>,
}

/// What a caller asks for, unchecked.
#[derive(Clone, Debug)]
pub struct RequestParts {
    /// The prompt, special tokens included.
    pub prompt: Vec<TokenId>,
    /// The most tokens to generate; `None` is what the context leaves.
    pub max_tokens: Option<u64>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// When to stop.
    pub stop: StopRules,
    /// Report the log-probability of each chosen token and of this many of the most likely ones.
    pub logprobs: Option<u32>,
    /// Only requests with the same salt share cached blocks; at most [`MAX_CACHE_SALT`] bytes.
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
            stop: StopRules::default(),
            logprobs: None,
            cache_salt: None,
            bypass_cache: false,
            scheduling: Scheduling::default(),
        }
    }
}

/// A request that the engine can run without further checks.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    prompt: Vec<TokenId>,
    max_tokens: Tokens,
    sampling: SamplingParams,
    stop: StopRules,
    logprobs: Option<u32>,
    cache_salt: Option<Vec<u8>>,
    bypass_cache: bool,
    scheduling: Scheduling,
}

/// The most alternatives that `logprobs` may ask for.
pub const MAX_LOGPROBS: u32 = 20;

/// The longest `cache_salt`, in bytes.
pub const MAX_CACHE_SALT: usize = 256;

/// A request breaks a limit. The message names the value and the remedy; [`RequestError::field`] the field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens; send at least one")]
    EmptyPrompt,
    /// The prompt alone leaves no room.
    #[error(
        "the prompt has {prompt} tokens, the context holds {context}, prompt and answer together; \
         shorten the prompt to at most {} tokens", context.get() - 1
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// The limit.
        context: Tokens,
    },
    /// Prompt and answer together do not fit.
    #[error(
        "max_tokens is {max_tokens}, but after a prompt of {prompt} tokens the context of \
         {context} leaves {}", context.get() - prompt.get()
    )]
    AnswerTooLong {
        /// What was asked for.
        max_tokens: u64,
        /// Tokens of the prompt.
        prompt: Tokens,
        /// The limit.
        context: Tokens,
    },
    /// A token id does not exist.
    #[error("token id {id} is outside the vocabulary of {vocab} tokens")]
    UnknownToken {
        /// The request's field.
        field: &'static str,
        /// The id.
        id: TokenId,
        /// The limit.
        vocab: usize,
    },
    /// A number is out of its range.
    #[error("{field} is {value}, allowed is {allowed}")]
    OutOfRange {
        /// The request's field.
        field: &'static str,
        /// The value as text.
        value: String,
        /// The allowed range, in words.
        allowed: &'static str,
    },
}

impl RequestError {
    /// The request's field that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            Self::EmptyPrompt | Self::PromptTooLong { .. } => "prompt",
            Self::AnswerTooLong { .. } => "max_tokens",
            Self::UnknownToken { field, .. } | Self::OutOfRange { field, .. } => field,
        }
    }

    /// A stable word for metrics and the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::EmptyPrompt => "empty_prompt",
            Self::PromptTooLong { .. } | Self::AnswerTooLong { .. } => "context_length_exceeded",
            Self::UnknownToken { .. } => "unknown_token",
            Self::OutOfRange { .. } => "out_of_range",
        }
    }
}

impl GenerationRequest {
    /// Checks a request against the limits.
    pub fn new(parts: RequestParts, limits: Limits) -> Result<Self, RequestError> {
        let RequestParts {
            prompt,
            max_tokens,
            sampling,
            stop,
            logprobs,
            cache_salt,
            bypass_cache,
            scheduling,
        } = parts;
        let length = Tokens::new(prompt.len());
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if length >= limits.context {
            return Err(RequestError::PromptTooLong {
                prompt: length,
                context: limits.context,
            });
        }
        for (field, ids) in [
            ("prompt", &prompt),
            ("stop_token_ids", &stop.stop_token_ids),
            ("end_tokens", &stop.end_tokens),
        ] {
            if let Some(&id) = ids.iter().find(|id| id.index() >= limits.vocab) {
                return Err(RequestError::UnknownToken {
                    field,
                    id,
                    vocab: limits.vocab,
                });
            }
        }
        let room = limits.context - length;
        let max_tokens = match max_tokens {
            None => room,
            Some(0) => return Err(out_of_range("max_tokens", &0, "1 or more")),
            Some(wanted) if wanted > room.get() as u64 => {
                return Err(RequestError::AnswerTooLong {
                    max_tokens: wanted,
                    prompt: length,
                    context: limits.context,
                });
            }
            Some(wanted) => Tokens::new(usize::try_from(wanted).unwrap_or(usize::MAX)),
        };
        check_sampling(&sampling)?;
        if let Some(count) = logprobs.filter(|&count| count > MAX_LOGPROBS) {
            return Err(out_of_range("logprobs", &count, "0 to 20"));
        }
        if let Some(salt) = cache_salt.as_ref().filter(|s| s.len() > MAX_CACHE_SALT) {
            let length = format!("{} bytes", salt.len());
            return Err(out_of_range("cache_salt", &length, "up to 256 bytes"));
        }
        Ok(Self {
            prompt,
            max_tokens,
            sampling,
            stop,
            logprobs,
            cache_salt,
            bypass_cache,
            scheduling,
        })
    }

    /// The prompt's tokens, at least one.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The most tokens to generate, at least one; prompt and answer fit the context.
    pub fn max_tokens(&self) -> Tokens {
        self.max_tokens
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// When to stop.
    pub fn stop(&self) -> &StopRules {
        &self.stop
    }

    /// How many alternatives to report, if log-probabilities are wanted.
    pub fn logprobs(&self) -> Option<u32> {
        self.logprobs
    }

    /// Only requests with the same salt share cached blocks.
    pub fn cache_salt(&self) -> Option<&[u8]> {
        self.cache_salt.as_deref()
    }

    /// Whether the whole prompt is computed, whatever the cache holds.
    pub fn bypasses_cache(&self) -> bool {
        self.bypass_cache
    }

    /// Where the request stands among others.
    pub fn scheduling(&self) -> Scheduling {
        self.scheduling
    }
}

fn out_of_range(field: &'static str, value: &dyn ToString, allowed: &'static str) -> RequestError {
    RequestError::OutOfRange {
        field,
        value: value.to_string(),
        allowed,
    }
}

fn check_sampling(sampling: &SamplingParams) -> Result<(), RequestError> {
    let checks = [
        ("temperature", sampling.temperature, 0.0..=2.0, "0 to 2"),
        ("top_p", sampling.top_p, 0.0..=1.0, "0 to 1"),
        ("min_p", sampling.min_p, 0.0..=1.0, "0 to 1"),
        (
            "frequency_penalty",
            sampling.frequency_penalty,
            -2.0..=2.0,
            "-2 to 2",
        ),
        (
            "presence_penalty",
            sampling.presence_penalty,
            -2.0..=2.0,
            "-2 to 2",
        ),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            1e-3..=1e3,
            "0.001 to 1000",
        ),
    ];
    for (field, value, range, allowed) in checks {
        if !range.contains(&value) {
            return Err(out_of_range(field, &value, allowed));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        vocab: 100,
        context: Tokens::new(16),
    };

    fn parts(prompt: usize) -> RequestParts {
        RequestParts::new(vec![TokenId::new(7); prompt])
    }

    #[test]
    fn default_length_is_what_the_context_leaves() {
        let request = GenerationRequest::new(parts(10), LIMITS).unwrap();
        assert_eq!(request.max_tokens(), Tokens::new(6));
    }

    #[test]
    fn prompt_must_leave_room_for_one_token() {
        assert!(GenerationRequest::new(parts(15), LIMITS).is_ok());
        let error = GenerationRequest::new(parts(16), LIMITS).unwrap_err();
        assert_eq!(error.kind(), "context_length_exceeded");
        assert_eq!(
            GenerationRequest::new(parts(0), LIMITS).unwrap_err().kind(),
            "empty_prompt"
        );
    }

    #[test]
    fn numbers_outside_their_range_name_the_field() {
        type Change = fn(&mut RequestParts);
        let cases: [(&str, Change); 10] = [
            ("cache_salt", |p| p.cache_salt = Some(vec![0; 257])),
            ("temperature", |p| p.sampling.temperature = f32::NAN),
            ("temperature", |p| p.sampling.temperature = f32::INFINITY),
            ("top_p", |p| p.sampling.top_p = 1.000_001),
            ("min_p", |p| p.sampling.min_p = -0.1),
            ("repetition_penalty", |p| {
                p.sampling.repetition_penalty = 0.0;
            }),
            ("logprobs", |p| p.logprobs = Some(21)),
            ("max_tokens", |p| p.max_tokens = Some(0)),
            ("max_tokens", |p| p.max_tokens = Some(u64::MAX)),
            ("stop_token_ids", |p| {
                p.stop.stop_token_ids = vec![TokenId::new(100)];
            }),
        ];
        for (field, change) in cases {
            let mut parts = parts(4);
            change(&mut parts);
            assert_eq!(
                GenerationRequest::new(parts, LIMITS).unwrap_err().field(),
                field
            );
        }
    }
}
