//! Whether a step is under way, seen from other threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether an engine on its own thread answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineHealth {
    /// It waits for requests or makes progress.
    Ready,
    /// The step under way has taken this long, more than a step may.
    Stuck(Duration),
    /// Its thread has ended.
    Stopped,
}

/// The time at which the step under way began, in nanoseconds and one more; 0 between steps.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat(AtomicU64);

impl Heartbeat {
    pub(crate) fn begin(&self, now: Duration) {
        let nanoseconds = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.0
            .store(nanoseconds.saturating_add(1), Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// How long the step under way has taken.
    pub(crate) fn running_for(&self, now: Duration) -> Option<Duration> {
        let began = self.0.load(Ordering::Acquire).checked_sub(1)?;
        Some(now.saturating_sub(Duration::from_nanos(began)))
    }
}
