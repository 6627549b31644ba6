//! What happens when the cache or all places are full: the last to come of the last priority makes room.
//!
//! A sequence that is sent away keeps its tokens and returns to the head of the queue; what it lost is
//! computed again. Those of its own priority never take its place, and the first to come of the first
//! priority is never sent away, so everything ends.

use super::Scheduler;
use super::plan::StepPlan;
use crate::sequence::Sequence;

impl Scheduler {
    /// Gives the running sequence at `index` room for all its tokens, sending others away from
    /// the back, at last itself. Returns whether it still runs.
    pub(super) fn make_room(&mut self, index: usize, plan: &mut StepPlan) -> bool {
        while let Some(sequence) = self.running.get_mut(index) {
            if sequence.table.grow(sequence.length(), &mut self.pool) {
                return true;
            }
            self.send_last_away();
            self.counters.preemptions += 1;
            plan.preempted += 1;
        }
        false
    }

    /// Frees a place, if there is none, for whoever waits with a better priority than the last of the
    /// running sequences, and can begin in this step.
    pub(super) fn make_way(&mut self, plan: &mut StepPlan) {
        if self.running.len() < self.config.max_running {
            return;
        }
        let Some(priority) = self.queue.best_priority() else {
            return;
        };
        let is_worse = |sequence: &Sequence| sequence.rank().priority > priority;
        let Some((last, others)) = self.running.split_last().filter(|(last, _)| is_worse(last))
        else {
            return;
        };
        debug_assert!(others.iter().all(|other| other.rank() < last.rank()));
        let before = others.iter().map(|sequence| match sequence.pending() {
            1 => 1,
            _ if is_worse(sequence) => 0,
            pending => pending,
        });
        if before.sum::<usize>() < self.config.max_step_tokens.get() {
            self.send_last_away();
            self.counters.displacements += 1;
            plan.displaced += 1;
        }
    }

    fn send_last_away(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            sequence.release(&mut self.pool);
            self.queue.put_back(sequence);
        }
    }
}
