//! Requests share the blocks of what they have in common, and nobody can tell by the answer.

use forthwith_core::units::{Blocks, Tokens};
use forthwith_engine::{Engine, Finished, ReuseStop};

use crate::world::{Log, MODEL, Shape, greedy, parts, request, run_dry, tokens};

fn engine(shape: Shape) -> Engine {
    shape.engine(shape.executor(MODEL))
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|id| id * 7 % 50).collect()
}

/// Runs one request to its end, checks the answer and tells what was reused.
fn ask(engine: &mut Engine, prompt: &[u32], salt: Option<&[u8]>) -> Finished {
    let mut parts = parts(prompt, 6);
    parts.cache_salt = salt.map(<[u8]>::to_vec);
    let log = Log::default();
    engine.submit(request(parts), log.sink()).unwrap();
    run_dry(engine);
    assert_eq!(log.tokens(), MODEL.continue_greedily(&tokens(prompt), 6));
    log.finished().unwrap()
}

#[test]
fn whole_blocks_are_found_again_and_a_token_is_left_to_compute() {
    let mut engine = engine(Shape::default());
    let first = ask(&mut engine, &prompt(12), None);
    assert_eq!(first.cached_tokens, Tokens::ZERO);
    assert_eq!(first.reuse_stop, ReuseStop::NothingCached);
    for (length, cached) in [(12, 8), (13, 12), (14, 12), (4, 0), (5, 4)] {
        let finished = ask(&mut engine, &prompt(length), None);
        assert_eq!(finished.cached_tokens, Tokens::new(cached), "{length}");
        assert_eq!(finished.reuse_stop, ReuseStop::EndOfPrompt);
    }
    let counters = engine.snapshot().counters;
    assert_eq!(counters.cached_tokens, 36);
    assert_eq!(counters.prompt_tokens, 60 - 36);
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.kv_used, Blocks::ZERO);
    assert!(snapshot.kv_cached > Blocks::ZERO);
}

#[test]
fn an_answer_is_found_by_the_next_turn() {
    let mut engine = engine(Shape::default());
    let mut text = prompt(10);
    ask(&mut engine, &text, None);
    let answer = MODEL.continue_greedily(&tokens(&text), 6);
    text.extend(answer.iter().map(|token| token.get()));
    text.extend([1, 2, 3]);
    // 15 of the 16 tokens of the first turn were computed, 12 of them are whole blocks.
    let finished = ask(&mut engine, &text, None);
    assert_eq!(finished.cached_tokens, Tokens::new(12));
    assert_eq!(finished.reuse_stop, ReuseStop::DiffersAtBlock(3));
}

#[test]
fn what_is_found_on_the_return_counts_as_found() {
    let mut engine = engine(Shape {
        max_running: 1,
        max_step_tokens: 4,
        ..Shape::default()
    });
    let logs = [5, 0].map(|priority| {
        let mut parts = parts(&prompt(12), 1);
        parts.scheduling.priority = priority;
        let log = Log::default();
        engine.submit(request(parts), log.sink()).unwrap();
        engine.step();
        log
    });
    assert_eq!(engine.snapshot().counters.displacements, 1);
    run_dry(&mut engine);
    // The first computes a block, the second finds it; then the first finds the second's next.
    for log in &logs {
        assert_eq!(log.finished().unwrap().cached_tokens, Tokens::new(4));
    }
    let counters = engine.snapshot().counters;
    assert_eq!((counters.prompt_tokens, counters.cached_tokens), (16, 8));
}

#[test]
fn salts_do_not_share_and_a_request_may_bypass() {
    let mut engine = engine(Shape::default());
    let text = prompt(20);
    ask(&mut engine, &text, Some(b"one"));
    for salt in [None, Some(&b"two"[..])] {
        let finished = ask(&mut engine, &text, salt);
        assert_eq!(finished.cached_tokens, Tokens::ZERO);
        assert_eq!(finished.reuse_stop, ReuseStop::NothingCached);
    }
    for salt in [Some(&b"one"[..]), None, Some(&b"two"[..])] {
        let finished = ask(&mut engine, &text, salt);
        assert_eq!(finished.cached_tokens, Tokens::new(16));
    }
    let mut parts = parts(&text, 3);
    parts.bypass_cache = true;
    let log = Log::default();
    engine.submit(request(parts), log.sink()).unwrap();
    run_dry(&mut engine);
    let finished = log.finished().unwrap();
    assert_eq!(finished.cached_tokens, Tokens::ZERO);
    assert_eq!(finished.reuse_stop, ReuseStop::Bypassed);
}

#[test]
fn an_engine_can_be_told_not_to_share() {
    let mut engine = engine(Shape {
        shares: false,
        ..Shape::default()
    });
    for _ in 0..2 {
        let finished = ask(&mut engine, &prompt(20), None);
        assert_eq!(finished.reuse_stop, ReuseStop::Bypassed);
        assert_eq!(finished.cached_tokens, Tokens::ZERO);
    }
    assert_eq!(engine.snapshot().kv_cached, Blocks::ZERO);
}

#[test]
fn what_a_running_request_has_computed_is_shared_at_once() {
    let mut engine = engine(Shape::default());
    let logs = [Log::default(), Log::default()];
    engine
        .submit(greedy(&prompt(20), 12), logs[0].sink())
        .unwrap();
    engine.step();
    engine.step();
    let used = engine.snapshot().kv_used;
    engine
        .submit(greedy(&prompt(20), 12), logs[1].sink())
        .unwrap();
    engine.step();
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.running, 2);
    assert!(
        snapshot.kv_used <= used + Blocks::new(2),
        "five blocks are shared"
    );
    run_dry(&mut engine);
    let expected = MODEL.continue_greedily(&tokens(&prompt(20)), 12);
    assert!(logs.iter().all(|log| log.tokens() == expected));
    assert_eq!(logs[1].finished().unwrap().cached_tokens, Tokens::new(16));
}

#[test]
fn those_who_compute_the_same_at_the_same_time_keep_one_copy() {
    let mut engine = engine(Shape {
        max_step_tokens: 64,
        ..Shape::default()
    });
    let logs = [Log::default(), Log::default(), Log::default()];
    for log in &logs {
        engine.submit(greedy(&prompt(17), 9), log.sink()).unwrap();
    }
    engine.step();
    // Four blocks in common and a last one each.
    assert_eq!(engine.snapshot().kv_used, Blocks::new(7));
    run_dry(&mut engine);
    let expected = MODEL.continue_greedily(&tokens(&prompt(17)), 9);
    assert!(logs.iter().all(|log| log.tokens() == expected));
}

#[test]
fn memory_that_is_needed_is_taken_from_the_longest_unused() {
    let mut engine = engine(Shape {
        blocks: 8,
        ..Shape::default()
    });
    let other: Vec<u32> = (0..11).map(|id| 49 - id).collect();
    ask(&mut engine, &prompt(11), None);
    ask(&mut engine, &other, None);
    assert_eq!(engine.snapshot().counters.evictions, 0);
    assert_eq!(
        ask(&mut engine, &prompt(9), None).cached_tokens,
        Tokens::new(8)
    );
    // Five blocks of something else leave three; the one used longest ago gives way first.
    ask(&mut engine, &[5; 14], None);
    assert!(engine.snapshot().counters.evictions > 0);
    let finished = ask(&mut engine, &other, None);
    assert!(
        matches!(finished.reuse_stop, ReuseStop::Evicted(_)),
        "{finished:?}"
    );
}

#[test]
fn whoever_was_sent_away_finds_what_it_had() {
    let mut engine = engine(Shape {
        blocks: 9,
        max_step_tokens: 64,
        ..Shape::default()
    });
    let logs = [Log::default(), Log::default()];
    engine.submit(greedy(&[1; 10], 20), logs[0].sink()).unwrap();
    engine.submit(greedy(&[2; 10], 20), logs[1].sink()).unwrap();
    run_dry(&mut engine);
    assert!(engine.snapshot().counters.preemptions > 0);
    assert_eq!(engine.snapshot().counters.cached_tokens, 0);
    for (id, log) in (1..).zip(&logs) {
        assert_eq!(
            log.tokens(),
            MODEL.continue_greedily(&tokens(&[id; 10]), 20)
        );
        assert_eq!(log.finished().unwrap().cached_tokens, Tokens::ZERO);
    }
}

#[test]
fn answers_stay_right_when_all_hashes_collide() {
    for hash_bits in [0, 1, 2] {
        let mut engine = engine(Shape {
            hash_bits,
            ..Shape::default()
        });
        for start in 0..12 {
            let text: Vec<u32> = (0..20).map(|id| (start % 4 + id) % 50).collect();
            let salt = [u8::try_from(start % 3).unwrap()];
            ask(&mut engine, &text, Some(&salt));
        }
        engine.check_invariants();
    }
}
