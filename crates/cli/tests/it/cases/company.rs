//! Alone and in company, with one thread and with two: the same answer, bit for bit.

use super::{repeats, smollm2, together};
use crate::server::{Server, greedy};
use serde_json::{Value, json};
use std::time::Duration;

/// Prompts of 5 to 200 tokens.
const WORDS: [(&str, usize); 16] = [
    (" boat", 5),
    (" The rain", 4),
    (" one two three", 4),
    (" red green", 8),
    ("日本の海", 4),
    (" def add(a, b):", 4),
    (" harbour", 24),
    (" Once upon a time", 8),
    (" the boat and the sea", 10),
    (" 1 2 3 4", 12),
    (" lamp", 70),
    (" a quick brown fox", 20),
    ("🦊🐙", 16),
    (" north south", 60),
    (" wind", 150),
    (" ship", 200),
];

fn questions(max_tokens: u32) -> Vec<Value> {
    let bodies = WORDS.iter().map(|(word, count)| {
        let mut body = greedy(&word.repeat(*count), max_tokens);
        body["logprobs"] = json!(3);
        body
    });
    bodies.collect()
}

/// Text and log-probabilities.
fn ask(server: &Server, body: &Value) -> Value {
    server.post("/v1/completions", body)["choices"][0].take()
}

fn crowd(server: &Server, bodies: &[Value], round: usize) -> Vec<Value> {
    let mut jobs: Vec<Box<dyn FnOnce() -> Value + Send>> = Vec::new();
    for (index, body) in bodies.iter().enumerate() {
        jobs.push(Box::new(move || {
            let delay = (index * 7919 + round * 104_729) % 400;
            std::thread::sleep(Duration::from_millis(delay as u64));
            ask(server, body)
        }));
    }
    for _ in 0..3 {
        jobs.push(Box::new(move || {
            let noise = json!({"prompt": "Noise:", "max_tokens": 40, "temperature": 1.0});
            ask(server, &noise)
        }));
    }
    let mut answers = together(jobs);
    answers.truncate(bodies.len());
    answers
}

/// The full count is 20 rounds of 48 tokens.
#[test]
fn smollm2_answers_the_same_alone_in_company_and_on_one_thread() {
    let arguments = ["--context", "512", "--threads", "2", "--max-running", "12"];
    let Some(mut two) = smollm2(&arguments) else {
        return;
    };
    let rounds = repeats(1);
    let all = rounds >= 20;
    let mut bodies = questions(if all { 48 } else { 16 });
    if !all {
        // Every other question, the longest one among them.
        bodies = bodies.into_iter().skip(1).step_by(2).collect();
    }
    let alone: Vec<Value> = bodies.iter().map(|body| ask(&two, body)).collect();
    for round in 0..rounds {
        assert_eq!(crowd(&two, &bodies, round), alone, "round {round}");
    }
    // The prompts were known by then: what was reused changed nothing either.
    assert!(two.metric("forthwith_cached_tokens_total") > 0.0);
    two.check_alive();
    drop(two);
    let Some(one) = smollm2(&["--context", "512", "--threads", "1"]) else {
        return;
    };
    assert_eq!(crowd(&one, &bodies, 0), alone, "one thread");
}
