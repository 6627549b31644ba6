//! What happens when the cache is full: the last to come of the last priority makes room.
//!
//! A preempted sequence keeps its tokens and returns to the head of the queue; what it lost is
//! computed again. The first to come of the first priority is never sent away, so everything ends.

use super::Scheduler;
use super::plan::StepPlan;

impl Scheduler {
    /// Gives the running sequence at `index` room for all its tokens, sending others away from
    /// the back, at last itself. Returns whether it still runs.
    pub(super) fn make_room(&mut self, index: usize, plan: &mut StepPlan) -> bool {
        while let Some(sequence) = self.running.get_mut(index) {
            if sequence.table.grow(sequence.length(), &mut self.pool) {
                return true;
            }
            self.preempt_last();
            plan.preempted += 1;
        }
        false
    }

    fn preempt_last(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            sequence.release(&mut self.pool);
            self.counters.preemptions += 1;
            self.queue.put_back(sequence);
        }
    }
}
