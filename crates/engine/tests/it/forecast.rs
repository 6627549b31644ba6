//! What the engine learns of its own speed, and what it does with it.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::request::{GenerationRequest, Scheduling};
use forthwith_core::units::TenantId;
use forthwith_engine::{
    Engine, EngineHandle, EngineSnapshot, PredictionError, SubmitError, TargetGap,
};

use crate::world::{Log, MODEL, Shape, Timed, greedy, parts, request, run_dry, tokens};

const GAP: Duration = Duration::from_millis(9);

/// An engine whose steps take a millisecond and one for each token, and which has seen some.
fn seasoned(shape: Shape) -> Engine {
    let clock = Arc::new(ManualClock::default());
    let executor = Box::new(Timed {
        inner: shape.executor(MODEL),
        clock: Arc::clone(&clock),
    });
    let mut engine = Engine::new(executor, shape.config(), clock);
    for id in 0..8_u32 {
        let prompt: Vec<u32> = (0..5 + 7 * id).map(|at| (at + id) % 50).collect();
        let log = Log::default();
        engine.submit(greedy(&prompt, 12), log.sink()).unwrap();
        engine.step();
    }
    run_dry(&mut engine);
    engine
}

fn hurried(prompt: &[u32], milliseconds: u64) -> GenerationRequest {
    let mut parts = parts(prompt, 5);
    parts.scheduling.max_time_to_first_token = Some(Duration::from_millis(milliseconds));
    request(parts)
}

/// Error and truth of the predictions between two moments.
fn since(before: PredictionError, after: PredictionError) -> (Duration, Duration) {
    (
        after.error.saturating_sub(before.error),
        after.actual.saturating_sub(before.actual),
    )
}

#[test]
fn steps_are_predicted_and_the_error_is_told() {
    let mut engine = seasoned(Shape::default());
    let before = engine.snapshot().step_prediction;
    assert!(before.count > 20);
    engine
        .submit(greedy(&[3; 70], 30), Log::default().sink())
        .unwrap();
    run_dry(&mut engine);
    let after = engine.snapshot().step_prediction;
    let (error, actual) = since(before, after);
    assert!(error * 20 < actual, "{error:?} of {actual:?}");
}

#[test]
fn the_time_of_steps_is_told_by_what_it_went_into() {
    let mut engine = seasoned(Shape::default());
    let before = engine.snapshot();
    engine
        .submit(greedy(&[3; 10], 5), Log::default().sink())
        .unwrap();
    run_dry(&mut engine);
    let after = engine.snapshot();
    // A millisecond for each step and for each token, and no time but the model's goes by.
    let counted =
        |snapshot: &EngineSnapshot| snapshot.counters.steps + snapshot.counters.step_tokens;
    let expected = Duration::from_millis(counted(&after) - counted(&before));
    let model = after
        .step_times
        .model
        .saturating_sub(before.step_times.model);
    assert_eq!(model, expected);
    assert!(model >= Duration::from_millis(15));
    assert_eq!(after.step_times.sampling, Duration::ZERO);
    assert_eq!(after.step_times.scheduling, Duration::ZERO);
}

#[test]
fn first_tokens_are_predicted_and_the_error_is_told() {
    let mut engine = seasoned(Shape::default());
    let before = engine.snapshot().first_token_prediction;
    for id in 0..4 {
        engine
            .submit(greedy(&[40 + id; 30], 4), Log::default().sink())
            .unwrap();
    }
    run_dry(&mut engine);
    let after = engine.snapshot().first_token_prediction;
    assert_eq!(after.count - before.count, 4);
    let (error, actual) = since(before, after);
    assert!(error * 5 < actual, "{error:?} of {actual:?}");
}

#[test]
fn whoever_cannot_be_answered_in_time_is_refused_with_the_numbers() {
    let mut engine = seasoned(Shape::default());
    engine
        .submit(hurried(&[1; 20], 60), Log::default().sink())
        .unwrap();
    for _ in 0..5 {
        engine
            .submit(greedy(&[2; 60], 30), Log::default().sink())
            .unwrap();
    }
    let error = engine
        .submit(hurried(&[1; 20], 60), Log::default().sink())
        .unwrap_err();
    assert!(error.to_string().contains("the request allows 60 ms"));
    let SubmitError::TooSlow { expected, limit } = error else {
        panic!("{error}");
    };
    // 340 tokens stand before it.
    assert!(expected > Duration::from_millis(340) && expected < Duration::from_millis(500));
    assert_eq!(limit, Duration::from_millis(60));
    run_dry(&mut engine);
    engine
        .submit(hurried(&[1; 20], 60), Log::default().sink())
        .unwrap();
    run_dry(&mut engine);
}

/// A request that allows little more than its own prompt takes.
fn hurried_as(prompt: &[u32], milliseconds: u64, priority: i32, tenant: u64) -> GenerationRequest {
    let mut parts = parts(prompt, 5);
    parts.scheduling = Scheduling {
        priority,
        tenant: TenantId::new(tenant),
        max_time_to_first_token: Some(Duration::from_millis(milliseconds)),
        ..Scheduling::default()
    };
    request(parts)
}

#[test]
fn only_those_who_go_first_count_as_ahead() {
    let mut engine = seasoned(Shape::default());
    for _ in 0..10 {
        engine
            .submit(greedy(&[2; 60], 2), Log::default().sink())
            .unwrap();
    }
    let mut expected = |priority, tenant| {
        let request = hurried_as(&[1; 20], 0, priority, tenant);
        match engine.submit(request, Log::default().sink()) {
            Err(SubmitError::TooSlow { expected, .. }) => expected.as_millis(),
            other => panic!("{other:?}"),
        }
    };
    // 600 tokens in steps of 16 and 17 ms, then 20 of its own.
    assert!((600..720).contains(&expected(0, 0)), "{}", expected(0, 0));
    assert!((600..720).contains(&expected(1, 9)));
    // Tenant 0 has its turn with one of its ten.
    assert!((80..110).contains(&expected(0, 9)), "{}", expected(0, 9));
    assert!((20..30).contains(&expected(-1, 0)), "{}", expected(-1, 0));
}

#[test]
fn what_the_cache_holds_takes_no_time() {
    let mut engine = seasoned(Shape::default());
    let prompt: Vec<u32> = (0..40).map(|at| at * 7 % 50).collect();
    engine
        .submit(greedy(&prompt, 1), Log::default().sink())
        .unwrap();
    run_dry(&mut engine);
    let handle = EngineHandle::spawn(engine);
    let submit = |prompt: &[u32]| {
        let log = Log::default();
        handle.submit(hurried(prompt, 20), log.sink()).map(drop)
    };
    let error = submit(&[3; 40]).unwrap_err();
    assert!(matches!(error, SubmitError::TooSlow { .. }), "{error}");
    submit(&prompt).unwrap();
    handle.shutdown(true);
    handle.join();
}

#[test]
fn nobody_is_refused_before_anything_is_known() {
    let shape = Shape::default();
    let mut engine = shape.engine(shape.executor(MODEL));
    engine
        .submit(hurried(&[1; 20], 0), Log::default().sink())
        .unwrap();
    run_dry(&mut engine);
}

#[test]
fn a_busy_engine_says_when_to_come_back() {
    let mut engine = seasoned(Shape {
        blocks: 1000,
        max_waiting_tokens: 1000,
        ..Shape::default()
    });
    engine
        .submit(greedy(&[2; 2000], 1), Log::default().sink())
        .unwrap();
    let error = engine
        .submit(greedy(&[3], 1), Log::default().sink())
        .unwrap_err();
    let SubmitError::Busy { retry_after, .. } = error else {
        panic!("{error}");
    };
    // 2,000 tokens in steps of 16 take 2,125 ms.
    let expected = Duration::from_millis(2125);
    assert!(
        retry_after.abs_diff(expected) < expected / 20,
        "{retry_after:?}"
    );
}

#[test]
fn prompts_are_cut_so_that_answers_keep_their_pace() {
    let shape = Shape {
        max_step_tokens: 64,
        blocks: 200,
        ..Shape::default()
    };
    let largest = |target_gap: TargetGap| {
        let mut engine = seasoned(Shape {
            target_gap,
            ..shape
        });
        let (answer, prompt) = (Log::default(), Log::default());
        engine.submit(greedy(&[11; 3], 60), answer.sink()).unwrap();
        engine.step();
        engine.submit(greedy(&[12; 150], 4), prompt.sink()).unwrap();
        let mut largest = 0;
        while prompt.tokens().is_empty() {
            largest = engine.step().tokens.max(largest);
        }
        run_dry(&mut engine);
        assert_eq!(
            answer.tokens(),
            MODEL.continue_greedily(&tokens(&[11; 3]), 60)
        );
        assert_eq!(
            prompt.tokens(),
            MODEL.continue_greedily(&tokens(&[12; 150]), 4)
        );
        largest
    };
    assert_eq!(largest(TargetGap::Off), 64);
    // A step of 9 ms has room for 8 tokens, one of them of the answer.
    let cut = largest(TargetGap::Fixed(GAP));
    assert!((7..=9).contains(&cut), "{cut}");
    // One answer alone takes 2 ms.
    let fivefold = largest(TargetGap::Relative { percent: 500 });
    assert!((8..=10).contains(&fivefold), "{fivefold}");
    // A target that cannot be met still leaves prompts a piece.
    assert_eq!(largest(TargetGap::Fixed(Duration::ZERO)), 1 + 4);
    assert_eq!(largest(TargetGap::Relative { percent: 100 }), 1 + 4);
}
