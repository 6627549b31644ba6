//! Token limits, empty prompts, and prompts at and beyond the context.

use super::{smollm2, together};
use crate::server::{Server, chat, greedy, joined};
use serde_json::{Value, json};

const NOT_A_LENGTH: [&str; 6] = ["-1", "-2147483648", "1.5", "\"8\"", "true", "[]"];
const TOO_LONG: [&str; 3] = ["2147483648", "9223372036854775807", "18446744073709551615"];

/// Every field that limits an answer, in its request.
fn limited(value: &str) -> [(&'static str, &'static str, String); 3] {
    let message = r#""messages": [{"role": "user", "content": "Hi"}], "temperature": 0"#;
    [
        (
            "/v1/completions",
            "max_tokens",
            format!(r#"{{"prompt": "The boat", "temperature": 0, "max_tokens": {value}}}"#),
        ),
        (
            "/v1/chat/completions",
            "max_tokens",
            format!(r#"{{{message}, "max_tokens": {value}}}"#),
        ),
        (
            "/v1/chat/completions",
            "max_completion_tokens",
            format!(r#"{{{message}, "max_completion_tokens": {value}}}"#),
        ),
    ]
}

fn try_lengths(server: &Server) {
    for value in NOT_A_LENGTH.into_iter().chain(["0", "1e19"]) {
        for (path, field, body) in limited(value) {
            assert_eq!(server.refused(path, &body)["param"], field, "{value}");
        }
    }
    for value in TOO_LONG.into_iter().chain(["513"]) {
        for (path, field, body) in limited(value) {
            let error = server.refused(path, &body);
            assert_eq!(error["param"], field, "{value}");
            assert_eq!(error["code"], "context_length_exceeded", "{value}");
        }
    }
    for (path, _, body) in limited("1") {
        let answer = server.send("POST", path, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 1);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    for (path, _, body) in limited(r#"null, "stop": "e""#) {
        let answer = server.send("POST", path, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

fn try_empty_prompts(server: &Server) {
    for prompt in [
        r#""""#,
        r#"[""]"#,
        r#"["", "x"]"#,
        r#"["x", ""]"#,
        "[]",
        "[[]]",
        "[[], [1]]",
        "null",
        "[null]",
        "7",
    ] {
        let body = format!(r#"{{"prompt": {prompt}, "max_tokens": 4}}"#);
        server.refused("/v1/completions", &body);
    }
    server.refused("/v1/completions", r#"{"max_tokens": 4}"#);
    server.refused("/v1/completions", r#"{"prompt": [49152], "max_tokens": 4}"#);
    server.refused("/v1/completions", r#"{"prompt": [-1], "max_tokens": 4}"#);
}

#[test]
fn smollm2_keeps_other_streams_whole_through_bad_lengths() {
    // Room for all eight streams, and no more cache to touch than that.
    let Some(mut server) = smollm2(&["--context", "512", "--kv-memory", "24MiB"]) else {
        return;
    };
    let prompts: Vec<String> = (0..8).map(|i| format!("Story {i}: the boat")).collect();
    let body = |prompt: &String| {
        let mut body = greedy(prompt, 40);
        body["ignore_eos"] = json!(true);
        body
    };
    let undisturbed = together(
        prompts
            .iter()
            .map(|prompt| || server.text(&body(prompt)))
            .collect(),
    );
    let before = server.resident();
    let mut jobs: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for (prompt, text) in prompts.iter().zip(&undisturbed) {
        let server = &server;
        jobs.push(Box::new(move || {
            let events = server.events("/v1/completions", &body(prompt));
            assert_eq!(&joined(&events, 0), text);
        }));
    }
    jobs.push(Box::new(|| try_lengths(&server)));
    jobs.push(Box::new(|| try_empty_prompts(&server)));
    together(jobs);
    if let (Some(before), Some(after)) = (before, server.resident()) {
        assert!(after < before + (50 << 20), "{before} bytes became {after}");
    }
    server.check_alive();
}

fn boats(count: usize) -> String {
    " boat".repeat(count)
}

/// Asks with a prompt of `prompt` tokens and checks the one rule; a stream is refused before it starts.
fn ask(server: &Server, path: &str, body: &Value, prompt: usize, context: usize) {
    let asked = usize::try_from(body["max_tokens"].as_u64().unwrap()).unwrap();
    if prompt + asked <= context {
        let answer = server.post(path, body);
        assert_eq!(answer["usage"]["prompt_tokens"], prompt);
        return;
    }
    let mut body = body.clone();
    for stream in [false, true] {
        body["stream"] = json!(stream);
        let error = server.refused(path, &body.to_string());
        assert_eq!(error["code"], "context_length_exceeded", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&context.to_string()), "{message}");
        assert!(message.contains(&prompt.to_string()), "{message}");
    }
}

#[test]
fn smollm2_refuses_what_the_context_does_not_hold() {
    let Some(mut server) = smollm2(&["--context", "256"]) else {
        return;
    };
    let measured = server.post("/v1/completions", &greedy(&boats(200), 1));
    assert_eq!(measured["usage"]["prompt_tokens"], 200);
    let measured = server.post("/v1/chat/completions", &chat(&boats(100), 1));
    let around = measured["usage"]["prompt_tokens"].as_u64().unwrap() - 100;
    let around = usize::try_from(around).unwrap();
    let mut jobs: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for prompt in [192, 193, 255, 256, 257, 1000, 50_000] {
        for max_tokens in [1, 64] {
            let server = &server;
            let body = greedy(&boats(prompt), max_tokens);
            jobs.push(Box::new(move || {
                ask(server, "/v1/completions", &body, prompt, 256);
            }));
            let body = chat(&boats(prompt - around), max_tokens);
            jobs.push(Box::new(move || {
                ask(server, "/v1/chat/completions", &body, prompt, 256);
            }));
        }
    }
    together(jobs);
    // What is refused by its own length is refused without a limit too.
    let body = json!({"prompt": boats(256)});
    server.refused("/v1/completions", &body.to_string());
    let body = json!({"prompt": boats(250), "temperature": 0, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer["usage"]["total_tokens"], 256);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    server.check_alive();
}
