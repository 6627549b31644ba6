//! One request's state: its tokens, its blocks and how far the model has come.
//!
//! Prefill, decode and the recomputation after a preemption are one thing here: tokens that are
//! known but not yet computed. A sequence that lost its blocks starts again with the tokens it
//! has; the answer so far has become part of what is prefilled.

mod followers;
mod rows;
mod sharing;
mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use forthwith_core::constraint::Next;
use forthwith_core::request::GenerationRequest;
use forthwith_core::units::{SeqId, TokenId, Tokens};

use crate::event::{Event, EventSink, Failure, FinishReason, Finished, Timings, TokenEvent};
use crate::guide::Guide;
use crate::kv::{BlockPool, BlockTable, Foreseen};
use crate::outlook::Load;
use crate::sampling::{Choice, first_bound};
use rows::PromptRows;
use sharing::Sharing;
pub(crate) use sharing::Start;
use text::TextAnswer;

/// How a sequence ended.
#[derive(Debug)]
pub(crate) enum End {
    Finished(FinishReason),
    Failed(Failure),
}

/// When things happened to a request.
#[derive(Clone, Copy, Debug)]
struct Stamps {
    arrived: Duration,
    admitted: Option<Duration>,
    first_token: Option<Duration>,
    /// How long after the arrival the first token was expected.
    expected: Option<Duration>,
}

/// Where a sequence stands among those that run or have run: the last one is sent away first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: i32,
    /// Which sequence of the engine this was to join.
    joined: u64,
}

/// One answer in the making.
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) request: GenerationRequest,
    /// The prompt, then the answer so far.
    pub(crate) tokens: Vec<TokenId>,
    /// How many of `tokens` the cache holds.
    pub(crate) computed: usize,
    pub(crate) table: BlockTable,
    pub(crate) end: Option<End>,
    joined: Option<u64>,
    /// Who computes the prompt for this sequence.
    pub(crate) leader: Option<SeqId>,
    /// Those who wait until this sequence has computed its prompt, which is theirs as well.
    pub(crate) followers: Vec<Sequence>,
    sharing: Sharing,
    /// Which tokens may come next, if not all may.
    guide: Option<Arc<Guide>>,
    /// How surprising the next token may be, for mirostat: what the tokens so far led to.
    pub(crate) bound: f64,
    /// What is computed so far of what was wanted instead of tokens.
    text: TextAnswer,
    prompt_rows: PromptRows,
    /// The most prompt tokens that were ever computed.
    prompt_reached: usize,
    /// Prompt tokens that were likely to be found when the request came.
    foreseen: usize,
    stamps: Stamps,
    sink: Option<Box<dyn EventSink>>,
}

impl Sequence {
    pub(crate) fn new(
        id: SeqId,
        request: GenerationRequest,
        sink: Box<dyn EventSink>,
        arrived: Duration,
    ) -> Self {
        Self {
            id,
            tokens: request.prompt().to_vec(),
            computed: 0,
            table: BlockTable::default(),
            end: None,
            joined: None,
            leader: None,
            followers: Vec::new(),
            sharing: Sharing::new(!request.bypasses_cache()),
            text: TextAnswer::default(),
            bound: first_bound(request.sampling().filters.mirostat),
            prompt_rows: PromptRows::default(),
            guide: request.constraint().cloned().map(Guide::new).map(Arc::new),
            request,
            prompt_reached: 0,
            foreseen: 0,
            stamps: Stamps {
                arrived,
                admitted: None,
                first_token: None,
                expected: None,
            },
            sink: Some(sink),
        }
    }

    /// Says what is expected: what the cache holds, and how long after the arrival the first token comes.
    pub(crate) fn expect(&mut self, foreseen: Foreseen, first_token: Option<Duration>) {
        self.foreseen = foreseen.cached;
        self.sharing.know(foreseen.chain);
        self.stamps.expected = first_token;
    }

    /// What others wait for while this sequence waits before them.
    pub(crate) fn load(&self) -> Load {
        let found = if self.has_joined() { 0 } else { self.foreseen };
        Load {
            requests: 1 + self.followers.len(),
            tokens: self.tokens.len() - found,
        }
    }

    /// Whether the whole prompt is in the cache.
    pub(crate) fn has_prompt(&self) -> bool {
        self.computed >= self.request.prompt().len()
    }

    /// Tokens that are known but not yet computed, at least one while the sequence lives.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// All tokens known so far.
    pub(crate) fn length(&self) -> Tokens {
        Tokens::new(self.tokens.len())
    }

    /// Tokens of the answer so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt().len()
    }

    /// Notes that the sequence joins a step; whether for the first time.
    pub(crate) fn mark_admitted(&mut self, now: Duration) -> bool {
        let first = self.stamps.admitted.is_none();
        self.stamps.admitted.get_or_insert(now);
        first
    }

    /// Gives the sequence its place among those that run, once and for all.
    pub(crate) fn join(&mut self, joined: u64) {
        self.joined.get_or_insert(joined);
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.is_some()
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank {
            priority: self.request.scheduling().priority,
            joined: self.joined.unwrap_or(u64::MAX),
        }
    }

    /// How long the first token was expected to take, and how long it took, if it has just come.
    pub(crate) fn first_token_times(&self) -> Option<(Duration, Duration)> {
        let Stamps {
            arrived,
            first_token,
            expected,
            ..
        } = self.stamps;
        let just_come = self.generated() == 1;
        just_come.then_some((expected?, first_token?.saturating_sub(arrived)))
    }

    /// When the request ends if it still waits then.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let scheduling = self.request.scheduling();
        let patience = scheduling.max_queue_time.filter(|_| !self.has_joined());
        let allowed = patience.into_iter().chain(scheduling.max_time).min()?;
        Some(self.stamps.arrived.saturating_add(allowed))
    }

    /// Ends the sequence if its time is over.
    pub(crate) fn end_in_time(&mut self, now: Duration) {
        let is_over = |allowed| now >= self.stamps.arrived.saturating_add(allowed);
        if self.end.is_none() && self.request.scheduling().max_time.is_some_and(is_over) {
            self.end = Some(End::Finished(FinishReason::TimeLimit));
        }
    }

    /// Counts tokens as computed; returns how many prompt tokens were computed for the first time.
    pub(crate) fn advance(&mut self, tokens: usize) -> usize {
        self.computed += tokens;
        let reached = self.computed.min(self.request.prompt().len());
        let fresh = reached.saturating_sub(self.prompt_reached);
        self.prompt_reached += fresh;
        fresh
    }

    /// Appends a chosen token, tells the owner, and ends the sequence if this token ends it.
    pub(crate) fn accept(&mut self, choice: Choice, now: Duration) {
        self.stamps.first_token.get_or_insert(now);
        if self.generated() == 0 {
            self.tell_prompt();
        }
        self.tokens.push(choice.token);
        self.bound = choice.bound.unwrap_or(self.bound);
        self.end = self.end_after(choice.token);
        self.send(Event::Token(TokenEvent {
            token: choice.token,
            logprob: choice.logprob,
        }));
        if self.sink.is_none() {
            self.end = Some(End::Finished(FinishReason::Cancelled));
        }
    }

    fn end_after(&self, token: TokenId) -> Option<End> {
        let stop = self.request.stop();
        if stop.ends(token) {
            return Some(End::Finished(FinishReason::End(token)));
        }
        match self.guide().map(|guide| guide.advance(token)) {
            None | Some(Ok(Next::Open)) => {}
            Some(Ok(Next::Complete)) => return Some(End::Finished(FinishReason::FormComplete)),
            Some(Err(error)) => return Some(End::Failed(Failure::of_request(error.to_string()))),
        }
        let length = End::Finished(FinishReason::Length);
        self.is_full().then_some(length)
    }

    /// Whether the answer has as many tokens as the request allows.
    fn is_full(&self) -> bool {
        self.generated() >= self.request.max_tokens().get()
    }

    /// Whether a token is to be chosen when all that is known is computed.
    pub(crate) fn goes_on(&self) -> bool {
        self.wants_tokens() && !self.is_full()
    }

    /// Which tokens may come next, if not all may.
    pub(crate) fn guide(&self) -> Option<&Arc<Guide>> {
        self.guide.as_ref()
    }

    /// Gives the blocks back, known to others as far as they are full, and forgets what was computed.
    pub(crate) fn release(&mut self, pool: &mut BlockPool) {
        self.publish(pool);
        std::mem::take(&mut self.table).release(pool);
        self.computed = 0;
        self.sharing.published = 0;
    }

    /// Forgets the blocks without giving them back, for a pool that is about to be reset.
    pub(crate) fn forget_blocks(&mut self) {
        self.table = BlockTable::default();
        self.computed = 0;
        self.sharing.published = 0;
    }

    /// Tells the owner how the sequence ended. Only the first end is told.
    pub(crate) fn send_end(&mut self, end: End, now: Duration) {
        let event = match end {
            End::Failed(failure) => Event::Failed(failure),
            End::Finished(reason) => Event::Finished(Finished {
                reason,
                timings: self.timings(now),
                prompt_tokens: Tokens::new(self.request.prompt().len()),
                cached_tokens: Tokens::new(self.sharing.cached),
                reuse_stop: self.sharing.stop,
                completion_tokens: Tokens::new(self.generated()),
            }),
        };
        self.send(event);
        if let Some(sink) = self.sink.take() {
            discard(sink);
        }
    }

    fn timings(&self, now: Duration) -> Timings {
        let Stamps {
            arrived,
            admitted,
            first_token,
            expected: _,
        } = self.stamps;
        let joined = admitted.unwrap_or(now);
        let answered = first_token.unwrap_or(now);
        Timings {
            queue: joined.saturating_sub(arrived),
            prefill: answered.saturating_sub(joined),
            decode: now.saturating_sub(answered),
        }
    }

    /// Sends an event. A sink that panics is dropped: its owner's fault must not become others'.
    fn send(&mut self, event: Event) {
        if let Some(mut sink) = self.sink.take() {
            match catch_unwind(AssertUnwindSafe(|| sink.send(event))) {
                Ok(()) => self.sink = Some(sink),
                Err(_) => discard(sink),
            }
        }
    }
}

/// Drops a sink whose drop may panic.
fn discard(sink: Box<dyn EventSink>) {
    // The panic hook has reported it; there is nothing to add.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(sink)));
}
