//! Seeded worlds of arrivals, cancels, faults and tiny caches, judged by a model that notices every
//! wrong, lost or mixed-up block.
//!
//! `FORTHWITH_SIMULATION_SEEDS` sets the number of worlds, `FORTHWITH_SIMULATION_FIRST` the first.
//! 10,000 worlds are played by default. A long round wants an optimized build:
//! `FORTHWITH_SIMULATION_SEEDS=1000000 cargo test --release -p forthwith-engine --test it simulation`.
//! A world that fails is told again as short as it still fails.

mod dice;
mod fairness;
mod form;
mod judge;
mod play;
mod story;
mod watch;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use play::{Tally, play};
use story::Story;

const SEEDS: u64 = 10_000;

#[test]
fn every_world_ends_well() {
    let seeds = setting("FORTHWITH_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let totals = Mutex::new(Tally::default());
    let outcome = for_each_seed(seeds, |seed| {
        let tally = play(&Story::of(seed));
        totals.lock().unwrap().add(&tally);
    });
    if let Err((seed, panic)) = outcome {
        let story = shortened(Story::of(seed), fails);
        eprintln!("{:?} {:?}", story.model, story.shape);
        story.deeds.iter().for_each(|deed| eprintln!("{deed:?}"));
        resume_unwind(panic);
    }
    let totals = totals.into_inner().unwrap();
    eprintln!("{seeds} worlds: {totals:?}");
    if seeds >= 400 {
        assert!(totals.finished > 0 && totals.cancelled > 0 && totals.failed > 0);
        assert!(totals.preemptions > 0 && totals.displacements > 0 && totals.refused > 0);
        assert!(totals.cached_tokens > 0 && totals.evictions > 0 && totals.expired > 0);
        assert!(totals.timed_out > 0 && totals.too_slow > 0 && totals.copied_blocks > 0);
    }
}

#[test]
fn tenants_never_drift_apart() {
    let seeds = setting("FORTHWITH_SIMULATION_SEEDS").unwrap_or(SEEDS) / 10;
    let compared = AtomicU64::new(0);
    let outcome = for_each_seed(seeds.max(1), |seed| {
        compared.fetch_add(fairness::play(seed), Ordering::Relaxed);
    });
    if let Err((_, panic)) = outcome {
        resume_unwind(panic);
    }
    let compared = compared.into_inner();
    assert!(compared >= seeds, "{compared} moments of {seeds} worlds");
}

/// Plays worlds on all cores until one fails; tells which and how.
fn for_each_seed(seeds: u64, play: impl Fn(u64) + Sync) -> Result<(), (u64, Box<dyn Any + Send>)> {
    let first = setting("FORTHWITH_SIMULATION_FIRST").unwrap_or(0);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(None);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds || failed.lock().unwrap().is_some() {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| play(seed))) {
                eprintln!("FORTHWITH_SIMULATION_FIRST={seed} FORTHWITH_SIMULATION_SEEDS=1");
                failed.lock().unwrap().get_or_insert((seed, panic));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap().map_or(Ok(()), Err)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no command line of its own"
)]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn fails(story: &Story) -> bool {
    catch_unwind(AssertUnwindSafe(|| play(story))).is_err()
}

/// Leaves out stretches of deeds, long ones first, as long as the story still fails.
fn shortened(mut story: Story, fails: impl Fn(&Story) -> bool) -> Story {
    // Every attempt that fails would print its panic.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let mut stretch = story.deeds.len().div_ceil(2);
    while stretch > 0 {
        let mut start = 0;
        while start < story.deeds.len() {
            let end = story.deeds.len().min(start + stretch);
            let mut shorter = story.clone();
            shorter.deeds.drain(start..end);
            if fails(&shorter) {
                story = shorter;
            } else {
                start += stretch;
            }
        }
        stretch /= 2;
    }
    set_hook(hook);
    story
}

#[test]
fn a_failing_story_is_told_as_short_as_it_still_fails() {
    let is_arrival = |deed: &story::Deed| matches!(deed, story::Deed::Arrive(_));
    let is_cancel = |deed: &story::Deed| matches!(deed, story::Deed::Cancel(_));
    let story = (0..1000)
        .map(Story::of)
        .find(|s| s.deeds.iter().any(is_cancel))
        .unwrap();
    let fails = |story: &Story| {
        let arrivals = story.deeds.iter().filter(|deed| is_arrival(deed)).count();
        arrivals >= 2 && story.deeds.iter().any(is_cancel)
    };
    assert_eq!(shortened(story, fails).deeds.len(), 3);
}
