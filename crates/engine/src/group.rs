//! Requests that arrive together: the choices of one prompt compute it once.

use std::time::Duration;

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::SeqId;

use crate::event::EventSink;
use crate::kv::Foreseen;
use crate::sequence::Sequence;

/// A request and where its events go.
pub type Submission = (GenerationRequest, Box<dyn EventSink>);

/// What is expected of requests that come together.
pub(crate) struct Expectation {
    /// Of each, what the cache holds.
    pub(crate) foreseen: Vec<Foreseen>,
    /// When the first token comes, if that can be said.
    pub(crate) first_token: Option<Duration>,
}

/// Requests that came together, as sequences.
pub(crate) struct Group {
    pub(crate) ids: Vec<SeqId>,
    /// Each with the others that wait for its prompt.
    pub(crate) leaders: Vec<Sequence>,
}

impl Group {
    /// Requests that arrived now, with what is expected of them.
    pub(crate) fn new(
        choices: Vec<Submission>,
        expectation: Expectation,
        first_id: u64,
        arrived: Duration,
    ) -> Self {
        let mut ids = Vec::with_capacity(choices.len());
        let mut leaders: Vec<Sequence> = Vec::new();
        let choices = choices.into_iter().zip(expectation.foreseen);
        for (id, ((request, sink), foreseen)) in (first_id..).zip(choices) {
            let id = SeqId::new(id);
            ids.push(id);
            let mut sequence = Sequence::new(id, request, sink, arrived);
            sequence.expect(foreseen, expectation.first_token);
            match leaders.last_mut() {
                Some(leader) if leader.may_lead(&sequence) => {
                    sequence.leader = Some(leader.id);
                    leader.followers.push(sequence);
                }
                _ => leaders.push(sequence),
            }
        }
        Self { ids, leaders }
    }
}
