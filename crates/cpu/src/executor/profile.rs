//! What the phases of steps take, where somebody asks.

use super::Cpu;
use forthwith_core::clock::{Clock, SystemClock};
use forthwith_core::program::Phase;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The kinds of phases, in the order in which a step goes through them.
pub const PHASE_NAMES: [&str; 8] = [
    "embed",
    "qkv",
    "attention",
    "output",
    "gate_up",
    "down",
    "experts",
    "logits",
];

/// The kind of a phase, as an index into [`PHASE_NAMES`].
pub fn phase_kind(phase: &Phase) -> usize {
    match phase {
        Phase::Embed(_) => 0,
        Phase::QkvProjection(_) => 1,
        Phase::Attention(_) => 2,
        Phase::OutputResidual(_) => 3,
        Phase::GateUp(_) | Phase::Up(_) => 4,
        Phase::DownResidual(_) => 5,
        Phase::Experts(_) => 6,
        Phase::Logits(_) | Phase::Pool(_) => 7,
    }
}

impl Cpu {
    /// Begins to add up what phases take, from nothing; costs two looks at the clock for each phase.
    pub fn begin_profile(&mut self) {
        self.profile = Some(Profile::start());
    }

    /// What phases took since [`Cpu::begin_profile`], in the order of [`PHASE_NAMES`], and ends
    /// the count; nothing if it was not begun.
    pub fn end_profile(&mut self) -> [Duration; PHASE_NAMES.len()] {
        let profile = self.profile.take();
        profile.map(|profile| profile.times()).unwrap_or_default()
    }
}

/// Time by kind of phase, barriers included.
pub(crate) struct Profile {
    clock: SystemClock,
    nanoseconds: [AtomicU64; PHASE_NAMES.len()],
}

impl Profile {
    pub(crate) fn start() -> Self {
        Self {
            clock: SystemClock::start(),
            nanoseconds: Default::default(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Adds the time since `began`.
    pub(crate) fn note(&self, phase: &Phase, began: Duration) {
        let time = self.clock.now().saturating_sub(began).as_nanos();
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        self.nanoseconds[phase_kind(phase)].fetch_add(time, Ordering::Relaxed);
    }

    pub(crate) fn times(&self) -> [Duration; PHASE_NAMES.len()] {
        let read = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        self.nanoseconds.each_ref().map(read)
    }
}
