//! Requests that came together: the first of those with one prompt computes it for the others.

use std::time::Duration;

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::SeqId;

use super::Sequence;
use crate::event::EventSink;

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
            sequence.stamps.expected = expected;
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

impl Sequence {
    fn may_lead(&self, other: &Self) -> bool {
        let (own, others) = (&self.request, &other.request);
        self.sharing.open
            && other.sharing.open
            && own.prompt() == others.prompt()
            && own.cache_salt() == others.cache_salt()
            && own.scheduling() == others.scheduling()
    }

    /// The highest id of the sequence and its followers.
    pub(crate) fn last_id(&self) -> SeqId {
        self.followers.last().map_or(self.id, |last| last.id)
    }

    pub(crate) fn remove_follower(&mut self, id: SeqId) -> Option<Sequence> {
        let index = self.followers.iter().position(|other| other.id == id)?;
        Some(self.followers.remove(index))
    }

    /// The first follower, who computes the prompt for the others if this sequence ends.
    pub(crate) fn take_heir(&mut self) -> Option<Sequence> {
        let mut followers = std::mem::take(&mut self.followers).into_iter();
        let mut heir = followers.next()?;
        heir.leader = None;
        heir.joined = self.joined;
        heir.followers = followers.collect();
        for follower in &mut heir.followers {
            follower.leader = Some(heir.id);
        }
        Some(heir)
    }
}
