//! Texts that are answered with vectors or scores: through the engine in groups, back in order.
//!
//! A call may hold more texts than may wait. Its first group is taken or refused like any request;
//! the groups that follow wait for room, a few at a time, so that they do not shut others out.
//! Dropping the future drops the engine's handles and thereby cancels what still runs.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::Clock;
use forthwith_core::request::GenerationRequest;
use forthwith_engine::{
    Event, EventSink, FinishReason, Finished, RequestHandle, Submission, SubmitError,
};
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::loader::ServedModel;
use crate::metrics::Metrics;
use crate::state::AppState;

/// Texts that are handed to the engine together.
const GROUP: usize = 32;
/// Further groups are handed over when no more texts than this are under way.
const UNDER_WAY: usize = 32;
/// The longest pause before the engine is asked again for room.
const PAUSE: Duration = Duration::from_millis(250);

/// What the engine gave for one text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Computed {
    /// One vector after the other.
    Vectors(Vec<f32>),
    /// Log-probabilities of the tokens that were asked about.
    Scores(Vec<f64>),
}

/// What a call cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
}

struct Sent {
    text: usize,
    at: Duration,
    /// `None` when the engine let go of the text.
    event: Option<Event>,
}

struct Sink {
    text: usize,
    clock: Arc<dyn Clock>,
    sender: mpsc::UnboundedSender<Sent>,
}

impl Sink {
    fn pass(&self, event: Option<Event>) {
        let (text, at) = (self.text, self.clock.now());
        // The receiver is gone when the client left; the engine hears of that by the handle.
        let _ = self.sender.send(Sent { text, at, event });
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

/// One call's texts on their way.
struct Call {
    model: Arc<ServedModel>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    arrived: Duration,
    sender: mpsc::UnboundedSender<Sent>,
    handles: Vec<Option<RequestHandle>>,
    computed: Vec<Option<Computed>>,
    lengths: Vec<usize>,
    under_way: usize,
    spent: Spent,
}

/// Computes all texts; their answers stand in the order of the requests.
pub(crate) async fn compute(
    state: &AppState,
    model: Arc<ServedModel>,
    requests: Vec<GenerationRequest>,
    arrived: Duration,
) -> Result<(Vec<Computed>, Spent), ApiError> {
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut call = Call {
        model,
        metrics: Arc::clone(state.metrics()),
        clock: Arc::clone(state.clock()),
        arrived,
        sender,
        handles: requests.iter().map(|_| None).collect(),
        computed: requests.iter().map(|_| None).collect(),
        lengths: requests
            .iter()
            .map(|request| request.prompt().len())
            .collect(),
        under_way: 0,
        spent: Spent::default(),
    };
    let mut first = 0;
    while first < requests.len() || call.under_way > 0 {
        if first < requests.len() && call.under_way <= UNDER_WAY {
            let end = (first + GROUP).min(requests.len());
            match call.submit(first, &requests[first..end]) {
                Ok(()) => first = end,
                Err(error) => call.wait_or_give_up(first, error).await?,
            }
            continue;
        }
        let sent = events.recv().await;
        let sent = sent.ok_or_else(|| ApiError::internal("the engine ended early"))?;
        call.take(sent)?;
    }
    let computed = std::mem::take(&mut call.computed);
    let all = computed.into_iter().collect::<Option<Vec<_>>>();
    let lost = || ApiError::internal("the engine did not answer all texts");
    Ok((all.ok_or_else(lost)?, call.spent))
}

impl Call {
    fn submit(&mut self, first: usize, group: &[GenerationRequest]) -> Result<(), SubmitError> {
        let submission = |(text, request): (usize, &GenerationRequest)| -> Submission {
            let sink = Sink {
                text,
                clock: Arc::clone(&self.clock),
                sender: self.sender.clone(),
            };
            (request.clone(), Box::new(sink))
        };
        let submissions = (first..).zip(group).map(submission).collect();
        let handles = self.model.engine.submit_group(submissions)?;
        for (place, handle) in self.handles[first..].iter_mut().zip(handles) {
            *place = Some(handle);
        }
        self.under_way += group.len();
        Ok(())
    }

    /// The first group is refused with its reason; later ones ask again.
    async fn wait_or_give_up(&mut self, first: usize, error: SubmitError) -> Result<(), ApiError> {
        if first > 0
            && let SubmitError::Busy { retry_after, .. } = error
        {
            tokio::time::sleep(retry_after.min(PAUSE)).await;
            return Ok(());
        }
        self.metrics.refused();
        Err(error.into())
    }

    fn take(&mut self, sent: Sent) -> Result<(), ApiError> {
        match sent.event {
            Some(Event::Vectors(vectors)) => {
                self.computed[sent.text] = Some(Computed::Vectors(vectors));
            }
            Some(Event::Scores(scores)) => {
                self.computed[sent.text] = Some(Computed::Scores(scores));
            }
            Some(Event::Finished(finished)) => self.finish(sent.text, sent.at, &finished)?,
            Some(Event::Failed(failure)) => return Err(self.failed(failure.message)),
            Some(Event::Token(_) | Event::Prompt(_)) => {
                return Err(self.failed("the engine answered with a token".to_owned()));
            }
            None if self.handles[sent.text].is_some() => {
                return Err(self.failed("the engine ended this request".to_owned()));
            }
            None => {}
        }
        Ok(())
    }

    fn finish(&mut self, text: usize, at: Duration, finished: &Finished) -> Result<(), ApiError> {
        self.metrics.timings(&finished.timings);
        match finished.reason {
            FinishReason::Complete | FinishReason::FormComplete => {}
            FinishReason::QueueTimeout | FinishReason::TimeLimit => {
                self.metrics.ended("time_limit");
                let message = "the request was not computed within its time";
                return Err(ApiError::unavailable("queue_timeout", message));
            }
            _ => {
                let message = "the server shut down before the answer was complete";
                return Err(self.failed(message.to_owned()));
            }
        }
        let whole = at.saturating_sub(self.arrived);
        self.metrics
            .finished("complete", whole, (self.lengths[text], 0));
        self.spent.prompt += self.lengths[text];
        self.spent.cached += finished.cached_tokens.get();
        self.handles[text] = None;
        self.under_way -= 1;
        Ok(())
    }

    fn failed(&self, message: String) -> ApiError {
        self.metrics.ended("error");
        ApiError::internal(message)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for _ in self.handles.iter().flatten() {
            self.metrics.ended("cancelled");
        }
    }
}
