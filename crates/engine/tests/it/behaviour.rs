//! What a caller of [`Engine`] may rely on.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::request::{SamplingParams, StopRules};
use forthwith_core::units::{Blocks, Tokens};
use forthwith_engine::{Engine, EngineConfig, FinishReason, SubmitError};

use crate::world::{Log, MODEL, Shape, greedy, parts, request, run_dry, tokens};

fn engine(shape: Shape) -> Engine {
    shape.engine(shape.executor(MODEL))
}

#[test]
fn says_what_the_model_says() {
    let mut engine = engine(Shape::default());
    let log = Log::default();
    engine.submit(greedy(&[3, 1, 4], 20), log.sink()).unwrap();
    run_dry(&mut engine);
    assert_eq!(
        log.tokens(),
        MODEL.continue_greedily(&tokens(&[3, 1, 4]), 20)
    );
    let finished = log.finished().unwrap();
    assert_eq!(finished.reason, FinishReason::Length);
    assert_eq!(finished.prompt_tokens, Tokens::new(3));
    assert_eq!(finished.completion_tokens, Tokens::new(20));
    assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
}

#[test]
fn ends_after_an_end_token_unless_told_to_go_on() {
    let answer = MODEL.continue_greedily(&tokens(&[7]), 12);
    let third = answer[2];
    let first = answer.iter().position(|&token| token == third).unwrap();
    let ends = StopRules {
        end_tokens: vec![third],
        ..StopRules::default()
    };
    let goes_on = StopRules {
        ignore_end: true,
        ..ends.clone()
    };
    let stops = StopRules {
        end_tokens: Vec::new(),
        stop_token_ids: vec![third],
        ignore_end: true,
    };
    for (stop, length) in [(ends, first + 1), (goes_on, 12), (stops, first + 1)] {
        let mut engine = engine(Shape::default());
        let log = Log::default();
        let mut parts = parts(&[7], 12);
        parts.stop = stop;
        engine.submit(request(parts), log.sink()).unwrap();
        run_dry(&mut engine);
        assert_eq!(log.tokens(), answer[..length]);
        let reason = if length == 12 {
            FinishReason::Length
        } else {
            FinishReason::End(third)
        };
        assert_eq!(log.reason(), Some(reason));
    }
}

#[test]
fn a_long_prompt_does_not_hold_up_answers() {
    let mut engine = engine(Shape::default());
    let quick = Log::default();
    engine.submit(greedy(&[1, 2], 30), quick.sink()).unwrap();
    engine.step();
    let long: Vec<u32> = (0..150).map(|id| id % 50).collect();
    let slow = Log::default();
    engine.submit(greedy(&long, 2), slow.sink()).unwrap();
    let mut steps = 0;
    while slow.tokens().is_empty() {
        let before = quick.tokens().len();
        let report = engine.step();
        assert_eq!(report.tokens, 16.min(report.tokens));
        assert_eq!(quick.tokens().len(), before + 1, "one token in each step");
        steps += 1;
    }
    assert_eq!(steps, 10, "15 of 16 tokens of each step go to the prompt");
}

#[test]
fn answers_do_not_hold_up_a_prompt() {
    let shape = Shape {
        max_step_tokens: 4,
        max_running: 100,
        blocks: 1000,
        ..Shape::default()
    };
    let mut engine = engine(shape);
    let others: Vec<Log> = (0..3)
        .map(|id| {
            let log = Log::default();
            engine.submit(greedy(&[id], 500), log.sink()).unwrap();
            log
        })
        .collect();
    let log = Log::default();
    engine.submit(greedy(&[9; 20], 1), log.sink()).unwrap();
    for _ in 0..25 {
        engine.step();
    }
    assert_eq!(log.tokens().len(), 1, "a token of each step is left for it");
    assert!(others.iter().all(|other| other.tokens().len() >= 24));
}

#[test]
fn a_full_cache_sends_the_last_away_and_its_answer_is_the_same() {
    let shape = Shape {
        blocks: 13,
        block_size: 8,
        max_step_tokens: 64,
        ..Shape::default()
    };
    let mut engine = engine(shape);
    let prompts: Vec<Vec<u32>> = (0..8).map(|i| (i..i + 10).collect()).collect();
    let sampled = SamplingParams {
        seed: 5,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        ..SamplingParams::default()
    };
    let ask = |prompt: &[u32]| {
        let mut parts = parts(prompt, 30);
        parts.sampling = sampled.clone();
        request(parts)
    };
    let logs: Vec<Log> = prompts
        .iter()
        .map(|prompt| {
            let log = Log::default();
            engine.submit(ask(prompt), log.sink()).unwrap();
            log
        })
        .collect();
    run_dry(&mut engine);
    assert!(engine.snapshot().counters.preemptions > 0);
    for (prompt, log) in prompts.iter().zip(&logs) {
        let mut alone = Shape::default().engine(Shape::default().executor(MODEL));
        let expected = Log::default();
        alone.submit(ask(prompt), expected.sink()).unwrap();
        run_dry(&mut alone);
        assert_eq!(log.tokens(), expected.tokens());
        assert_eq!(log.tokens().len(), 30);
    }
    let counters = engine.snapshot().counters;
    assert_eq!(counters.prompt_tokens, 80, "repeated work is not counted");
    assert_eq!(counters.generated_tokens, 240);
    assert_eq!(counters.finished_length, 8);
}

#[test]
fn refuses_what_could_never_fit_with_the_numbers() {
    let shape = Shape {
        blocks: 5,
        ..Shape::default()
    };
    let mut engine = engine(shape);
    assert_eq!(engine.limits().context, Tokens::new(20));
    // 21 tokens, but the last one is never fed back.
    let log = Log::default();
    engine.submit(greedy(&[1; 10], 11), log.sink()).unwrap();
    run_dry(&mut engine);
    assert_eq!(log.tokens().len(), 11);
    let error = engine.submit(greedy(&[1; 10], 12), Log::default().sink());
    let error = error.unwrap_err();
    assert_eq!(
        error,
        SubmitError::TooLarge {
            prompt: Tokens::new(10),
            max_tokens: Tokens::new(12),
            needed: Blocks::new(6),
            blocks: Blocks::new(5),
            capacity: Tokens::new(20),
        }
    );
    assert!(error.to_string().contains("the whole cache has 5"));
}

#[test]
fn refuses_more_than_may_wait() {
    let shape = Shape {
        max_running: 1,
        max_waiting: 2,
        ..Shape::default()
    };
    let mut engine = engine(shape);
    engine
        .submit(greedy(&[1], 9), Log::default().sink())
        .unwrap();
    engine.step();
    engine
        .submit(greedy(&[2], 9), Log::default().sink())
        .unwrap();
    engine
        .submit(greedy(&[3], 9), Log::default().sink())
        .unwrap();
    let error = engine.submit(greedy(&[4], 9), Log::default().sink());
    assert_eq!(
        error.unwrap_err(),
        SubmitError::Busy {
            waiting: 2,
            limit: 2,
            waiting_tokens: Tokens::new(2),
            token_limit: Tokens::new(100_000),
            retry_after: Duration::from_secs(1),
        }
    );
    assert_eq!(engine.snapshot().waiting, 2);
    assert_eq!(engine.snapshot().running, 1);
}

#[test]
fn cancelling_frees_everything_at_once() {
    let shape = Shape {
        max_running: 2,
        ..Shape::default()
    };
    let mut engine = engine(shape);
    let logs: Vec<Log> = (0..3).map(|_| Log::default()).collect();
    let decoding = engine.submit(greedy(&[1], 90), logs[0].sink()).unwrap();
    let prefilling = engine.submit(greedy(&[2; 60], 90), logs[1].sink()).unwrap();
    let waiting = engine.submit(greedy(&[3], 90), logs[2].sink()).unwrap();
    engine.step();
    engine.step();
    assert_eq!(logs[0].tokens().len(), 2);
    for id in [waiting, prefilling, decoding, decoding] {
        engine.cancel(id);
    }
    assert!(engine.is_idle());
    assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
    assert_eq!(engine.snapshot().counters.cancelled, 3);
    for log in &logs {
        assert_eq!(log.reason(), Some(FinishReason::Cancelled));
    }
    let prompt_tokens = engine.snapshot().counters.prompt_tokens;
    assert_eq!(
        prompt_tokens,
        1 + 15 + 15,
        "the waiting one computed nothing"
    );
}

fn timed_engine(shape: Shape) -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let config = EngineConfig {
        max_running: shape.max_running,
        max_step_tokens: Tokens::new(shape.max_step_tokens),
        context: Tokens::new(100),
        max_waiting: 10,
        ..EngineConfig::default()
    };
    let engine = Engine::new(shape.executor(MODEL), config, Arc::clone(&clock) as _);
    (engine, clock)
}

#[test]
fn timings_come_from_the_clock() {
    let (mut engine, clock) = timed_engine(Shape::default());
    let log = Log::default();
    engine.submit(greedy(&[1; 20], 3), log.sink()).unwrap();
    for seconds in [5, 1, 2, 4] {
        clock.advance(Duration::from_secs(seconds));
        engine.step();
    }
    let timings = log.finished().unwrap().timings;
    assert_eq!(timings.queue, Duration::from_secs(5));
    assert_eq!(timings.prefill, Duration::from_secs(1));
    assert_eq!(timings.decode, Duration::from_secs(6));
    assert_eq!(timings.time_to_first_token(), Duration::from_secs(6));
}

#[test]
fn whoever_is_sent_away_has_queued_once() {
    let (mut engine, clock) = timed_engine(Shape {
        blocks: 8,
        ..Shape::default()
    });
    let log = Log::default();
    engine
        .submit(greedy(&[1; 8], 20), Log::default().sink())
        .unwrap();
    engine.submit(greedy(&[2; 8], 20), log.sink()).unwrap();
    clock.advance(Duration::from_secs(3));
    while !engine.is_idle() {
        engine.step();
        clock.advance(Duration::from_secs(1));
    }
    assert!(engine.snapshot().counters.preemptions > 0);
    assert_eq!(
        log.finished().unwrap().timings.queue,
        Duration::from_secs(3)
    );
}

#[test]
fn the_same_requests_give_the_same_steps() {
    let run = || {
        let mut engine = engine(Shape {
            blocks: 12,
            ..Shape::default()
        });
        for id in 0..6 {
            engine
                .submit(greedy(&[id; 9], 20), Log::default().sink())
                .unwrap();
        }
        let mut reports = Vec::new();
        while !engine.is_idle() {
            reports.push(engine.step());
        }
        reports
    };
    assert_eq!(run(), run());
}
