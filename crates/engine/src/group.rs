//! Requests that arrive together: the choices of one prompt compute it once.

use std::time::Duration;

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::SeqId;

use crate::event::EventSink;
use crate::sequence::Sequence;

/// A request and where its events go.
pub type Submission = (GenerationRequest, Box<dyn EventSink>);

/// Requests that came together, as sequences.
pub(crate) struct Group {
    pub(crate) ids: Vec<SeqId>,
    /// Each with the others that wait for its prompt.
    pub(crate) leaders: Vec<Sequence>,
}

impl Group {
    /// Requests that arrived now and whose first token is expected after some time.
    pub(crate) fn new(
        choices: Vec<Submission>,
        first_id: u64,
        arrived: Duration,
        expected: Option<Duration>,
    ) -> Self {
        let mut ids = Vec::with_capacity(choices.len());
        let mut leaders: Vec<Sequence> = Vec::new();
        for (id, (request, sink)) in (first_id..).zip(choices) {
            let id = SeqId::new(id);
            ids.push(id);
            let mut sequence = Sequence::new(id, request, sink, arrived);
            sequence.expect_first_token(expected);
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
