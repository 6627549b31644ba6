//! Usage in streams.

use super::smollm2;
use crate::server::{Server, chat};
use serde_json::{Value, json};

fn check(server: &Server, path: &str, body: &Value, n: usize, include: Option<bool>) {
    let mut body = body.clone();
    body["n"] = json!(n);
    let plain = server.post(path, &body);
    let usage = &plain["usage"];
    assert_eq!(
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap(),
        usage["total_tokens"].as_u64().unwrap()
    );
    if let Some(include) = include {
        body["stream_options"] = json!({"include_usage": include});
    }
    let mut events = server.events(path, &body);
    if include == Some(true) {
        let last = events.pop().unwrap();
        // The second of two equal prompts is found in the cache; the counts stay what they are.
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][count], usage[count]);
        }
        assert_eq!(last["choices"], json!([]));
        assert_eq!(
            (&last["id"], &last["created"]),
            (&events[0]["id"], &events[0]["created"])
        );
    }
    let mut ends = vec![0; n];
    for event in &events {
        assert!(event["usage"].is_null(), "{event}");
        assert_eq!(
            (&event["id"], &event["created"]),
            (&events[0]["id"], &events[0]["created"])
        );
        let choice = &event["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        assert_eq!(ends[index], 0, "an event after the choice's end: {event}");
        ends[index] += usize::from(!choice["finish_reason"].is_null());
    }
    assert_eq!(ends, vec![1; n]);
}

#[test]
fn smollm2_tells_usage_when_asked() {
    let Some(mut server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let conversation = chat("Say three words.", 8);
    let completion = json!({"prompt": "Three words:", "max_tokens": 8, "temperature": 0});
    for n in [1, 3] {
        for include in [Some(true), Some(false), None] {
            check(&server, "/v1/chat/completions", &conversation, n, include);
            check(&server, "/v1/completions", &completion, n, include);
        }
    }
    let one = server.post("/v1/completions", &completion);
    let mut three = completion.clone();
    three["n"] = json!(3);
    let three = server.post("/v1/completions", &three);
    assert_eq!(
        three["usage"]["prompt_tokens"],
        one["usage"]["prompt_tokens"]
    );
    assert_eq!(
        three["usage"]["completion_tokens"].as_u64().unwrap(),
        3 * one["usage"]["completion_tokens"].as_u64().unwrap()
    );
    let mut lonely = completion;
    lonely["stream_options"] = json!({"include_usage": true});
    for stream in [json!(false), Value::Null] {
        lonely["stream"] = stream;
        let error = server.refused("/v1/completions", &lonely.to_string());
        assert_eq!(error["param"], "stream_options");
    }
    server.check_alive();
}
