//! The thread team: one job per step, all members walk the same program, barriers in between.
//!
//! The caller of [`Team::run`] is member 0. Whoever waits spins briefly and then offers its CPU to
//! others. Where members share CPUs, it soon sleeps instead: waiting awake spends what the mate needs.
//! A member that panics poisons the barrier, so that no one waits for it.

use crate::affinity::usable_cpus;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Spins (about 30 µs) before a waiting thread gives up its CPU.
const SPINS: u32 = 2_000;
/// How often a waiting thread offers its CPU to others before it sleeps, where members share CPUs.
/// Elsewhere it never sleeps within a job: with a neighbour on one of the CPUs, teams that slept were
/// slower by a third, because waking takes longer than a phase.
const YIELDS: u32 = 16;

/// A job, with its lifetime erased; [`Team::run`] outlives every use of it.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(Member<'_>) + Sync));
// SAFETY: the closure is `Sync`, and `Team::run` keeps it alive until all members are done.
unsafe impl Send for Job {}

struct Shared {
    members: usize,
    /// Counts jobs; a change wakes the members.
    generation: AtomicUsize,
    job: Mutex<(usize, Option<Job>, bool)>,
    wake: Condvar,
    barrier: Barrier,
    failure: Mutex<Option<String>>,
}

/// Where members meet, within a job and at its end.
struct Barrier {
    arrived: AtomicUsize,
    round: AtomicUsize,
    poisoned: AtomicBool,
    /// Members whose job is over.
    finished: AtomicUsize,
    /// Spins before a waiting member gives up its CPU: none where members share CPUs, since the
    /// mate that it waits for cannot run meanwhile.
    spins: u32,
    /// Whether it sleeps after some offers of its CPU.
    sleeps: bool,
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    opened: Condvar,
}

impl Barrier {
    fn new(crowded: bool) -> Self {
        Self {
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
            finished: AtomicUsize::new(0),
            spins: if crowded { 0 } else { SPINS },
            sleeps: crowded,
            sleepers: AtomicUsize::new(0),
            gate: Mutex::new(()),
            opened: Condvar::new(),
        }
    }

    /// Waits until `done`, whose change is followed by [`Barrier::wake`].
    ///
    /// Both sides are sequentially consistent: either the sleeper sees the change, or whoever made
    /// it sees the sleeper.
    fn wait(&self, done: impl Fn() -> bool) {
        for _ in 0..self.spins {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut yields = 0;
        while !self.sleeps || yields < YIELDS {
            if done() {
                return;
            }
            std::thread::yield_now();
            yields += u32::from(self.sleeps);
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !done() {
            let woken = self.opened.wait(gate);
            gate = woken.unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Who counted itself but does not sleep yet holds the gate.
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.opened.notify_all();
        }
    }
}

/// One member's view of a running job.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    /// This member's number, below `members`.
    pub(crate) index: usize,
    /// The size of the team.
    pub(crate) members: usize,
    barrier: &'a Barrier,
}

/// Unwinds a member whose team mate panicked.
struct Poisoned;

impl Member<'_> {
    /// Waits until every member arrives; what was written before is visible to all afterwards.
    pub(crate) fn barrier(&self) {
        if self.members == 1 {
            return;
        }
        let barrier = self.barrier;
        let round = barrier.round.load(Ordering::Acquire);
        if barrier.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            barrier.arrived.store(0, Ordering::Relaxed);
            let next = round.wrapping_add(1);
            barrier.round.store(next, Ordering::SeqCst);
            barrier.wake();
            return;
        }
        let passed = || barrier.round.load(Ordering::SeqCst) != round;
        barrier.wait(|| passed() || barrier.poisoned.load(Ordering::SeqCst));
        if !passed() {
            std::panic::resume_unwind(Box::new(Poisoned));
        }
    }

    /// This member's share of `count` items: contiguous, sizes differ by at most one.
    pub(crate) fn share(&self, count: usize) -> std::ops::Range<usize> {
        let start = count * self.index / self.members;
        start..count * (self.index + 1) / self.members
    }
}

/// A fixed set of threads.
pub(crate) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts `members - 1` threads; the caller of `run` is the remaining member.
    pub(crate) fn new(members: usize) -> std::io::Result<Self> {
        Self::start(members, members > usable_cpus())
    }

    fn start(members: usize, crowded: bool) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            members,
            generation: AtomicUsize::new(0),
            job: Mutex::new((0, None, false)),
            wake: Condvar::new(),
            barrier: Barrier::new(crowded),
            failure: Mutex::new(None),
        });
        let mut team = Self {
            shared,
            threads: Vec::new(),
        };
        for index in 1..members {
            let shared = Arc::clone(&team.shared);
            let builder = std::thread::Builder::new().name(format!("forthwith-cpu-{index}"));
            team.threads
                .push(builder.spawn(move || serve(&shared, index))?);
        }
        Ok(team)
    }

    /// How many threads run a job, the caller included.
    pub(crate) fn members(&self) -> usize {
        self.shared.members
    }

    /// Runs `job` on every member and returns when all are done; a panic becomes an error.
    pub(crate) fn run(&mut self, job: &(dyn Fn(Member<'_>) + Sync)) -> Result<(), String> {
        let shared = &*self.shared;
        let barrier = &shared.barrier;
        barrier.finished.store(0, Ordering::Relaxed);
        if shared.members > 1 {
            // SAFETY: only the lifetime changes; this function returns after every member finished.
            let job: &'static (dyn Fn(Member<'_>) + Sync) = unsafe { std::mem::transmute(job) };
            let mut slot = shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            slot.0 += 1;
            slot.1 = Some(Job(job));
            shared.generation.store(slot.0, Ordering::Release);
            drop(slot);
            shared.wake.notify_all();
        }
        shared.run_member(0, job);
        barrier.wait(|| barrier.finished.load(Ordering::SeqCst) == shared.members);
        barrier.arrived.store(0, Ordering::Relaxed);
        barrier.poisoned.store(false, Ordering::Relaxed);
        match shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let mut slot = self
            .shared
            .job
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        slot.0 += 1;
        slot.1 = None;
        slot.2 = true;
        self.shared.generation.store(slot.0, Ordering::Release);
        drop(slot);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A member never panics outside a job, and jobs are caught.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn run_member(&self, index: usize, job: &(dyn Fn(Member<'_>) + Sync)) {
        let member = Member {
            index,
            members: self.members,
            barrier: &self.barrier,
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(member))) {
            self.barrier.poisoned.store(true, Ordering::SeqCst);
            self.barrier.wake();
            if !payload.is::<Poisoned>() {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert_with(|| panic_text(&*payload));
            }
        }
        self.barrier.finished.fetch_add(1, Ordering::SeqCst);
        self.barrier.wake();
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_owned())
}

/// A worker's life: wait for the next job, run it, repeat.
fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.generation.load(Ordering::Acquire) == seen && spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        }
        let mut slot = shared.job.lock().unwrap_or_else(PoisonError::into_inner);
        while slot.0 == seen {
            slot = shared
                .wake
                .wait(slot)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let (generation, job, stop) = *slot;
        seen = generation;
        drop(slot);
        if stop {
            return;
        }
        if let Some(job) = job {
            // SAFETY: `Team::run` waits for this member before the closure goes away.
            shared.run_member(index, unsafe { &*job.0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_meet_at_barriers() {
        let mut team = Team::new(4).unwrap();
        for _ in 0..200 {
            let counters = [const { AtomicUsize::new(0) }; 50];
            team.run(&|member| {
                for counter in &counters {
                    counter.fetch_add(1, Ordering::Relaxed);
                    member.barrier();
                    assert_eq!(counter.load(Ordering::Relaxed), 4);
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn members_that_wait_long_sleep_and_are_woken() {
        let pause = || std::thread::sleep(std::time::Duration::from_millis(5));
        let mut team = Team::start(3, true).unwrap();
        for late in [0, 1, 2] {
            let met = AtomicUsize::new(0);
            team.run(&|member| {
                if member.index == late {
                    while member.barrier.sleepers.load(Ordering::SeqCst) < 2 {
                        pause();
                    }
                }
                met.fetch_add(1, Ordering::Relaxed);
                member.barrier();
                assert_eq!(met.load(Ordering::Relaxed), 3);
            })
            .unwrap();
        }
        let error = team.run(&|member| {
            if member.index == 2 {
                while member.barrier.sleepers.load(Ordering::SeqCst) < 2 {
                    pause();
                }
                panic!("late and wrong");
            }
            member.barrier();
        });
        assert_eq!(error, Err("late and wrong".to_owned()));
    }

    #[test]
    fn a_panic_is_an_error_and_the_team_goes_on() {
        let mut team = Team::new(3).unwrap();
        for culprit in 0..3 {
            let error = team.run(&|member| {
                assert!(member.index != culprit, "member {culprit} fails");
                member.barrier();
            });
            assert_eq!(error, Err(format!("member {culprit} fails")));
            assert_eq!(team.run(&|member| member.barrier()), Ok(()));
        }
    }

    #[test]
    fn shares_cover_everything_once() {
        let barrier = Barrier::new(false);
        for (members, count) in [(1, 7), (3, 7), (4, 2), (5, 0)] {
            let shares = (0..members).flat_map(|index| {
                Member {
                    index,
                    members,
                    barrier: &barrier,
                }
                .share(count)
            });
            assert!(shares.eq(0..count));
        }
    }
}
