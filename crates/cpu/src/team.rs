//! The thread team: one job per step, all members walk the same program, barriers in between.
//!
//! The caller of [`Team::run`] is member 0; the others wait between steps, spinning briefly before
//! they sleep. A member that panics poisons the barrier, so that no one waits for it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Spins (about 30 µs) before a waiting thread sleeps, or yields its CPU at a barrier.
const SPINS: u32 = 2_000;

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
    finished: AtomicUsize,
    barrier: Barrier,
    failure: Mutex<Option<String>>,
}

struct Barrier {
    arrived: AtomicUsize,
    round: AtomicUsize,
    poisoned: AtomicBool,
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
            barrier
                .round
                .store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while barrier.round.load(Ordering::Acquire) == round {
            if barrier.poisoned.load(Ordering::Relaxed) {
                std::panic::resume_unwind(Box::new(Poisoned));
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
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
        let shared = Arc::new(Shared {
            members,
            generation: AtomicUsize::new(0),
            job: Mutex::new((0, None, false)),
            wake: Condvar::new(),
            finished: AtomicUsize::new(0),
            barrier: Barrier {
                arrived: AtomicUsize::new(0),
                round: AtomicUsize::new(0),
                poisoned: AtomicBool::new(false),
            },
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
        shared.finished.store(0, Ordering::Relaxed);
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
        let mut spins = 0;
        while shared.finished.load(Ordering::Acquire) != shared.members {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        shared.barrier.arrived.store(0, Ordering::Relaxed);
        shared.barrier.poisoned.store(false, Ordering::Relaxed);
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
            self.barrier.poisoned.store(true, Ordering::Relaxed);
            if !payload.is::<Poisoned>() {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert_with(|| panic_text(&*payload));
            }
        }
        self.finished.fetch_add(1, Ordering::AcqRel);
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
        let barrier = Barrier {
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
        };
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
