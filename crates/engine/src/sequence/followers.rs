//! Who waits for a sequence's prompt, which is theirs as well.

use forthwith_core::units::SeqId;

use super::Sequence;

impl Sequence {
    /// Whether the other's prompt can be computed as part of this one.
    pub(crate) fn may_lead(&self, other: &Self) -> bool {
        let (own, others) = (&self.request, &other.request);
        self.wants_tokens()
            && other.wants_tokens()
            && self.sharing.open
            && other.sharing.open
            && own.prompt() == others.prompt()
            && own.prompt_logprobs() == others.prompt_logprobs()
            && own.cache_salt() == others.cache_salt()
            && own.scheduling() == others.scheduling()
    }

    /// The highest id of the sequence and its followers.
    pub(crate) fn last_id(&self) -> SeqId {
        self.followers.last().map_or(self.id, |last| last.id)
    }

    /// Stands this many places behind a leader that runs.
    pub(crate) fn join_behind(&mut self, leader: &Self, places: u64) {
        self.joined = leader.joined.map(|joined| joined + places);
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
