//! Seeded worlds of arrivals, cancels, faults and tiny caches, judged by a model that notices every
//! wrong, lost or mixed-up block.
//!
//! `FORTHWITH_SIMULATION_SEEDS` sets the number of worlds, `FORTHWITH_SIMULATION_FIRST` the first.
//! 400 worlds are played by default; the full round is 10,000 and wants an optimized build:
//! `FORTHWITH_SIMULATION_SEEDS=10000 cargo test --release -p forthwith-engine simulation`.
//! A world that fails is told again as short as it still fails.

mod dice;
mod fairness;
mod play;
mod story;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};

use play::{Tally, play};
use story::Story;

const SEEDS: u64 = 400;

#[test]
fn every_world_ends_well() {
    let first = setting("FORTHWITH_SIMULATION_FIRST").unwrap_or(0);
    let seeds = setting("FORTHWITH_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let mut totals = Tally::default();
    for seed in first..first + seeds {
        let story = Story::of(seed);
        match catch_unwind(AssertUnwindSafe(|| play(&story))) {
            Ok(tally) => totals.add(&tally),
            Err(panic) => {
                eprintln!("FORTHWITH_SIMULATION_FIRST={seed} FORTHWITH_SIMULATION_SEEDS=1");
                let story = shortened(story, fails);
                eprintln!("{:?} {:?}", story.model, story.shape);
                story.deeds.iter().for_each(|deed| eprintln!("{deed:?}"));
                resume_unwind(panic);
            }
        }
    }
    eprintln!("{seeds} worlds: {totals:?}");
    if seeds >= SEEDS {
        assert!(totals.finished > 0 && totals.cancelled > 0 && totals.failed > 0);
        assert!(totals.preemptions > 0 && totals.displacements > 0 && totals.refused > 0);
        assert!(totals.cached_tokens > 0 && totals.evictions > 0 && totals.expired > 0);
        assert!(totals.timed_out > 0);
        assert!(totals.too_slow > 0 && totals.copied_blocks > 0);
    }
}

#[test]
fn tenants_never_drift_apart() {
    let seeds = setting("FORTHWITH_SIMULATION_SEEDS").unwrap_or(SEEDS) / 10;
    let first = setting("FORTHWITH_SIMULATION_FIRST").unwrap_or(0);
    let mut compared = 0;
    for seed in first..first + seeds.max(1) {
        match catch_unwind(|| fairness::play(seed)) {
            Ok(moments) => compared += moments,
            Err(panic) => {
                eprintln!("FORTHWITH_SIMULATION_FIRST={seed} FORTHWITH_SIMULATION_SEEDS=1");
                resume_unwind(panic);
            }
        }
    }
    assert!(compared >= seeds, "{compared} moments of {seeds} worlds");
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
