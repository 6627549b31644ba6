//! When the engine fails or ends, clients hear of it in the protocol's form.

use crate::support::Client;

const FIELDS: &str = r#""prompt":"the server","max_tokens":4"#;

#[tokio::test]
async fn a_failed_step_is_a_500_and_the_server_lives_on() {
    let client = Client::new();
    client.gate.fail();
    let error = client.complete(FIELDS).await.error(500);
    assert_eq!(error["type"], "server_error");
    client.gate.open();
    client.check_alive().await;
}

#[tokio::test]
async fn a_failure_inside_a_stream_is_its_last_event() {
    let client = Client::new();
    client.gate.fail();
    let answer = client.complete(&format!(r#"{FIELDS},"stream":true"#)).await;
    assert_eq!(answer.status, 200);
    let data = answer.data();
    let last: serde_json::Value = serde_json::from_str(data.last().unwrap()).unwrap();
    assert_eq!(last["error"]["type"], "server_error");
    assert!(!answer.text.contains("[DONE]"));
}

#[tokio::test]
async fn an_engine_that_shuts_down_refuses_with_503() {
    let client = Client::new();
    client.engine.shutdown(true);
    client.engine.join();
    let answer = client.complete(FIELDS).await;
    answer.error(503);
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn an_answer_that_is_cut_off_says_so() {
    let client = Client::new();
    client.gate.close();
    let router = client.router.clone();
    let asked = tokio::spawn(async move {
        let request = axum::http::Request::post("/v1/completions")
            .header("content-type", "application/json")
            .body(axum::body::Body::from(
                r#"{"prompt":"the server","ignore_eos":true}"#,
            ))
            .unwrap();
        crate::support::send(&router, request).await
    });
    while client.engine.snapshot().counters.accepted == 0 {
        tokio::task::yield_now().await;
    }
    client.engine.shutdown(false);
    client.gate.open();
    let error = asked.await.unwrap().error(500);
    assert!(
        error["message"].as_str().unwrap().contains("shut down"),
        "{error}"
    );
}
