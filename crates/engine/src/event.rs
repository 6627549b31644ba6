//! What a request's owner hears: tokens one by one, then exactly one end.

use std::time::Duration;

use forthwith_core::units::{TokenId, Tokens};

use crate::kv::ReuseStop;

/// Takes the events of one request, on the engine's thread.
///
/// `send` must not block: the engine waits for it. A sink that panics ends its own request only.
/// A sink that is dropped without [`Event::Finished`] or [`Event::Failed`] means that the engine
/// itself has stopped.
pub trait EventSink: Send {
    /// Takes one event.
    fn send(&mut self, event: Event);
}

impl<F: FnMut(Event) + Send> EventSink for F {
    fn send(&mut self, event: Event) {
        self(event);
    }
}

/// One piece of news about a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next token of the answer; an end token is sent too.
    Token(TokenEvent),
    /// The answer is complete; nothing follows.
    Finished(Finished),
    /// The request failed, the engine lives on; nothing follows.
    Failed(String),
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The token.
    pub token: TokenId,
    /// Its log-probability, if the request asked for it.
    pub logprob: Option<TokenLogprob>,
}

/// Log-probabilities of the model's own distribution, before penalties and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The chosen token's.
    pub chosen: f64,
    /// The most likely tokens, most likely first, the lower id first among equals. Shorter than
    /// asked for if fewer tokens are possible at all.
    pub top: Vec<(TokenId, f64)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose this end token or stop token.
    End(TokenId),
    /// The answer has as many tokens as the request allows.
    Length,
    /// The request's owner left.
    Cancelled,
    /// The request had not begun when its time to wait was over.
    QueueTimeout,
}

/// The last event of a completed request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// Where the time went.
    pub timings: Timings,
    /// Tokens of the prompt.
    pub prompt_tokens: Tokens,
    /// Tokens of the prompt that were found in the cache.
    pub cached_tokens: Tokens,
    /// Why no more of the prompt was found in the cache.
    pub reuse_stop: ReuseStop,
    /// Tokens of the answer, an end token included.
    pub completion_tokens: Tokens,
}

/// Where a request's time went; a stretch that was not reached is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From arrival to the first step.
    pub queue: Duration,
    /// From the first step to the first token.
    pub prefill: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

impl Timings {
    /// From arrival to the first token.
    pub fn time_to_first_token(&self) -> Duration {
        self.queue + self.prefill
    }
}
