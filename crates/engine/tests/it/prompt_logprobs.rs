//! What a request learns of its prompt's tokens, in any company, and that its answer stays the same.

use std::sync::Arc;

use forthwith_core::request::{RequestParts, SamplingParams};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_engine::{Engine, Event, FinishReason, PromptLogprob, ReuseStop};

use crate::world::{Log, MODEL, Shape, parts, request, run_dry, tokens};

fn engine(shape: Shape) -> Engine {
    shape.engine(shape.executor(MODEL))
}

fn asking(prompt: &[u32], max_tokens: u64, count: u32) -> RequestParts {
    RequestParts {
        prompt_logprobs: Some(count),
        ..parts(prompt, max_tokens)
    }
}

fn submit(engine: &mut Engine, parts: RequestParts) -> Log {
    let log = Log::default();
    engine.submit(request(parts), log.sink()).unwrap();
    log
}

fn run(engine: &mut Engine, parts: RequestParts) -> Log {
    let log = submit(engine, parts);
    run_dry(engine);
    log
}

/// The rows, which came once and before all else.
fn rows(log: &Log) -> Arc<Vec<PromptLogprob>> {
    let events = log.events();
    let is_prompt = |event: &&Event| matches!(event, Event::Prompt(_));
    assert_eq!(events.iter().filter(is_prompt).count(), 1, "{events:?}");
    match &events[0] {
        Event::Prompt(rows) => Arc::clone(rows),
        other => panic!("{other:?}"),
    }
}

/// What the model itself says of a token: its log-probability and its rank.
fn by_definition(before: &[TokenId], token: TokenId) -> (f64, u32) {
    let logits = MODEL.logits_after(before);
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let shifted = |logit: f32| f64::from(logit) - f64::from(max);
    let total: f64 = logits.iter().map(|&logit| shifted(logit).exp()).sum();
    let own = logits[token.index()];
    let is_before = |&(id, logit): &(usize, &f32)| {
        *logit > own || (logit.to_bits() == own.to_bits() && id < token.index())
    };
    let rank = 1 + logits.iter().enumerate().filter(is_before).count();
    (shifted(own) - total.ln(), u32::try_from(rank).unwrap())
}

const PROMPT: [u32; 11] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];

#[test]
fn rows_are_the_models_own() {
    let all = run(&mut engine(Shape::default()), asking(&PROMPT, 3, 20));
    let (rows, prompt) = (rows(&all), tokens(&PROMPT));
    assert_eq!(rows.len(), prompt.len() - 1);
    for (at, row) in (1..).zip(rows.iter()) {
        let (logprob, rank) = by_definition(&prompt[..at], prompt[at]);
        assert!((row.likelihood.chosen - logprob).abs() < 1e-6);
        assert_eq!(row.rank, rank);
        let top = &row.likelihood.top;
        assert_eq!(top.len(), 20);
        assert!(top.is_sorted_by(|a, b| a.1 >= b.1));
        for (place, &(id, logprob)) in (1..).zip(top) {
            let (expected, rank) = by_definition(&prompt[..at], id);
            assert!((logprob - expected).abs() < 1e-6 && rank == place);
        }
        if let Some(own) = top.iter().find(|(id, _)| *id == prompt[at]) {
            assert_eq!(own.1.to_bits(), row.likelihood.chosen.to_bits());
        }
    }
}

#[test]
fn rows_are_the_same_in_pieces_and_the_answer_as_without_them() {
    let plain = run(&mut engine(Shape::default()), parts(&PROMPT, 6));
    let whole = run(&mut engine(Shape::default()), asking(&PROMPT, 6, 5));
    assert_eq!(whole.tokens(), plain.tokens());
    for (max_step_tokens, max_running) in [(1, 1), (2, 8), (3, 2), (16, 1), (16, 3), (16, 8)] {
        let mut engine = engine(Shape {
            max_running,
            max_step_tokens,
            ..Shape::default()
        });
        let log = run(&mut engine, asking(&PROMPT, 6, 5));
        let (events, expected) = (log.events(), whole.events());
        assert_eq!(
            events[..7],
            expected[..7],
            "{max_step_tokens} {max_running}"
        );
    }
}

#[test]
fn no_step_holds_more_rows_than_sequences_may_run() {
    let mut engine = engine(Shape {
        max_running: 4,
        ..Shape::default()
    });
    let log = submit(&mut engine, asking(&PROMPT, 1, 0));
    let mut steps = Vec::new();
    while !engine.is_idle() {
        steps.push(engine.step().tokens);
    }
    assert_eq!(steps, [4, 4, 3]);
    assert_eq!(rows(&log).len(), 10);
}

#[test]
fn what_the_cache_holds_has_no_rows() {
    let mut engine = engine(Shape::default());
    let first = run(&mut engine, parts(&PROMPT, 3));
    let second = run(&mut engine, asking(&PROMPT, 3, 2));
    let finished = second.finished().unwrap();
    assert_eq!(finished.cached_tokens, Tokens::ZERO);
    assert_eq!(finished.reuse_stop, ReuseStop::RowsWanted);
    assert_eq!(second.tokens(), first.tokens());
    assert_eq!(rows(&second).len(), 10);
    // What it computed is known to others.
    let other = [&PROMPT[..], &[7, 7, 7, 7]].concat();
    run(&mut engine, asking(&other, 1, 0));
    let third = run(&mut engine, parts(&[&other[..], &[8]].concat(), 1));
    assert_eq!(third.finished().unwrap().cached_tokens, Tokens::new(12));
}

#[test]
fn whoever_is_sent_away_tells_once_and_everything() {
    let alone = |prompt: &[u32]| run(&mut engine(Shape::default()), asking(prompt, 12, 3)).events();
    for shares in [true, false] {
        let mut engine = engine(Shape {
            blocks: 9,
            max_step_tokens: 7,
            max_running: 5,
            shares,
            ..Shape::default()
        });
        let prompts: Vec<Vec<u32>> = (0..5)
            .map(|id| PROMPT.iter().map(|token| token + id).collect())
            .collect();
        let asked: Vec<Log> = prompts
            .iter()
            .map(|prompt| submit(&mut engine, asking(prompt, 12, 3)))
            .collect();
        run_dry(&mut engine);
        assert!(engine.snapshot().counters.preemptions > 0);
        for (prompt, log) in prompts.iter().zip(&asked) {
            let (events, expected) = (log.events(), alone(prompt));
            assert_eq!(events[..13], expected[..13]);
        }
        assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
    }
}

#[test]
fn choices_of_a_prompt_learn_of_it_from_one_prefill() {
    let mut engine = engine(Shape::default());
    let logs: Vec<Log> = (0..3).map(|_| Log::default()).collect();
    let choices = (0..).zip(&logs).map(|(choice, log)| {
        let mut parts = asking(&PROMPT, 4, 2);
        parts.sampling = SamplingParams {
            choice,
            ..SamplingParams::default()
        };
        (request(parts), log.sink())
    });
    engine.submit_group(choices.collect()).unwrap();
    run_dry(&mut engine);
    // The prompt once, and its last token for each of the others.
    assert_eq!(engine.snapshot().counters.prompt_tokens, 11 + 2);
    for log in &logs {
        assert_eq!(rows(log), rows(&logs[0]));
        assert_eq!(log.tokens().len(), 4);
    }
}

#[test]
fn an_answer_may_be_empty() {
    for (prompt, choices) in [(&PROMPT[..], 1), (&PROMPT, 3), (&[7], 1), (&[7, 8], 2)] {
        for max_running in [1, 2, 8] {
            let mut engine = engine(Shape {
                max_running,
                ..Shape::default()
            });
            let logs: Vec<Log> = (0..choices).map(|_| Log::default()).collect();
            let group = logs.iter();
            let group = group.map(|log| (request(asking(prompt, 0, 1)), log.sink()));
            engine.submit_group(group.collect()).unwrap();
            run_dry(&mut engine);
            for log in &logs {
                assert_eq!(rows(log).len(), prompt.len() - 1);
                assert_eq!(log.events().len(), 2);
                assert_eq!(log.reason(), Some(FinishReason::Length));
                assert_eq!(log.finished().unwrap().completion_tokens, Tokens::ZERO);
            }
            assert_eq!(engine.snapshot().counters.generated_tokens, 0);
        }
    }
}
