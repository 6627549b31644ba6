//! Several choices of one prompt cost one prefill and answer as if each had come alone.

use forthwith_core::request::{GenerationRequest, SamplingParams};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_engine::{Engine, FinishReason, SubmitError};

use crate::world::{Log, MODEL, Shape, parts, request, run_dry};

fn engine(shape: Shape) -> Engine {
    shape.engine(shape.executor(MODEL))
}

/// One of several choices of a prompt of this length.
fn choice(length: u32, choice: u32, max_tokens: u64) -> GenerationRequest {
    let prompt: Vec<u32> = (0..length).map(|id| id * 3 % 50).collect();
    let mut parts = parts(&prompt, max_tokens);
    parts.sampling = SamplingParams {
        choice,
        ..SamplingParams::default()
    };
    request(parts)
}

fn submit(engine: &mut Engine, choices: &[GenerationRequest]) -> Vec<Log> {
    let logs: Vec<Log> = choices.iter().map(|_| Log::default()).collect();
    let submissions = choices.iter().zip(&logs);
    let submissions = submissions.map(|(choice, log)| (choice.clone(), log.sink()));
    engine.submit_group(submissions.collect()).unwrap();
    logs
}

fn alone(request: &GenerationRequest) -> Vec<TokenId> {
    let shape = Shape {
        shares: false,
        ..Shape::default()
    };
    let mut engine = engine(shape);
    let log = Log::default();
    engine.submit(request.clone(), log.sink()).unwrap();
    run_dry(&mut engine);
    log.tokens()
}

#[test]
fn choices_cost_one_prefill_and_answer_as_if_alone() {
    for shares in [true, false] {
        for length in [1, 4, 5, 8, 9, 18] {
            let mut engine = engine(Shape {
                shares,
                ..Shape::default()
            });
            let choices: Vec<_> = (0..4).map(|id| choice(length, id, 12)).collect();
            let logs = submit(&mut engine, &choices);
            run_dry(&mut engine);
            for (choice, log) in choices.iter().zip(&logs) {
                assert_eq!(log.tokens(), alone(choice), "{length} tokens");
                assert_eq!(log.reason(), Some(FinishReason::Length));
            }
            // The others compute the prompt's last token alone.
            let counters = engine.snapshot().counters;
            assert_eq!(counters.prompt_tokens, u64::from(length + 3));
            assert_eq!(counters.cached_tokens, u64::from(3 * (length - 1)));
            let cached = logs[3].finished().unwrap().cached_tokens;
            assert_eq!(cached.get() as u64, u64::from(length - 1));
        }
    }
}

#[test]
fn choices_hold_the_prompt_once() {
    let mut engine = engine(Shape {
        max_step_tokens: 64,
        ..Shape::default()
    });
    let choices: Vec<_> = (0..4).map(|id| choice(22, id, 12)).collect();
    submit(&mut engine, &choices);
    engine.step();
    assert_eq!(engine.snapshot().kv_used, Blocks::new(6));
    assert_eq!(engine.snapshot().waiting, 3);
    engine.step();
    assert_eq!(engine.snapshot().running, 4);
    // Five full blocks in common, and one each.
    assert_eq!(engine.snapshot().kv_used, Blocks::new(5 + 4));
}

#[test]
fn when_the_first_choice_leaves_another_takes_its_place() {
    let mut engine = engine(Shape::default());
    let choices: Vec<_> = (0..3).map(|id| choice(40, id, 5)).collect();
    let logs: Vec<Log> = choices.iter().map(|_| Log::default()).collect();
    let submissions = choices.iter().zip(&logs);
    let submissions = submissions.map(|(choice, log)| (choice.clone(), log.sink()));
    let ids = engine.submit_group(submissions.collect()).unwrap();
    engine.step();
    engine.cancel(ids[0]);
    engine.step();
    engine.cancel(ids[2]);
    assert_eq!(engine.snapshot().waiting, 0);
    run_dry(&mut engine);
    assert_eq!(logs[0].reason(), Some(FinishReason::Cancelled));
    assert_eq!(logs[2].reason(), Some(FinishReason::Cancelled));
    assert_eq!(logs[1].tokens(), alone(&choices[1]));
    assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
}

#[test]
fn a_group_whose_first_choice_leaves_keeps_its_place_in_the_queue() {
    let mut engine = engine(Shape {
        max_running: 1,
        ..Shape::default()
    });
    let before = submit(&mut engine, &[choice(3, 0, 5), choice(5, 0, 5)]);
    let logs: Vec<Log> = (0..2).map(|_| Log::default()).collect();
    let group = logs.iter().map(|log| (choice(9, 0, 5), log.sink()));
    let ids = engine.submit_group(group.collect()).unwrap();
    let after = submit(&mut engine, &[choice(7, 0, 5)]);
    engine.cancel(ids[0]);
    let in_order = [&before[0], &before[1], &logs[1], &after[0]];
    while !engine.is_idle() {
        engine.step();
        let ended = in_order.map(Log::has_ended);
        assert!(
            ended.is_sorted_by(|earlier, later| earlier >= later),
            "{ended:?}"
        );
    }
}

#[test]
fn different_prompts_of_a_group_are_separate() {
    let mut engine = engine(Shape::default());
    let choices = [choice(7, 0, 5), choice(9, 0, 5), choice(9, 1, 5)];
    let logs = submit(&mut engine, &choices);
    run_dry(&mut engine);
    for (choice, log) in choices.iter().zip(&logs) {
        assert_eq!(log.tokens(), alone(choice));
    }
    assert_eq!(logs[0].finished().unwrap().cached_tokens, Tokens::ZERO);
    assert_eq!(logs[2].finished().unwrap().cached_tokens, Tokens::new(8));
}

#[test]
fn a_group_is_taken_whole_or_not_at_all() {
    let mut engine = engine(Shape {
        max_waiting: 3,
        ..Shape::default()
    });
    let choices: Vec<_> = (0..2).map(|id| choice(5, id, 5)).collect();
    submit(&mut engine, &choices);
    let log = Log::default();
    let again = choices.iter().map(|choice| (choice.clone(), log.sink()));
    let error = engine.submit_group(again.collect()).unwrap_err();
    assert!(matches!(
        error,
        SubmitError::Busy {
            waiting: 2,
            limit: 3,
            ..
        }
    ));
    assert_eq!(engine.snapshot().counters.accepted, 2);
    run_dry(&mut engine);
    assert!(log.events().is_empty());
}
