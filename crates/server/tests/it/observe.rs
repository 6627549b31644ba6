//! Health and metrics.

use axum::body::Body;
use axum::http::Request;

use crate::support::{Client, loading, send};

#[tokio::test]
async fn while_loading_everything_but_metrics_says_so() {
    let router = forthwith_server::router(loading());
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    for path in ["/health", "/v1/models"] {
        let answer = send(&router, get(path)).await;
        assert_eq!(answer.error(503)["code"], "loading");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    let ask = Request::post("/v1/completions").header("content-type", "application/json");
    let answer = send(&router, ask.body(Body::from(r#"{"prompt":"a"}"#)).unwrap()).await;
    assert_eq!(answer.error(503)["code"], "loading");
    assert_eq!(send(&router, get("/metrics")).await.status, 200);
}

#[tokio::test]
async fn health_is_200_until_the_server_drains_and_does_not_wait_for_the_engine() {
    let client = Client::new();
    client.gate.close();
    let answer = client.get("/health").await;
    assert_eq!(
        (answer.status.as_u16(), answer.text.as_str()),
        (200, r#"{"status":"ok"}"#)
    );
    client.state.drain();
    assert_eq!(
        client.get("/health").await.error(503)["code"],
        "shutting_down"
    );
    let refused = client.complete(r#""prompt":"the""#).await;
    assert_eq!(refused.error(503)["code"], "shutting_down");
    client.gate.open();
}

#[tokio::test]
async fn metrics_tell_what_happened() {
    let client = Client::new();
    for fields in [
        r#""max_tokens":3"#,
        r#""max_tokens":3,"stream":true"#,
        r#""stop":"streams""#,
    ] {
        let answer = client
            .complete(&format!(r#""prompt":"the server",{fields}"#))
            .await;
        assert_eq!(answer.status, 200);
    }
    // The engine publishes its numbers after the step whose tokens are already here.
    while client.engine.snapshot().running > 0 {
        tokio::task::yield_now().await;
    }
    let answer = client.get("/metrics").await;
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("application/openmetrics-text"));
    let lines: Vec<&str> = answer.text.lines().collect();
    for line in [
        "# TYPE forthwith_requests_running gauge",
        "forthwith_requests_running 0.0",
        "vllm:num_requests_running 0.0",
        "forthwith_requests_waiting 0.0",
        "vllm:num_requests_waiting 0.0",
        "forthwith_kv_blocks_used 0.0",
        "forthwith_kv_blocks_total 512.0",
        "vllm:kv_cache_usage_perc 0.0",
        "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"512\"} 1",
        "forthwith_prompt_tokens_total 6",
        "vllm:prompt_tokens_total 6",
        "forthwith_requests_finished_total{reason=\"length\"} 2",
        "forthwith_requests_finished_total{reason=\"stop\"} 1",
        "vllm:request_success_total{finished_reason=\"length\"} 2",
        "forthwith_time_to_first_token_seconds_count 3",
        "vllm:time_to_first_token_seconds_count 3",
        "forthwith_inter_token_latency_seconds_count 4",
        "forthwith_request_generated_tokens_sum 7.0",
        "# EOF",
    ] {
        assert!(lines.contains(&line), "{line}\n{}", answer.text);
    }
    let names = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    insta::assert_snapshot!(names.collect::<Vec<_>>().join("\n"));
}

#[tokio::test]
async fn a_stuck_step_makes_the_server_unready_until_it_ends() {
    let client = Client::new();
    client.gate.close();
    let router = client.router.clone();
    let asked = tokio::spawn(async move {
        let request = Request::post("/v1/completions")
            .header("content-type", "application/json")
            .body(Body::from(r#"{"prompt":"the server","max_tokens":3}"#))
            .unwrap();
        send(&router, request).await
    });
    while client.engine.snapshot().running == 0 {
        tokio::task::yield_now().await;
    }
    let minute = std::time::Duration::from_mins(1);
    client.gate.clock.advance(minute);
    assert_eq!(client.get("/health").await.status, 200, "not yet");
    client.gate.clock.advance(minute);
    let answer = client.get("/health").await;
    assert_eq!(answer.error(503)["code"], "not_ready");
    assert!(answer.headers.contains_key("retry-after"));
    client.gate.open();
    assert_eq!(asked.await.unwrap().status, 200);
    while client.engine.snapshot().running > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.get("/health").await.status, 200);
}

#[tokio::test]
async fn metrics_tell_how_well_steps_are_predicted() {
    let client = Client::new();
    client.gate.slow_down();
    for _ in 0..3 {
        let answer = client
            .complete(r#""prompt":"the server","max_tokens":20,"ignore_eos":true"#)
            .await;
        assert_eq!(answer.status, 200);
    }
    while client.engine.snapshot().running > 0 {
        tokio::task::yield_now().await;
    }
    let metrics = client.get("/metrics").await.text;
    let value = |name: &str| -> f64 {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name}\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // All steps of this model take a millisecond.
    let predictions = value("forthwith_step_predictions_total");
    assert!(predictions >= 40.0, "{predictions}");
    let seconds = value("forthwith_step_seconds_total");
    assert!((seconds - predictions / 1e3).abs() < 1e-9, "{seconds}");
    let predicted = value("forthwith_step_predicted_seconds_total");
    let error = value("forthwith_step_prediction_error_seconds_total");
    assert!(error < 0.1 * seconds, "{error} of {seconds}");
    let ratios = [
        ("forthwith_step_prediction_error_ratio", error / seconds),
        (
            "forthwith_step_prediction_bias_ratio",
            (predicted - seconds) / seconds,
        ),
    ];
    for (name, expected) in ratios {
        assert!((value(name) - expected).abs() < 1e-9, "{name}");
    }
    assert!(value("forthwith_first_token_predictions_total") >= 1.0);
    let ratio = value("forthwith_first_token_prediction_error_ratio");
    assert!((0.0..1.0).contains(&ratio), "{ratio}");
}
