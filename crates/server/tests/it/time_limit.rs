//! `max_time_ms`: what is there when the time is over is the answer.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};

use crate::support::{Answer, Client, Shape, send};

const ENDPOINTS: [(&str, &str); 2] = [
    (
        "/v1/chat/completions",
        r#""messages":[{"role":"user","content":"the server"}]"#,
    ),
    ("/v1/completions", r#""prompt":"the server""#),
];

fn client() -> Client {
    let shape = Shape {
        max_running: 1,
        ..Shape::default()
    };
    Client::with(Some(crate::support::PLAIN), shape)
}

/// Asks, and returns once the engine knows of it.
async fn begin(client: &Client, endpoint: usize, fields: &str) -> tokio::task::JoinHandle<Answer> {
    let (path, input) = ENDPOINTS[endpoint];
    let json = format!(r#"{{{input},"ignore_eos":true,"temperature":0{fields}}}"#);
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(json))
        .unwrap();
    let before = client.engine.snapshot();
    let router = client.router.clone();
    let asked = tokio::spawn(async move { send(&router, request).await });
    let known = |client: &Client| {
        let now = client.engine.snapshot();
        now.running + now.waiting
    };
    while known(client) == before.running + before.waiting {
        tokio::task::yield_now().await;
    }
    asked
}

/// Waits until the first step of a request stands at the gate, or nothing comes of it.
async fn until_running(client: &Client) {
    while client.engine.snapshot().running == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_is_cut_and_says_so() {
    for endpoint in 0..ENDPOINTS.len() {
        let client = client();
        client.gate.close();
        let asked = begin(&client, endpoint, r#","max_time_ms":500"#).await;
        until_running(&client).await;
        client.gate.clock.advance(Duration::from_millis(500));
        client.gate.open();
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        let json = answer.json();
        assert_eq!(json["choices"][0]["finish_reason"], "length");
        assert_eq!(json["usage"]["completion_tokens"], 1);
        assert_eq!(json["usage"]["determinism"]["held"], false);
        let warnings = json["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), 1);
        let warning = warnings[0].as_str().unwrap();
        assert!(warning.contains("max_time_ms of 500"), "{warning}");
        let metrics = client.get("/metrics").await.text;
        for line in [
            "\nforthwith_requests_finished_total{reason=\"time_limit\"} 1\n",
            "\nvllm:request_success_total{finished_reason=\"length\"} 1\n",
        ] {
            assert!(metrics.contains(line), "{metrics}");
        }
    }
}

#[tokio::test]
async fn a_stream_is_cut_and_says_so() {
    for endpoint in 0..ENDPOINTS.len() {
        let client = client();
        client.gate.close();
        let asked = begin(&client, endpoint, r#","max_time_ms":500,"stream":true"#).await;
        until_running(&client).await;
        client.gate.clock.advance(Duration::from_millis(500));
        client.gate.open();
        let answer = asked.await.unwrap();
        let events = answer.events();
        let (end, others) = events.split_last().unwrap();
        assert_eq!(end["choices"][0]["finish_reason"], "length");
        let warning = end["warnings"][0].as_str().unwrap();
        assert!(warning.contains("max_time_ms of 500"), "{warning}");
        assert!(others.iter().all(|event| event.get("warnings").is_none()));
    }
}

#[tokio::test]
async fn without_need_nothing_is_said() {
    let client = client();
    let fields = r#""prompt":"the server","max_tokens":3,"max_time_ms":500"#;
    let json = client.complete(fields).await.json();
    assert_eq!(json["usage"]["completion_tokens"], 3);
    assert_eq!(json["usage"]["determinism"]["held"], true);
    assert!(json.get("warnings").is_none());
}

#[tokio::test]
async fn whoever_has_not_begun_is_told_which_limit_it_was() {
    for (fields, told) in [
        (r#","max_time_ms":500"#, "max_time_ms of 500"),
        (r#","max_queue_time":0.5"#, "max_queue_time of 0.5 s"),
        (
            r#","max_queue_time":0.5,"max_time_ms":400"#,
            "max_time_ms of 400",
        ),
        (
            r#","max_queue_time":0.25,"max_time_ms":400"#,
            "max_queue_time of 0.25 s",
        ),
    ] {
        let client = client();
        client.gate.close();
        let running = begin(&client, 1, r#","max_tokens":2"#).await;
        until_running(&client).await;
        let waiting = begin(&client, 1, fields).await;
        client.gate.clock.advance(Duration::from_millis(500));
        client.gate.open();
        let answer = waiting.await.unwrap();
        let error = answer.error(503);
        assert_eq!(error["code"], "queue_timeout");
        assert!(answer.headers.contains_key("retry-after"));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(told), "{message}");
        assert_eq!(running.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn what_is_no_number_of_milliseconds_is_refused() {
    let client = client();
    for value in ["-1", "1.5", "\"500\"", "true", "1e30", "[]"] {
        let fields = format!(r#""prompt":"the server","max_time_ms":{value}"#);
        assert_eq!(
            client.complete(&fields).await.error(400)["param"],
            "max_time_ms"
        );
    }
    let most = format!(
        r#""prompt":"the server","max_tokens":2,"max_time_ms":{}"#,
        u64::MAX
    );
    assert_eq!(client.complete(&most).await.status, 200);
}
