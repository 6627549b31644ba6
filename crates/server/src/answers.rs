//! The way back of a request: tokens from the engine, per choice, as text with an ending.
//!
//! A plain answer is the sum of the pieces that a stream would carry, so both say the same.
//! Dropping [`Answers`] drops the engine's handles and thereby cancels what still runs.

mod warnings;

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::Clock;
use forthwith_core::request::{GenerationRequest, Scheduling, StopRules};
use forthwith_core::units::TokenId;
use forthwith_engine::{
    Event, EventSink, Failure, FinishReason, Finished, PromptLogprob, RequestHandle, Submission,
    TokenEvent,
};
use forthwith_text::TextStream;
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::loader::ServedModel;
use crate::metrics::Metrics;
use crate::reader::Reader;

/// One choice to generate.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) request: GenerationRequest,
    /// Which of the call's prompts this continues.
    pub(crate) prompt: usize,
    /// What is to be said of the prompt.
    pub(crate) warning: Option<String>,
}

/// How hidden tokens are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// Whether two of them have between them what other tokens have.
    pub(crate) spaced: bool,
}

/// What a call needs besides its choices.
pub(crate) struct Context {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) stops: Vec<String>,
    /// Whether the text ends after what stops it, not before.
    pub(crate) shows_stop: bool,
    /// Hidden tokens that the text shows all the same.
    pub(crate) spelled: Vec<TokenId>,
    /// How hidden tokens are spelled, if they are.
    pub(crate) spelling: Option<Spelling>,
    /// Whether tokens that have no text are listed too.
    pub(crate) lists_all: bool,
    /// The tokens of each prompt, if the answer tells of them.
    pub(crate) prompts: Arc<[Vec<TokenId>]>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    /// When the call came in.
    pub(crate) arrived: Duration,
    /// Who reads the answer.
    pub(crate) reader: Reader,
}

/// A part of one choice: text that is ready, the tokens behind it, perhaps the end. What is known of
/// the prompt is a part of its own, and the first.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) choice: usize,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenEvent>,
    /// All tokens of the answer since the last part, those without text too.
    pub(crate) ids: Vec<TokenId>,
    pub(crate) prompt: Option<Arc<Vec<PromptLogprob>>>,
    pub(crate) end: Option<Ending>,
}

/// Why a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    /// The protocol's word.
    pub(crate) reason: &'static str,
    /// What matched, if it was not the model's own end token.
    pub(crate) matched: Option<Matched>,
    /// What its reader should know.
    pub(crate) warnings: Vec<String>,
}

/// The stop that the request asked for and that ended the choice.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub(crate) enum Matched {
    /// A stop string.
    Text(String),
    /// A stop token id.
    Token(u32),
}

/// What a call cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tokens of all prompts.
    pub(crate) prompt: usize,
    /// Those of them that were found in the cache.
    pub(crate) cached: usize,
    /// Tokens of all choices.
    pub(crate) completion: usize,
    /// Whether the clock decided where a choice ends.
    pub(crate) cut: bool,
}

/// All choices of one call while they are generated.
pub(crate) struct Answers {
    context: Context,
    choices: Vec<Choice>,
    events: mpsc::Receiver<Sent>,
    open: usize,
}

struct Choice {
    handle: Option<RequestHandle>,
    prompt: usize,
    text: TextStream,
    /// Tokens whose text is still held back.
    pending: Vec<TokenEvent>,
    ids: Vec<TokenId>,
    stopped: Option<Matched>,
    stop: StopRules,
    /// What is to be said of the prompt.
    prompt_warning: Option<String>,
    scheduling: Scheduling,
    /// Whether its time was over before it was complete.
    cut: bool,
    /// The fewest tokens that were asked for.
    min_tokens: u64,
    /// Whether its form was complete before that.
    short: bool,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    last_token_at: Option<Duration>,
    done: bool,
}

/// An event with its choice and the time when the engine sent it.
struct Sent {
    choice: usize,
    at: Duration,
    /// `None` when the engine let go of the choice.
    event: Option<Event>,
}

/// The engine's end of the channel, which has room for all events of the call: sending never waits
/// and loses nothing, however slow the client reads.
struct Sink {
    choice: usize,
    clock: Arc<dyn Clock>,
    sender: mpsc::Sender<Sent>,
}

impl Sink {
    fn pass(&self, event: Option<Event>) {
        let sent = Sent {
            choice: self.choice,
            at: self.clock.now(),
            event,
        };
        // The receiver is gone when the client left; the engine hears of that by the handle.
        let _ = self.sender.try_send(sent);
    }
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) {
        self.pass(Some(event));
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.pass(None);
    }
}

impl Answers {
    /// Hands all choices to the engine, which takes all or none.
    pub(crate) fn submit(context: Context, asks: Vec<Ask>) -> Result<Self, ApiError> {
        let (sender, events) = mpsc::channel(events_of(&asks));
        let mut choices = Vec::with_capacity(asks.len());
        let mut submissions = Vec::<Submission>::with_capacity(asks.len());
        for (index, ask) in asks.into_iter().enumerate() {
            let sink = Sink {
                choice: index,
                clock: Arc::clone(&context.clock),
                sender: sender.clone(),
            };
            choices.push(Choice::new(&context, &ask));
            submissions.push((ask.request, Box::new(sink)));
        }
        let handles = context.model.engine.submit_group(submissions);
        let handles = handles.inspect_err(|_| context.metrics.refused())?;
        for (choice, handle) in choices.iter_mut().zip(handles) {
            choice.handle = Some(handle);
        }
        Ok(Self {
            open: choices.len(),
            context,
            choices,
            events,
        })
    }

    /// The next piece of any choice; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        while self.open > 0 {
            let Some(sent) = self.events.recv().await else {
                return Some(Err(engine_gone()));
            };
            if let Some(piece) = self.take(sent).transpose() {
                return Some(piece);
            }
        }
        None
    }

    /// Which prompt a choice continues.
    pub(crate) fn prompt_of(&self, choice: usize) -> usize {
        self.choices[choice].prompt
    }

    /// The tokens of each prompt, if the answer tells of them.
    pub(crate) fn prompts(&self) -> &Arc<[Vec<TokenId>]> {
        &self.context.prompts
    }

    pub(crate) fn model(&self) -> &Arc<ServedModel> {
        &self.context.model
    }

    pub(crate) fn len(&self) -> usize {
        self.choices.len()
    }

    /// What was spent so far: each prompt once, the tokens of all choices.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut last_prompt = None;
        for choice in &self.choices {
            totals.completion += choice.completion_tokens;
            totals.cut |= choice.cut;
            if last_prompt != Some(choice.prompt) {
                last_prompt = Some(choice.prompt);
                totals.prompt += choice.prompt_tokens;
                totals.cached += choice.cached_tokens;
            }
        }
        totals
    }

    fn take(&mut self, sent: Sent) -> Result<Option<Piece>, ApiError> {
        if self.choices[sent.choice].done {
            return Ok(None);
        }
        match sent.event {
            Some(Event::Token(token)) => Ok(self.take_token(sent.choice, sent.at, token)),
            Some(Event::Prompt(rows)) => Ok(Some(Piece {
                choice: sent.choice,
                prompt: Some(rows),
                ..Piece::default()
            })),
            Some(Event::Finished(finished)) => self.finish(sent.choice, sent.at, &finished),
            Some(Event::Failed(failure)) => Err(self.failed(sent.choice, failure)),
            Some(Event::Vectors(_) | Event::Scores(_)) => {
                let message = "the engine answered with numbers in place of tokens";
                Err(self.failed(sent.choice, Failure::of_engine(message)))
            }
            // The engine cancelled for a stop string, and has nothing more to say.
            None if self.choices[sent.choice].stopped.is_some() => {
                Ok(Some(self.close(sent.choice, sent.at, "stop")))
            }
            None => {
                let failure = Failure::of_engine("the engine ended this request");
                Err(self.failed(sent.choice, failure))
            }
        }
    }

    fn take_token(&mut self, index: usize, at: Duration, token: TokenEvent) -> Option<Piece> {
        let choice = &mut self.choices[index];
        if choice.stopped.is_some() {
            return None;
        }
        let since = choice.last_token_at.replace(at);
        match since {
            None => self
                .context
                .metrics
                .first_token(at.saturating_sub(self.context.arrived)),
            Some(last) => self.context.metrics.next_token(at.saturating_sub(last)),
        }
        choice.completion_tokens += 1;
        choice.ids.push(token.token);
        let hidden = self.context.model.tokenizer.is_hidden(token.token);
        if !self.context.shows_stop && choice.is_cut_off(token.token, hidden) {
            // The token ends the answer and, like a stop string, is no part of it.
            choice
                .pending
                .extend(Some(token).filter(|_| self.context.lists_all));
            return None;
        }
        let spelling = self.context.spelling.filter(|_| hidden);
        let delta = match spelling {
            Some(Spelling { spaced }) => choice.text.spell(token.token, spaced),
            None => choice.text.push(token.token),
        };
        if !hidden || spelling.is_some() || self.context.lists_all {
            choice.pending.push(token);
        }
        if let Some(stop) = delta.stop {
            choice.stopped = Some(Matched::Text(self.context.stops[stop].clone()));
            choice.handle = None;
        }
        (!delta.text.is_empty()).then(|| Piece {
            choice: index,
            text: delta.text,
            tokens: std::mem::take(&mut choice.pending),
            ids: std::mem::take(&mut choice.ids),
            ..Piece::default()
        })
    }

    fn finish(
        &mut self,
        index: usize,
        at: Duration,
        finished: &Finished,
    ) -> Result<Option<Piece>, ApiError> {
        let choice = &mut self.choices[index];
        choice.cached_tokens = finished.cached_tokens.get();
        self.context.metrics.timings(&finished.timings);
        let reason = match finished.reason {
            _ if choice.stopped.is_some() => "stop",
            FinishReason::End(token) => {
                let asked = choice.stop.stop_token_ids.contains(&token);
                choice.stopped = asked.then_some(Matched::Token(token.get()));
                "stop"
            }
            FinishReason::FormComplete => {
                choice.short = (choice.completion_tokens as u64) < choice.min_tokens;
                "stop"
            }
            FinishReason::Length | FinishReason::Complete => "length",
            FinishReason::TimeLimit => {
                choice.cut = true;
                "length"
            }
            FinishReason::QueueTimeout => {
                let message = choice.did_not_begin();
                let _ = self.failed(index, Failure::of_engine(""));
                return Err(ApiError::unavailable("queue_timeout", &message));
            }
            FinishReason::Cancelled => {
                let message = "the server shut down before the answer was complete";
                return Err(self.failed(index, Failure::of_engine(message)));
            }
        };
        Ok(Some(self.close(index, at, reason)))
    }

    fn close(&mut self, index: usize, at: Duration, reason: &'static str) -> Piece {
        self.open -= 1;
        let choice = &mut self.choices[index];
        choice.done = true;
        choice.handle = None;
        let text_stopped = matches!(choice.stopped, Some(Matched::Text(_)));
        let rest = if text_stopped {
            String::new()
        } else {
            let delta = choice.text.finish();
            if let Some(stop) = delta.stop {
                choice.stopped = Some(Matched::Text(self.context.stops[stop].clone()));
            }
            delta.text
        };
        let whole = at.saturating_sub(self.context.arrived);
        let counts = (choice.prompt_tokens, choice.completion_tokens);
        let label = if choice.cut { "time_limit" } else { reason };
        self.context.metrics.finished(label, whole, counts);
        Piece {
            choice: index,
            text: rest,
            tokens: std::mem::take(&mut choice.pending),
            ids: std::mem::take(&mut choice.ids),
            prompt: None,
            end: Some(Ending {
                reason,
                matched: choice.stopped.clone(),
                warnings: choice.warnings(),
            }),
        }
    }

    /// Ends the whole call: an answer that lacks a choice is not an answer.
    fn failed(&mut self, index: usize, failure: Failure) -> ApiError {
        self.open -= 1;
        self.choices[index].done = true;
        self.context.metrics.ended("error");
        failure.into()
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let reason = if self.context.reader.has_stalled() {
            "stalled"
        } else {
            "cancelled"
        };
        for _ in self.choices.iter().filter(|choice| !choice.done) {
            self.context.metrics.ended(reason);
        }
    }
}

impl Choice {
    fn new(context: &Context, ask: &Ask) -> Self {
        let prompt = ask.request.prompt();
        let text = TextStream::new(Arc::clone(&context.model.tokenizer), context.stops.clone());
        Self {
            handle: None,
            prompt: ask.prompt,
            text: text
                .with_prompt(prompt.last().copied())
                .with_stop_shown(context.shows_stop)
                .with_spelled(context.spelled.clone()),
            pending: Vec::new(),
            ids: Vec::new(),
            stopped: None,
            stop: ask.request.stop().clone(),
            prompt_warning: ask.warning.clone(),
            scheduling: ask.request.scheduling(),
            cut: false,
            min_tokens: ask.request.edits().min_tokens,
            short: false,
            prompt_tokens: prompt.len(),
            cached_tokens: 0,
            completion_tokens: 0,
            last_token_at: None,
            done: false,
        }
    }

    /// Whether a token ends the answer and is no part of its text.
    fn is_cut_off(&self, token: TokenId, hidden: bool) -> bool {
        self.stop.stop_token_ids.contains(&token) || hidden && self.stop.ends(token)
    }
}

/// The most events of a call: what is known of the prompt, the tokens of each choice, its end, and the
/// engine letting go of it.
fn events_of(asks: &[Ask]) -> usize {
    let of_choice = |ask: &Ask| ask.request.max_tokens().get() + 3;
    asks.iter().map(of_choice).sum::<usize>().max(1)
}

fn engine_gone() -> ApiError {
    ApiError::internal("the engine ended before the answer was complete")
}
