//! A cache that is too small for everyone: whoever is sent away comes back whole.

use super::{repeats, smollm2, together};
use crate::cases::tiny_model;
use crate::server::{Server, greedy};
use serde_json::{Value, json};

fn long(prompt: &str, max_tokens: u32) -> Value {
    let mut body = greedy(prompt, max_tokens);
    body["ignore_eos"] = json!(true);
    body
}

/// Eight prompts at once, every other one streamed, against their answers alone.
fn crowd(server: &Server, bodies: &[Value], alone: &[String]) {
    let jobs: Vec<_> = bodies
        .iter()
        .enumerate()
        .map(|(index, body)| {
            move || {
                if index % 2 == 0 {
                    return server.stream(body);
                }
                let answer = server.post("/v1/completions", body);
                assert_eq!(answer["usage"]["completion_tokens"], body["max_tokens"]);
                assert_eq!(answer["choices"][0]["finish_reason"], "length");
                answer["choices"][0]["text"].as_str().unwrap().to_owned()
            }
        })
        .collect();
    assert_eq!(together(jobs), alone);
}

fn check(mut small: Server, ample: &Server, bodies: &[Value], rounds: usize) {
    let alone = together(bodies.iter().map(|body| || ample.text(body)).collect());
    assert_eq!(ample.metric("forthwith_preemptions_total"), 0.0);
    for _ in 0..rounds {
        crowd(&small, bodies, &alone);
    }
    assert!(small.metric("forthwith_preemptions_total") > 0.0);
    assert_eq!(small.metric("forthwith_kv_blocks_used"), 0.0);
    let error = small.refused("/v1/completions", &long("a boat", 5000).to_string());
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    small.check_alive();
}

/// The full count is 10 rounds of 120 tokens.
#[test]
fn smollm2_brings_preempted_requests_back_whole() {
    // 13 blocks of 32 tokens.
    let Some(small) = smollm2(&["--kv-memory", "9400KiB", "--max-running", "8"]) else {
        return;
    };
    assert_eq!(small.metric("forthwith_kv_blocks_total"), 13.0);
    let Some(ample) = smollm2(&["--context", "512"]) else {
        return;
    };
    let words = [
        "boat", "tree", "lamp", "road", "bird", "fish", "door", "ship",
    ];
    let rounds = repeats(1);
    let length = if rounds < 10 { 70 } else { 120 };
    let bodies: Vec<Value> = words
        .iter()
        .map(|word| long(&format!(" {word}").repeat(40), length))
        .collect();
    check(small, &ample, &bodies, rounds);
}

/// The full count is 10 rounds.
#[test]
fn preempted_requests_come_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let model = model.to_str().unwrap();
    let ample = Server::start(model, &[]);
    let blocks = ample.metric("forthwith_kv_blocks_total");
    let small = Server::start(model, &["--kv-memory", "64KiB", "--max-running", "8"]);
    let few = small.metric("forthwith_kv_blocks_total");
    assert!(
        (6.0..10.0).contains(&few) && blocks > 40.0,
        "{few} and {blocks}"
    );
    let bodies: Vec<Value> = (b'a'..=b'h')
        .map(|letter| long(&char::from(letter).to_string().repeat(40), 120))
        .collect();
    check(small, &ample, &bodies, repeats(10));
}
