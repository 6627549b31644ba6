//! What is wrong before an endpoint is reached, and fields that may not be there.

use axum::body::Body;
use axum::http::{Request, header};

use crate::support::{Client, Shape, loading, send, toy};

#[tokio::test]
async fn models_are_listed_and_shown() {
    let client = Client::new();
    insta::assert_json_snapshot!(client.get("/v1/models").await.json());
    assert_eq!(client.get("/v1/models/toy").await.json()["id"], "toy");
    let error = client.get("/v1/models/no/such").await.error(404);
    assert_eq!(error["code"], "model_not_found");
}

#[tokio::test]
async fn models_are_chosen_by_name() {
    let state = loading();
    let models =
        ["a/one", "b"].map(|id| toy(id, None, Shape::default(), std::sync::Arc::default()));
    state.open(models.into());
    let router = forthwith_server::router(state);
    let ask = async |fields: &str| {
        let body = Body::from(format!(
            r#"{{"prompt":"the server","max_tokens":1{fields}}}"#
        ));
        let request = Request::post("/v1/completions").header("content-type", "application/json");
        send(&router, request.body(body).unwrap()).await
    };
    assert_eq!(ask(r#","model":"b""#).await.json()["model"], "b");
    assert_eq!(ask(r#","model":"a/one""#).await.json()["model"], "a/one");
    assert_eq!(ask("").await.error(400)["param"], "model");
    let error = ask(r#","model":"c""#).await.error(404);
    assert!(
        error["message"].as_str().unwrap().contains("a/one, b"),
        "{error}"
    );
}

#[tokio::test]
async fn wrong_paths_and_methods() {
    let client = Client::new();
    for path in [
        "/",
        "/v1",
        "//v1/models",
        "/v1/./models",
        "/v1/models/",
        "/V1/models",
        "/v1%2fmodels",
    ] {
        client.get(path).await.error(404);
    }
    assert_eq!(
        client.get("/v1/completions").await.error(405)["code"],
        "method_not_allowed"
    );
    client.post("/v1/models", "{}").await.error(405);
    client.post("/health", "{}").await.error(405);
}

#[tokio::test]
async fn wrong_bodies() {
    let client = Client::new();
    let deep = format!(r#"{{"prompt":{}1{}}}"#, "[".repeat(64), "]".repeat(64));
    let deepest = format!(
        r#"{{"metadata":{}1{}}}"#,
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    for body in [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\"x\"",
        "{\"prompt\":\"a\"} x",
        "{\"prompt\":NaN}",
        "{'a':1}",
        r#"{"prompt":"\ud83e"}"#,
        r#"{"prompt":"\udd8a\ud83e"}"#,
        r#"{"prompt":"a","prompt":"b"}"#,
        deep.as_str(),
        deepest.as_str(),
    ] {
        client.post("/v1/completions", body).await.error(400);
    }
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(&b"{\"prompt\":\"\xff\xfe\"}"[..]))
        .unwrap();
    client.send(request).await.error(400);
    client.check_alive().await;
}

#[tokio::test]
async fn content_types() {
    let client = Client::new();
    let ask = async |kind: Option<&str>| {
        let mut request = Request::post("/v1/completions");
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let body = Body::from(r#"{"prompt":"the server","max_tokens":1}"#);
        client.send(request.body(body).unwrap()).await
    };
    for good in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.x+json",
    ] {
        assert_eq!(ask(Some(good)).await.status, 200, "{good}");
    }
    for bad in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some(""),
    ] {
        ask(bad).await.error(415);
    }
}

#[tokio::test]
async fn bodies_at_and_beyond_the_limit() {
    let client = Client::new();
    let limit = 8 << 20;
    let frame = r#"{"prompt":"the server","max_tokens":1,"user":""}"#.len();
    for (size, status) in [(limit, 200), (limit + 1, 413)] {
        let filler = "x".repeat(size - frame);
        let body = format!(r#"{{"prompt":"the server","max_tokens":1,"user":"{filler}"}}"#);
        assert_eq!(body.len(), size);
        assert_eq!(client.post("/v1/completions", &body).await.status, status);
    }
    // The declared length is refused before a byte of the body is read.
    let endless = Body::from_stream(futures_util::stream::pending::<
        Result<Vec<u8>, std::io::Error>,
    >());
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, u64::MAX)
        .body(endless)
        .unwrap();
    client.send(request).await.error(413);
}

#[tokio::test]
async fn unknown_and_unsupported_fields_are_refused_by_name() {
    let client = Client::new();
    for (field, value, code) in [
        ("temprature", "1", "unknown_parameter"),
        ("", "1", "unknown_parameter"),
        ("messages", "[]", "unknown_parameter"),
        ("max_completion_tokens", "1", "unknown_parameter"),
        ("id_slot", "1", "unsupported_parameter"),
        ("best_of", "2", "unsupported_parameter"),
        ("suffix", "\"x\"", "unsupported_parameter"),
        ("store", "true", "unsupported_parameter"),
        ("use_beam_search", "true", "unsupported_parameter"),
    ] {
        let answer = client
            .complete(&format!(r#""prompt":"the","{field}":{value}"#))
            .await;
        let error = answer.error(400);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&field.into(), &code.into()),
            "{error}"
        );
    }
    for (field, value) in [("n", "1"), ("user", "\"u\""), ("store", "false")] {
        let fields = format!(r#""prompt":"the","{field}":{value},"{field}":{value}"#);
        assert_eq!(client.complete(&fields).await.error(400)["param"], field);
    }
    let error = client
        .complete(r#""prompt":"the","stream":true,"stream_options":{"include_everything":true}"#)
        .await
        .error(400);
    assert_eq!(error["param"], "stream_options.include_everything");
}

#[tokio::test]
async fn fields_that_ask_for_what_happens_anyway_are_accepted() {
    let client = Client::new();
    let fields = r#""messages":[{"role":"user","content":"the server"}],"max_tokens":2,
        "n":1,"user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","tools":[],
        "tool_choice":"none","parallel_tool_calls":true,"response_format":{"type":"text"},
        "logit_bias":{},"best_of":1.0,"modalities":["text"],"audio":null,"min_tokens":0,
        "use_beam_search":false,"typical_p":1,"cache_prompt":true,"reasoning_effort":null"#;
    let answer = client.chat(fields).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}
