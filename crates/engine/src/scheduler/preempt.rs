//! What happens when the cache is full: the last to come makes room.
//!
//! A preempted sequence keeps its tokens and returns to the head of the queue; what it lost is
//! computed again. The first to come is never sent away, so everything ends.

use super::Scheduler;

impl Scheduler {
    /// Gives the running sequence at `index` room for all its tokens, sending others away from
    /// the back, at last itself. Returns whether it still runs, and how many were sent away.
    pub(super) fn make_room(&mut self, index: usize) -> (bool, usize) {
        let mut preempted = 0;
        while let Some(sequence) = self.running.get_mut(index) {
            if sequence.table.grow(sequence.length(), &mut self.pool) {
                return (true, preempted);
            }
            self.preempt_last();
            preempted += 1;
        }
        (false, preempted)
    }

    fn preempt_last(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            sequence.release(&mut self.pool);
            self.counters.preemptions += 1;
            self.waiting.push_front(sequence);
        }
    }
}
