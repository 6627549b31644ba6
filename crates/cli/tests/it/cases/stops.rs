//! Stop strings across the borders of tokens.

use super::{repeats, smollm2, together};
use crate::server::{Server, greedy};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _};

const PROMPT: &str = "The harbour list: one boat, two boats, three";

/// The last `count` characters of a text.
fn tail(text: &str, count: usize) -> String {
    let skip = text.chars().count().saturating_sub(count);
    text.chars().skip(skip).collect()
}

fn stopped_at(stop: &Value) -> Value {
    let mut body = greedy(PROMPT, 40);
    body["stop"] = stop.clone();
    body
}

fn check(server: &Server, stop: &Value, text: &str, reason: &str) {
    let body = stopped_at(stop);
    let plain = server.post("/v1/completions", &body);
    assert_eq!(plain["choices"][0]["text"], text, "{stop}");
    assert_eq!(plain["choices"][0]["finish_reason"], reason, "{stop}");
    let mut sent = String::new();
    for event in server.events("/v1/completions", &body) {
        sent.push_str(event["choices"][0]["text"].as_str().unwrap());
        assert!(text.starts_with(&sent), "{sent:?} was sent too early");
        let ended = &event["choices"][0]["finish_reason"];
        assert!(ended.is_null() || ended == reason, "{event}");
    }
    assert_eq!(sent, text);
}

/// The full count is each place from 3 to 20.
#[test]
fn smollm2_stops_inside_and_across_tokens() {
    let Some(mut server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let mut body = greedy(PROMPT, 40);
    body["logprobs"] = json!(1);
    let whole = server.post("/v1/completions", &body);
    let choice = &whole["choices"][0];
    let text = choice["text"].as_str().unwrap();
    let reason = choice["finish_reason"].as_str().unwrap();
    let tokens: Vec<&str> = choice["logprobs"]["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token.as_str().unwrap())
        .collect();
    assert_eq!(tokens.concat(), text);
    let step = 18_usize.div_ceil(repeats(9));
    let mut jobs: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for place in (3..=20.min(tokens.len() - 2)).step_by(step) {
        let server = &server;
        let next: String = tokens[place + 1].chars().take(2).collect();
        let stop = tail(tokens[place], 1) + &next;
        let end = text.find(&stop).unwrap();
        let again = json!(["\u{1}never", stop]);
        jobs.push(Box::new(move || {
            check(server, &json!([stop]), &text[..end], "stop");
        }));
        jobs.push(Box::new(move || {
            check(server, &again, &text[..end], "stop");
        }));
        let half = tail(tokens[place], 2) + "§§";
        jobs.push(Box::new(move || check(server, &json!(half), text, reason)));
    }
    together(jobs);
    server.check_alive();
}

#[test]
fn smollm2_sends_while_it_generates() {
    let Some(server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let mut body = greedy(PROMPT, 100);
    body["stop"] = json!(["§§"]);
    body["stream"] = json!(true);
    body["ignore_eos"] = json!(true);
    let mut answer = BufReader::new(server.open("POST", "/v1/completions", &body.to_string()));
    let mut line = String::new();
    while !line.starts_with("data: {") {
        line.clear();
        assert!(answer.read_line(&mut line).unwrap() > 0);
    }
    assert_eq!(server.metric("forthwith_requests_running"), 1.0);
    answer.read_to_string(&mut line).unwrap();
    assert!(line.contains("data: [DONE]"));
}

#[test]
fn bad_stops_are_refused() {
    let mut server = Server::start("toy", &[]);
    for stop in [
        r#""""#,
        r#"["a", ""]"#,
        "7",
        r#"["a", 7]"#,
        r#"{"a": 1}"#,
        "true",
        "[null]",
        &json!(vec!["a"; 17]).to_string(),
        &json!("a".repeat(513)).to_string(),
    ] {
        let body = format!(r#"{{"prompt": "the", "max_tokens": 1, "stop": {stop}}}"#);
        let error = server.refused("/v1/completions", &body);
        let param = error["param"].as_str().unwrap();
        assert!(param.starts_with("stop"), "{error}");
    }
    server.check_alive();
}
