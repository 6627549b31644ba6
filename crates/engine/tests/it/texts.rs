//! Texts that are computed without an answer of tokens: vectors and scores.

use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::program::Output;
use forthwith_core::request::{GenerationRequest, Limits, TextParts};
use forthwith_core::units::{BlockId, Blocks, Bytes, TokenId, Tokens};
use forthwith_engine::{Engine, Event, FinishReason, SubmitError};
use std::sync::{Arc, Mutex};

use crate::world::{Log, MODEL, Shape, greedy, parts, request, run_dry, tokens};

const LIMITS: Limits = Limits {
    vocab: 50,
    context: Tokens::new(1000),
};

/// A small generator of numbers below `below`.
fn dice(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 20).unwrap() % below
}

fn text(state: &mut u64, length: usize) -> Vec<TokenId> {
    // Many begin alike, so that blocks are shared.
    let token = |at: usize, state: &mut u64| {
        let value = if at < 9 { at } else { dice(state, 50) };
        TokenId::new(u32::try_from(value).unwrap())
    };
    (0..length).map(|at| token(at, state)).collect()
}

/// The log-probability of a token after a text, from the model itself.
fn log_probability(before: &[TokenId], token: TokenId) -> f64 {
    let logits = MODEL.logits_after(before);
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let shifted = |logit: f32| f64::from(logit) - f64::from(max);
    let total: f64 = logits.iter().map(|&logit| shifted(logit).exp()).sum();
    shifted(logits[token.index()]) - total.ln()
}

fn scores(tokens: &[TokenId], from: usize) -> GenerationRequest {
    GenerationRequest::scores(TextParts::new(tokens.to_vec()), from, LIMITS).unwrap()
}

#[test]
fn scores_are_the_models_own_in_any_company() {
    for seed in 1..200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let shape = Shape {
            block_size: 1 + dice(&mut state, 5),
            blocks: 30 + dice(&mut state, 30),
            max_running: 1 + dice(&mut state, 6),
            max_step_tokens: 6 + dice(&mut state, 20),
            shares: dice(&mut state, 3) > 0,
            ..Shape::default()
        };
        let mut engine = shape.engine(shape.executor(MODEL));
        let mut asked = Vec::new();
        for _ in 0..12 {
            let length = 2 + dice(&mut state, 20);
            let tokens = text(&mut state, length);
            let log = Log::default();
            if dice(&mut state, 4) == 0 {
                let generation = request(forthwith_core::request::RequestParts {
                    max_tokens: Some(5),
                    ..parts(&[1, 2, 3], 5)
                });
                engine.submit(generation, log.sink()).unwrap();
            } else {
                let from = 1 + dice(&mut state, length - 1);
                engine.submit(scores(&tokens, from), log.sink()).unwrap();
                asked.push((tokens, from, log));
            }
            for _ in 0..dice(&mut state, 3) {
                engine.step();
                engine.check_invariants();
            }
        }
        run_dry(&mut engine);
        let snapshot = engine.snapshot();
        assert_eq!(snapshot.kv_used, Blocks::ZERO);
        assert_eq!(snapshot.counters.finished_texts, asked.len() as u64);
        for (tokens, from, log) in asked {
            let events = log.events();
            let [Event::Scores(got), Event::Finished(finished)] = &events[..] else {
                panic!("seed {seed}: {events:?}");
            };
            assert_eq!(finished.reason, FinishReason::Complete);
            assert_eq!(finished.completion_tokens, Tokens::ZERO);
            assert_eq!(got.len(), tokens.len() - from);
            for (index, got) in got.iter().enumerate() {
                let at = from + index;
                let want = log_probability(&tokens[..at], tokens[at]);
                // Shares are whole parts of a total, far below what a single float tells apart.
                assert!((got - want).abs() < 1e-6, "seed {seed}: {got} {want}");
            }
        }
    }
}

#[test]
fn scores_use_what_the_cache_holds_up_to_the_first_row() {
    let shape = Shape::default();
    let mut engine = shape.engine(shape.executor(MODEL));
    let prompt = tokens(&[5; 17]);
    let run = |engine: &mut Engine, from: usize| {
        let log = Log::default();
        engine.submit(scores(&prompt, from), log.sink()).unwrap();
        run_dry(engine);
        log.finished().unwrap().cached_tokens
    };
    assert_eq!(run(&mut engine, 16), Tokens::ZERO);
    // The row of token 12 tells about the one after it, so three blocks of four may be found.
    assert_eq!(run(&mut engine, 13), Tokens::new(12));
    assert_eq!(run(&mut engine, 12), Tokens::new(8));
}

/// Answers with sums over each whole text, and remembers how its steps looked.
struct Sums {
    each_token: bool,
    steps: Arc<Mutex<Vec<Vec<usize>>>>,
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn sum(tokens: &[TokenId], second_from: Option<usize>) -> f32 {
    let value = |(at, token): (usize, &TokenId)| {
        let second = second_from.is_some_and(|from| at >= from);
        (at + 1) * token.index() + usize::from(second) * 1000
    };
    tokens.iter().enumerate().map(value).sum::<usize>() as f32
}

impl Executor for Sums {
    fn vocab(&self) -> usize {
        50
    }

    fn output(&self) -> Output {
        Output::Vectors {
            width: 2,
            each_token: self.each_token,
            whole: true,
        }
    }

    fn kv_geometry(&self) -> KvGeometry {
        KvGeometry {
            block_size: Tokens::new(4),
            block_bytes: Bytes::new(1),
            blocks: Blocks::new(32),
        }
    }

    fn max_step_tokens(&self) -> Tokens {
        Tokens::new(24)
    }

    fn step(&mut self, input: &StepInput<'_>, output: &mut Vec<f32>) -> Result<(), StepError> {
        input.check(self)?;
        output.clear();
        let mut first = 0;
        let lengths = input
            .segments
            .iter()
            .map(|segment| segment.tokens)
            .collect();
        self.steps.lock().unwrap().push(lengths);
        for segment in input.segments {
            let text = &input.tokens[first..first + segment.tokens];
            first += segment.tokens;
            let all = sum(text, segment.second_from);
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            if self.each_token {
                output.extend(text.iter().flat_map(|token| [all, token.index() as f32]));
            } else {
                output.extend([all, text.len() as f32]);
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, _: BlockId, _: BlockId) {}
}

fn texts_engine(each_token: bool) -> (Engine, Arc<Mutex<Vec<Vec<usize>>>>) {
    let steps = Arc::default();
    let shape = Shape {
        max_running: 4,
        max_step_tokens: 100,
        ..Shape::default()
    };
    let executor = Sums {
        each_token,
        steps: Arc::clone(&steps),
    };
    (shape.engine(Box::new(executor)), steps)
}

fn vectors(tokens: &[TokenId], second_from: Option<usize>) -> GenerationRequest {
    GenerationRequest::vectors(TextParts::new(tokens.to_vec()), second_from, LIMITS).unwrap()
}

#[test]
fn texts_ride_whole_and_fill_steps() {
    let (mut engine, steps) = texts_engine(false);
    assert_eq!(
        engine.limits().context,
        Tokens::new(24),
        "a step holds a text"
    );
    let mut state = 77;
    let lengths = [10, 10, 10, 24, 1, 1, 1, 1, 1, 2];
    let mut asked = Vec::new();
    for (index, length) in lengths.into_iter().enumerate() {
        let tokens = text(&mut state, length);
        let second = (index % 2 == 0).then_some(length / 2);
        let log = Log::default();
        engine.submit(vectors(&tokens, second), log.sink()).unwrap();
        asked.push((tokens, second, log));
    }
    run_dry(&mut engine);
    for (tokens, second, log) in &asked {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let want = vec![sum(tokens, *second), tokens.len() as f32];
        let events = log.events();
        assert_eq!(events[0], Event::Vectors(want));
        assert_eq!(log.reason(), Some(FinishReason::Complete));
        assert_eq!(events.len(), 2);
    }
    let steps = steps.lock().unwrap();
    let want: [&[usize]; 5] = [&[10, 10], &[10], &[24], &[1, 1, 1, 1], &[1, 2]];
    assert_eq!(*steps, want, "in order, as many as fit, four at once");
    assert_eq!(engine.snapshot().counters.finished_texts, 10);
    assert_eq!(engine.snapshot().kv_cached, Blocks::ZERO, "nothing is kept");
}

#[test]
fn each_token_has_its_vector() {
    let (mut engine, _) = texts_engine(true);
    let (first, second) = (tokens(&[3, 4, 5]), tokens(&[7]));
    let logs = [&first, &second].map(|tokens| {
        let log = Log::default();
        engine.submit(vectors(tokens, None), log.sink()).unwrap();
        log
    });
    run_dry(&mut engine);
    let want = vec![26.0, 3.0, 26.0, 4.0, 26.0, 5.0];
    assert_eq!(logs[0].events()[0], Event::Vectors(want));
    assert_eq!(logs[1].events()[0], Event::Vectors(vec![7.0, 7.0]));
}

#[test]
fn texts_that_come_together_wait_with_all_their_tokens() {
    let shape = Shape {
        max_waiting_tokens: 10,
        ..Shape::default()
    };
    let mut engine = shape.engine(shape.executor(MODEL));
    let submit = |engine: &mut Engine, texts: usize| {
        let one = || -> Box<dyn forthwith_engine::EventSink> { Log::default().sink() };
        let text = tokens(&[1, 2, 3, 4, 5]);
        engine.submit_group((0..texts).map(|_| (scores(&text, 4), one())).collect())
    };
    submit(&mut engine, 1).unwrap();
    assert!(submit(&mut engine, 1).is_ok());
    let error = submit(&mut engine, 2).unwrap_err();
    assert!(matches!(error, SubmitError::Busy { .. }), "{error}");
    engine
        .submit(greedy(&[1, 2], 1), Log::default().sink())
        .unwrap();
    run_dry(&mut engine);
}
