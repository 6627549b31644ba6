//! Requests whose time is over: in the queue, while they run, and after they were sent away.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::request::GenerationRequest;
use forthwith_core::units::{Blocks, Tokens};
use forthwith_engine::{Engine, FinishReason};

use crate::world::{Log, MODEL, Shape, Timed, greedy, parts, request, run_dry, tokens};

const SECOND: Duration = Duration::from_secs(1);

fn limited(prompt: &[u32], max_tokens: u64, max_time: Duration) -> GenerationRequest {
    let mut parts = parts(prompt, max_tokens);
    parts.scheduling.max_time = Some(max_time);
    request(parts)
}

fn engine(shape: Shape) -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let engine = Engine::new(
        shape.executor(MODEL),
        shape.config(),
        Arc::clone(&clock) as _,
    );
    (engine, clock)
}

#[test]
fn whoever_runs_ends_after_the_step_in_which_its_time_ran_out() {
    let shape = Shape::default();
    let clock = Arc::new(ManualClock::default());
    let executor = Box::new(Timed {
        inner: shape.executor(MODEL),
        clock: Arc::clone(&clock),
    });
    let mut engine = Engine::new(executor, shape.config(), clock);
    let (log, other) = (Log::default(), Log::default());
    // The first step takes 4 ms, the others 3 ms.
    let limit = Duration::from_millis(10);
    engine
        .submit(limited(&[1, 2], 50, limit), log.sink())
        .unwrap();
    engine.submit(greedy(&[3], 50), other.sink()).unwrap();
    engine.step();
    engine.step();
    assert!(!log.has_ended());
    engine.step();
    let finished = log.finished().unwrap();
    assert_eq!(finished.reason, FinishReason::TimeLimit);
    assert_eq!(finished.completion_tokens, Tokens::new(3));
    assert_eq!(log.tokens(), MODEL.continue_greedily(&tokens(&[1, 2]), 3));
    assert_eq!(engine.snapshot().counters.timed_out, 1);
    run_dry(&mut engine);
    assert_eq!(other.reason(), Some(FinishReason::Length));
    assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
}

#[test]
fn a_long_prompt_does_not_outlive_its_time() {
    let (mut engine, clock) = engine(Shape::default());
    let logs: [Log; 2] = std::array::from_fn(|_| Log::default());
    let group = logs
        .iter()
        .map(|log| (limited(&[1; 60], 5, SECOND), log.sink()));
    engine.submit_group(group.collect()).unwrap();
    engine.step();
    clock.advance(SECOND);
    let report = engine.step();
    assert_eq!(
        (report.expired, report.tokens),
        (2, 0),
        "nothing is computed for them"
    );
    assert!(engine.is_idle());
    for log in &logs {
        let finished = log.finished().unwrap();
        assert_eq!(finished.reason, FinishReason::TimeLimit);
        assert_eq!(finished.completion_tokens, Tokens::ZERO);
    }
    assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
}

#[test]
fn whoever_has_not_begun_when_all_its_time_is_over_has_waited_too_long() {
    let (mut engine, clock) = engine(Shape {
        max_running: 1,
        ..Shape::default()
    });
    let log = Log::default();
    engine
        .submit(greedy(&[1], 9), Log::default().sink())
        .unwrap();
    engine.submit(limited(&[2], 9, SECOND), log.sink()).unwrap();
    engine.step();
    clock.advance(SECOND);
    assert_eq!(engine.step().expired, 1);
    assert_eq!(log.reason(), Some(FinishReason::QueueTimeout));
    assert_eq!(engine.snapshot().counters.expired, 1);
    run_dry(&mut engine);
}

#[test]
fn whoever_was_sent_away_keeps_its_answer_when_its_time_is_over() {
    let (mut engine, clock) = engine(Shape {
        blocks: 9,
        max_step_tokens: 64,
        ..Shape::default()
    });
    let log = Log::default();
    engine
        .submit(greedy(&[1; 10], 20), Log::default().sink())
        .unwrap();
    engine
        .submit(limited(&[2; 10], 20, SECOND), log.sink())
        .unwrap();
    while engine.step().preempted == 0 {}
    let kept = log.tokens();
    assert!(!kept.is_empty());
    clock.advance(SECOND);
    assert_eq!(engine.step().expired, 1);
    assert_eq!(log.reason(), Some(FinishReason::TimeLimit));
    assert_eq!(log.tokens(), kept);
    run_dry(&mut engine);
}
