//! Clients that leave take their work with them, wherever it stands.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use http_body_util::BodyExt;
use tower::ServiceExt;

use crate::support::{Client, Shape};

/// Ends of patience, not of measurements: a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn endless(stream: bool) -> Request<Body> {
    let body =
        format!(r#"{{"prompt":"the server","ignore_eos":true,"temperature":0,"stream":{stream}}}"#);
    Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .unwrap()
}

/// A client whose answers could go on for 4,000 tokens, one at a time.
fn client() -> Client {
    Client::with(
        None,
        Shape {
            context: 4096,
            max_running: 1,
            max_waiting: 1,
        },
    )
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, waiting).await.is_ok(),
        "never: {what}"
    );
}

async fn until_idle(client: &Client) {
    until("the engine is idle", || {
        let now = client.engine.snapshot();
        (now.running, now.waiting, now.kv_used.get()) == (0, 0, 0)
    })
    .await;
}

#[tokio::test]
async fn leaving_a_stream_ends_its_sequence() {
    let client = client();
    let response = client.router.clone().oneshot(endless(true)).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    client.gate.close();
    drop(body);
    client.gate.open();
    until_idle(&client).await;
    assert!(client.engine.snapshot().counters.generated_tokens < 4000);
    let metrics = client.get("/metrics").await.text;
    assert!(
        metrics.contains("forthwith_requests_finished_total{reason=\"cancelled\"} 1"),
        "{metrics}"
    );
    client.check_alive().await;
}

#[tokio::test]
async fn leaving_a_plain_request_ends_it_in_prefill_and_in_the_queue() {
    let client = client();
    client.gate.close();
    let first = tokio::spawn(client.router.clone().oneshot(endless(false)));
    until("one runs", || client.engine.snapshot().running == 1).await;
    let second = tokio::spawn(client.router.clone().oneshot(endless(false)));
    until("one waits", || client.engine.snapshot().waiting == 1).await;
    second.abort();
    first.abort();
    let _ = (first.await, second.await);
    client.gate.open();
    until_idle(&client).await;
    let counters = client.engine.snapshot().counters;
    assert!(
        counters.prompt_tokens <= 2,
        "the waiting prompt was never read: {counters:?}"
    );
    assert!(counters.generated_tokens <= 1, "{counters:?}");
    client.check_alive().await;
}

#[tokio::test]
async fn a_full_queue_is_told_and_leaves_nothing_behind() {
    let client = client();
    client.gate.close();
    let first = tokio::spawn(client.router.clone().oneshot(endless(false)));
    until("one runs", || client.engine.snapshot().running == 1).await;
    // Of four choices one may wait; the call is refused as a whole.
    let answer = client.complete(r#""prompt":"the","n":4"#).await;
    assert_eq!(answer.error(429)["type"], "rate_limit_error");
    assert!(answer.headers.contains_key("retry-after"));
    first.abort();
    let _ = first.await;
    client.gate.open();
    until_idle(&client).await;
    client.check_alive().await;
}
