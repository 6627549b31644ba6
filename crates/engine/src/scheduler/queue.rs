//! Who waits, and who of them is next.
//!
//! Lower priorities come first. Within a priority, those who have run before (and were sent away, or
//! belong to a group whose first has run) come before fresh ones, in the order in which they joined.
//! Fresh ones stand in a lane for each tenant, first come first served; the tenant that was served
//! least is next.
//!
//! The order of lanes is corrected when it is read: counters only grow, so a lane whose entry is out
//! of date stands too far ahead and is moved back when it comes to the front. Serving a tenant
//! therefore costs nothing here, and choosing costs the logarithm of the number of lanes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use forthwith_core::units::{SeqId, TenantId};

use super::tenants::{Served, Tenants};
use crate::outlook::{Change, Line, Load};
use crate::sequence::{Rank, Sequence};

#[derive(Debug, Default)]
struct Lane {
    ids: VecDeque<SeqId>,
    /// The counter under which the lane stands in the order.
    stands: Served,
}

pub(crate) struct Queue {
    returned: BTreeMap<Rank, Sequence>,
    fresh: BTreeMap<SeqId, Sequence>,
    lanes: BTreeMap<(i32, TenantId), Lane>,
    /// One entry for each lane in which somebody stands.
    order: BTreeSet<(i32, Served, TenantId)>,
    /// Those whose time to wait is limited; with the rank of those who have run before.
    deadlines: BTreeSet<(Duration, SeqId, Option<Rank>)>,
    tenants: Tenants,
    /// Tokens that those who wait have to compute, as far as they are known.
    tokens: usize,
    /// Who came and left since this was last asked for.
    changes: Vec<Change>,
}

impl Queue {
    pub(crate) fn new(weights: &[(TenantId, u32)]) -> Self {
        Self {
            returned: BTreeMap::new(),
            fresh: BTreeMap::new(),
            lanes: BTreeMap::new(),
            order: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            tenants: Tenants::new(weights),
            tokens: 0,
            changes: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.returned.len() + self.fresh.len()
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Who came and left since the last call.
    pub(crate) fn changes(&mut self) -> impl Iterator<Item = Change> {
        self.changes.drain(..)
    }

    /// Where everybody stands.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (Line, Load)> {
        self.iter()
            .map(|sequence| (line_of(sequence), sequence.load()))
    }

    fn count(&mut self, sequence: &Sequence, came: bool) {
        if came {
            self.tokens += sequence.length().get();
        } else {
            self.tokens -= sequence.length().get();
        }
        self.changes.push(Change {
            line: line_of(sequence),
            came,
            load: sequence.load(),
        });
    }

    /// One who came with others has left, and the prompt is theirs.
    fn count_one_less(&mut self, line: Line) {
        self.changes.push(Change {
            line,
            came: false,
            load: Load {
                requests: 1,
                tokens: 0,
            },
        });
    }

    pub(crate) fn tenants(&mut self) -> &mut Tenants {
        &mut self.tenants
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.returned.values().chain(self.fresh.values())
    }

    /// Takes out one who waits for the prompt of another that waits.
    pub(crate) fn remove_follower(&mut self, id: SeqId) -> Option<Sequence> {
        let mut leaders = self.returned.values_mut().chain(self.fresh.values_mut());
        let (follower, line) =
            leaders.find_map(|leader| Some((leader.remove_follower(id)?, line_of(leader))))?;
        self.count_one_less(line);
        Some(follower)
    }

    /// Takes in a sequence that comes for the first time, as the last of its lane.
    pub(crate) fn push(&mut self, sequence: Sequence) {
        self.enter(sequence, VecDeque::push_back);
    }

    /// Takes in a sequence that was here, or that takes the place of one that was.
    pub(crate) fn put_back(&mut self, sequence: Sequence) {
        if sequence.has_joined() {
            self.count(&sequence, true);
            self.deadlines.extend(deadline_of(&sequence));
            self.returned.insert(sequence.rank(), sequence);
        } else {
            self.enter(sequence, VecDeque::push_front);
        }
    }

    fn enter(&mut self, sequence: Sequence, push: fn(&mut VecDeque<SeqId>, SeqId)) {
        let (priority, tenant) = lane_of(&sequence);
        self.tenants.arrive(tenant);
        self.count(&sequence, true);
        self.deadlines.extend(deadline_of(&sequence));
        let lane = self.lanes.entry((priority, tenant)).or_default();
        if lane.ids.is_empty() {
            lane.stands = self.tenants.served(tenant);
            self.order.insert((priority, lane.stands, tenant));
        }
        push(&mut lane.ids, sequence.id);
        self.fresh.insert(sequence.id, sequence);
    }

    /// The priority of whoever is next.
    pub(crate) fn best_priority(&self) -> Option<i32> {
        let fresh = self.order.first().map(|&(priority, ..)| priority);
        let returned = self.returned.first_key_value();
        let returned = returned.map(|(rank, _)| rank.priority);
        fresh.into_iter().chain(returned).min()
    }

    /// Whoever is next.
    pub(crate) fn next(&mut self) -> Option<&mut Sequence> {
        let lane = self.first_lane();
        match self.returned.first_entry() {
            Some(entry) if lane.is_none_or(|(priority, _)| entry.key().priority <= priority) => {
                Some(entry.into_mut())
            }
            _ => {
                let first = self.lanes.get(&lane?)?.ids.front()?;
                self.fresh.get_mut(first)
            }
        }
    }

    /// Takes out whoever is next.
    pub(crate) fn take_next(&mut self) -> Option<Sequence> {
        let next = self.next()?;
        let id = next.id;
        if next.has_joined() {
            let rank = next.rank();
            return self.leave_returned(rank);
        }
        let (_, tenant) = lane_of(next);
        self.tenants.serve(tenant);
        self.leave_lane(id)
    }

    /// Takes out a sequence wherever it stands. Its heir, if it has followers, stands there then;
    /// tells whether there is one.
    pub(crate) fn remove(&mut self, id: SeqId) -> Option<(Sequence, bool)> {
        if let Some(leader) = self.fresh.get_mut(&id) {
            let Some(heir) = leader.take_heir() else {
                return Some((self.leave_lane(id)?, false));
            };
            return Some((self.inherit(id, heir)?, true));
        }
        let returned = self.returned.values().find(|other| other.id == id)?;
        let mut leader = self.leave_returned(returned.rank())?;
        let heir = leader.take_heir();
        let inherited = heir.is_some();
        if let Some(heir) = heir {
            self.put_back(heir);
        }
        Some((leader, inherited))
    }

    /// Puts an heir in the place of its leader, with whom it came.
    fn inherit(&mut self, leader: SeqId, heir: Sequence) -> Option<Sequence> {
        let lane = self.lanes.get_mut(&lane_of(&heir))?;
        let place = lane.ids.iter_mut().find(|other| **other == leader)?;
        *place = heir.id;
        self.deadlines.extend(deadline_of(&heir));
        self.count_one_less(line_of(&heir));
        self.fresh.insert(heir.id, heir);
        let leader = self.fresh.remove(&leader)?;
        self.forget_deadline(&leader);
        Some(leader)
    }

    /// Takes out a sequence whose time to wait is over.
    pub(crate) fn take_expired(&mut self, now: Duration) -> Option<Sequence> {
        let &(deadline, id, rank) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        match rank {
            Some(rank) => self.leave_returned(rank),
            None => self.leave_lane(id),
        }
    }

    fn forget_deadline(&mut self, sequence: &Sequence) {
        if let Some(deadline) = deadline_of(sequence) {
            self.deadlines.remove(&deadline);
        }
    }

    /// The first lane in order, after lanes that stand too far ahead have been moved back.
    fn first_lane(&mut self) -> Option<(i32, TenantId)> {
        loop {
            let &(priority, stands, tenant) = self.order.first()?;
            let served = self.tenants.served(tenant);
            if served <= stands {
                return Some((priority, tenant));
            }
            self.order.pop_first();
            self.order.insert((priority, served, tenant));
            if let Some(lane) = self.lanes.get_mut(&(priority, tenant)) {
                lane.stands = served;
            }
        }
    }

    fn leave_returned(&mut self, rank: Rank) -> Option<Sequence> {
        let sequence = self.returned.remove(&rank)?;
        self.count(&sequence, false);
        self.forget_deadline(&sequence);
        Some(sequence)
    }

    fn leave_lane(&mut self, id: SeqId) -> Option<Sequence> {
        let sequence = self.fresh.remove(&id)?;
        let key = lane_of(&sequence);
        let (priority, tenant) = key;
        self.count(&sequence, false);
        self.tenants.leave(tenant);
        self.forget_deadline(&sequence);
        if let Some(lane) = self.lanes.get_mut(&key) {
            if lane.ids.front() == Some(&id) {
                lane.ids.pop_front();
            } else {
                lane.ids.retain(|&other| other != id);
            }
            if lane.ids.is_empty() {
                self.order.remove(&(priority, lane.stands, tenant));
                self.lanes.remove(&key);
            }
        }
        Some(sequence)
    }

    /// Checks that everybody stands in one place and nobody owns a block.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check_invariants(&self) {
        let in_lanes: usize = self.lanes.values().map(|lane| lane.ids.len()).sum();
        assert_eq!(in_lanes, self.fresh.len(), "somebody stands in no lane");
        assert_eq!(self.order.len(), self.lanes.len(), "a lane has no place");
        for (&(priority, tenant), lane) in &self.lanes {
            assert!(self.order.contains(&(priority, lane.stands, tenant)));
            assert!(lane.ids.iter().all(|id| self.fresh.contains_key(id)));
        }
        let tokens: usize = self.iter().map(|sequence| sequence.length().get()).sum();
        assert_eq!(tokens, self.tokens, "waiting tokens are miscounted");
        let deadlines: BTreeSet<_> = self.iter().filter_map(deadline_of).collect();
        assert_eq!(deadlines, self.deadlines, "a deadline is lost or left over");
        for sequence in self.iter() {
            let owns = !sequence.table.blocks().is_empty();
            assert!(!owns, "a waiting sequence owns blocks");
            assert_eq!(
                sequence.computed, 0,
                "a waiting sequence has computed tokens"
            );
        }
    }
}

fn deadline_of(sequence: &Sequence) -> Option<(Duration, SeqId, Option<Rank>)> {
    let rank = sequence.has_joined().then(|| sequence.rank());
    Some((sequence.deadline()?, sequence.id, rank))
}

fn line_of(sequence: &Sequence) -> Line {
    let (priority, tenant) = lane_of(sequence);
    (priority, (!sequence.has_joined()).then_some(tenant))
}

fn lane_of(sequence: &Sequence) -> (i32, TenantId) {
    let scheduling = sequence.request.scheduling();
    (scheduling.priority, scheduling.tenant)
}
