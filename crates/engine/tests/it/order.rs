//! Who goes first: priorities, tenants by served tokens, then first come first served; and how long
//! and how many may wait.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::request::{GenerationRequest, Scheduling};
use forthwith_core::units::{TenantId, Tokens};
use forthwith_engine::{Engine, FinishReason, SubmitError};

use crate::world::{Log, MODEL, Shape, greedy, parts, request, run_dry, tokens};

fn engine(shape: Shape) -> Engine {
    shape.engine(shape.executor(MODEL))
}

fn ranked(prompt: &[u32], max_tokens: u64, priority: i32, tenant: u64) -> GenerationRequest {
    let mut parts = parts(prompt, max_tokens);
    parts.scheduling = Scheduling {
        priority,
        tenant: TenantId::new(tenant),
        ..Scheduling::default()
    };
    request(parts)
}

fn patient(prompt: &[u32], seconds: u64) -> GenerationRequest {
    let mut parts = parts(prompt, 5);
    parts.scheduling.max_queue_time = Some(Duration::from_secs(seconds));
    request(parts)
}

/// Submits all and tells in which order they finish in an engine that runs one at a time.
fn order_of(requests: &[GenerationRequest]) -> Vec<usize> {
    let mut engine = engine(Shape {
        max_running: 1,
        ..Shape::default()
    });
    let logs: Vec<Log> = requests.iter().map(|_| Log::default()).collect();
    for (request, log) in requests.iter().zip(&logs) {
        engine.submit(request.clone(), log.sink()).unwrap();
    }
    let mut order = Vec::new();
    while !engine.is_idle() {
        engine.step();
        let ended = (0..logs.len()).filter(|&index| logs[index].has_ended());
        let fresh: Vec<usize> = ended.filter(|index| !order.contains(index)).collect();
        order.extend(fresh);
    }
    order
}

#[test]
fn lower_priorities_go_first_and_equals_in_the_order_they_came() {
    let requests = [(1, 0), (2, 1), (3, 0), (4, -1), (5, 1)];
    let requests = requests.map(|(id, priority)| ranked(&[id], 3, priority, 0));
    assert_eq!(order_of(&requests), [3, 0, 2, 1, 4]);
}

#[test]
fn tenants_take_turns_by_tokens_however_many_requests_they_send() {
    let requests = [7, 7, 7, 7, 8, 8].map(|tenant| ranked(&[1, 2], 3, 0, tenant));
    assert_eq!(order_of(&requests), [0, 4, 1, 5, 2, 3]);
    // One long request costs as much as several short ones.
    let sizes = [(7, 9), (7, 9), (8, 3), (8, 3), (8, 3)];
    let requests = sizes.map(|(tenant, size)| ranked(&[1], size, 0, tenant));
    assert_eq!(order_of(&requests), [0, 2, 3, 4, 1]);
}

#[test]
fn a_weight_is_a_share() {
    // Tenant 1 has a weight of 3.
    let requests = [1, 1, 1, 1, 2, 2].map(|tenant| ranked(&[tenant, 9], 10, 0, tenant.into()));
    assert_eq!(order_of(&requests), [0, 4, 1, 2, 3, 5]);
}

#[test]
fn two_tenants_that_wait_never_drift_apart() {
    let mut engine = engine(Shape {
        max_running: 4,
        max_waiting: 200,
        blocks: 20,
        ..Shape::default()
    });
    let submit = |engine: &mut Engine, tenant: u64, id: u32| {
        let log = Log::default();
        let size = u64::from(4 + id % 9);
        let request = ranked(&[id % 50; 10], size, 0, tenant);
        engine.submit(request, log.sink()).unwrap();
        log
    };
    let many: Vec<Log> = (0..80).map(|id| submit(&mut engine, 5, id)).collect();
    for _ in 0..60 {
        engine.step();
    }
    let served = |logs: &[Log]| -> usize {
        let begun = logs.iter().map(|log| log.tokens().len()).filter(|&n| n > 0);
        begun.map(|tokens| 10 + tokens).sum()
    };
    let waits = |logs: &[Log]| logs.iter().any(|log| log.tokens().is_empty());
    let head_start = served(&many);
    let few: Vec<Log> = (0..30).map(|id| submit(&mut engine, 6, id)).collect();
    let mut compared = 0;
    while waits(&many) && waits(&few) {
        engine.step();
        let (many, few) = (served(&many) - head_start, served(&few));
        // Four run at once, each with at most 10 tokens of prompt and 12 of answer, and a prompt is
        // charged when it begins.
        assert!(many.abs_diff(few) <= 2 * 4 * 22, "{many} and {few}");
        compared += 1;
    }
    assert!(compared > 100);
    run_dry(&mut engine);
}

#[test]
fn a_full_cache_sends_the_last_priority_away_first() {
    let mut engine = engine(Shape {
        blocks: 9,
        max_step_tokens: 64,
        ..Shape::default()
    });
    let logs = [Log::default(), Log::default()];
    engine
        .submit(ranked(&[1; 10], 20, 5, 0), logs[0].sink())
        .unwrap();
    engine.step();
    engine
        .submit(ranked(&[2; 10], 20, 0, 0), logs[1].sink())
        .unwrap();
    while !logs[1].has_ended() {
        engine.step();
        assert!(!logs[0].has_ended(), "it came first, but yields");
    }
    assert!(engine.snapshot().counters.preemptions > 0);
    run_dry(&mut engine);
    for (id, log) in (1..).zip(&logs) {
        assert_eq!(
            log.tokens(),
            MODEL.continue_greedily(&tokens(&[id; 10]), 20)
        );
    }
}

#[test]
fn a_better_priority_takes_the_place_of_the_last_of_a_worse_one() {
    let mut engine = engine(Shape {
        max_running: 2,
        ..Shape::default()
    });
    let logs: [Log; 4] = std::array::from_fn(|_| Log::default());
    let submit = |engine: &mut Engine, index: usize, priority: i32| {
        let prompt = [u32::try_from(index).unwrap(); 6];
        let request = ranked(&prompt, 12, priority, 0);
        engine.submit(request, logs[index].sink()).unwrap();
    };
    submit(&mut engine, 0, 5);
    submit(&mut engine, 1, 5);
    engine.step();
    submit(&mut engine, 2, 5);
    assert_eq!(engine.step().displaced, 0, "equals wait");
    submit(&mut engine, 3, 4);
    let report = engine.step();
    assert_eq!((report.displaced, report.admitted), (1, 1));
    assert_eq!(logs[3].tokens().len(), 1, "it begins at once");
    assert_eq!(
        [0, 1].map(|index: usize| logs[index].tokens().len()),
        [3, 2]
    );
    let mut order = Vec::new();
    while !engine.is_idle() {
        assert_eq!(engine.step().displaced, 0, "nobody takes the place back");
        let ended = (0..4).filter(|&index| logs[index].has_ended());
        let fresh: Vec<usize> = ended.filter(|index| !order.contains(index)).collect();
        order.extend(fresh);
    }
    assert_eq!(
        order,
        [0, 3, 1, 2],
        "the displaced one is the first to come back"
    );
    assert_eq!(engine.snapshot().counters.displacements, 1);
    for (id, log) in (0..).zip(&logs) {
        let whole = MODEL.continue_greedily(&tokens(&[id; 6]), 12);
        assert_eq!(log.tokens(), whole);
    }
}

#[test]
fn nobody_makes_way_for_whoever_cannot_begin() {
    let mut engine = engine(Shape {
        max_running: 2,
        ..Shape::default()
    });
    let sink = || Log::default().sink();
    engine.submit(ranked(&[1], 40, 5, 0), sink()).unwrap();
    engine.step();
    engine.submit(ranked(&[2; 64], 4, 0, 0), sink()).unwrap();
    engine.step();
    let log = Log::default();
    engine.submit(ranked(&[3], 4, 0, 0), log.sink()).unwrap();
    for _ in 0..3 {
        assert_eq!(engine.step().displaced, 0, "a prompt fills the steps");
    }
    assert_eq!(engine.step().displaced, 1);
    assert_eq!(log.tokens().len(), 1);
    run_dry(&mut engine);
}

#[test]
fn a_prompt_of_a_better_priority_goes_before_one_that_has_begun() {
    let mut engine = engine(Shape::default());
    let logs = [Log::default(), Log::default()];
    engine
        .submit(ranked(&[1; 60], 4, 5, 0), logs[0].sink())
        .unwrap();
    engine.step();
    engine
        .submit(ranked(&[2; 10], 4, 0, 0), logs[1].sink())
        .unwrap();
    engine.step();
    assert_eq!(logs[1].tokens().len(), 1);
    assert!(logs[0].tokens().is_empty());
    run_dry(&mut engine);
}

#[test]
fn whoever_has_waited_too_long_is_told() {
    let clock = Arc::new(ManualClock::default());
    let shape = Shape {
        max_running: 1,
        ..Shape::default()
    };
    let mut engine = Engine::new(
        shape.executor(MODEL),
        shape.config(),
        Arc::clone(&clock) as _,
    );
    let logs: [Log; 4] = std::array::from_fn(|_| Log::default());
    engine.submit(patient(&[1], 1), logs[0].sink()).unwrap();
    engine.submit(patient(&[2], 1), logs[1].sink()).unwrap();
    engine.submit(patient(&[3], 9), logs[2].sink()).unwrap();
    engine.submit(greedy(&[4], 5), logs[3].sink()).unwrap();
    engine.step();
    clock.advance(Duration::from_millis(999));
    assert_eq!(engine.step().expired, 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(engine.step().expired, 1);
    run_dry(&mut engine);
    let reasons = logs.map(|log| log.reason().unwrap());
    let length = FinishReason::Length;
    assert_eq!(
        reasons,
        [length, FinishReason::QueueTimeout, length, length]
    );
    assert_eq!(engine.snapshot().counters.expired, 1);
}

#[test]
fn a_group_that_has_waited_too_long_ends_whole() {
    let clock = Arc::new(ManualClock::default());
    let shape = Shape::default();
    let mut engine = Engine::new(
        shape.executor(MODEL),
        shape.config(),
        Arc::clone(&clock) as _,
    );
    let logs: [Log; 3] = std::array::from_fn(|_| Log::default());
    let group = logs.iter().map(|log| (patient(&[1], 1), log.sink()));
    engine.submit_group(group.collect()).unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(engine.step().expired, 3);
    assert!(engine.is_idle());
    for log in &logs {
        assert_eq!(log.reason(), Some(FinishReason::QueueTimeout));
    }
}

#[test]
fn the_queue_is_bounded_by_tokens_too() {
    let mut engine = engine(Shape {
        max_waiting_tokens: 25,
        ..Shape::default()
    });
    let sink = || Log::default().sink();
    engine.submit(greedy(&[1; 30], 1), sink()).unwrap();
    let error = engine.submit(greedy(&[2], 1), sink()).unwrap_err();
    assert!(error.to_string().contains("30 prompt tokens wait already"));
    let SubmitError::Busy {
        waiting_tokens,
        token_limit,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (waiting_tokens, token_limit),
        (Tokens::new(30), Tokens::new(25))
    );
    engine.step();
    engine.submit(greedy(&[2; 25], 1), sink()).unwrap();
    run_dry(&mut engine);
}
