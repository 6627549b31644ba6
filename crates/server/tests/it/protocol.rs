//! What is wrong before an endpoint is reached, and fields that may not be there.

use axum::body::Body;
use axum::http::{Request, header};
use forthwith_core::units::Bytes;
use forthwith_server::{RequestLimits, ServerConfig};
use serde_json::Value;

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

fn strict() -> Client {
    Client::configured(&ServerConfig {
        strict_params: true,
        ..ServerConfig::default()
    })
}

/// A field that changes nothing about the answer is told of; with `strict_params` it is refused.
#[tokio::test]
async fn fields_without_effect_are_warned_of_or_refused() {
    let (client, strict) = (Client::new(), strict());
    let plain = client.complete(r#""prompt":"the","max_tokens":2"#).await;
    for (field, value, code) in [
        ("temprature", "1", "unknown_parameter"),
        ("", "1", "unknown_parameter"),
        ("messages", "[]", "unknown_parameter"),
        ("max_completion_tokens_", "1", "unknown_parameter"),
        ("id_slot", "1", "unsupported_parameter"),
        ("store", "true", "unsupported_parameter"),
    ] {
        let fields = format!(r#""prompt":"the","max_tokens":2,"{field}":{value}"#);
        let answer = client.complete(&fields).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let warnings = answer.json()["warnings"].clone();
        assert_eq!(warnings.as_array().map(Vec::len), Some(1), "{field}");
        let warning = warnings[0].as_str().unwrap();
        assert!(warning.starts_with(&format!("`{field}` ")), "{warning}");
        assert_eq!(answer.json()["choices"], plain.json()["choices"], "{field}");
        let error = strict.complete(&fields).await.error(400);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&field.into(), &code.into()),
            "{error}"
        );
    }
    assert_eq!(plain.json().get("warnings"), None);
}

/// What would change the answer is never left out.
#[tokio::test]
async fn fields_that_would_change_the_answer_are_refused() {
    for client in [Client::new(), strict()] {
        for (field, value) in [
            ("best_of", "2"),
            ("suffix", "\"x\""),
            ("use_beam_search", "true"),
        ] {
            let fields = format!(r#""prompt":"the","{field}":{value}"#);
            let error = client.complete(&fields).await.error(400);
            assert_eq!(
                (&error["param"], &error["code"]),
                (&field.into(), &"unsupported_parameter".into()),
                "{error}"
            );
        }
        for (field, value) in [("n", "1"), ("user", "\"u\"")] {
            let fields = format!(r#""prompt":"the","{field}":{value},"{field}":{value}"#);
            assert_eq!(client.complete(&fields).await.error(400)["param"], field);
        }
    }
}

/// On every endpoint, in streams too.
#[tokio::test]
async fn every_endpoint_warns() {
    const CHAT: &str = r#""messages":[{"role":"user","content":"the"}],"max_tokens":2"#;
    const TEXT: &str = r#""prompt":"the","max_tokens":2"#;
    let (client, strict) = (Client::new(), strict());
    for (path, fields) in [
        ("/v1/completions", TEXT),
        ("/v1/completions/render", TEXT),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions/render", CHAT),
        ("/tokenize", r#""prompt":"the""#),
        ("/detokenize", r#""tokens":[5]"#),
        (
            "/apply-template",
            r#""messages":[{"role":"user","content":"the"}]"#,
        ),
    ] {
        let json = format!(r#"{{{fields},"temprature":1}}"#);
        let answer = client.post(path, &json).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let warning = answer.json()["warnings"][0].clone();
        assert!(
            warning.to_string().contains("temprature"),
            "{path}: {warning}"
        );
        assert_eq!(
            strict.post(path, &json).await.error(400)["param"],
            "temprature"
        );
    }
    for (path, fields) in [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)] {
        let json =
            format!(r#"{{{fields},"stream":true,"stream_options":{{"include_everything":true}}}}"#);
        let answer = client.post(path, &json).await;
        let told = answer.text.matches("stream_options.include_everything");
        assert_eq!(told.count(), 1, "{}", answer.text);
        let error = strict.post(path, &json).await.error(400);
        assert_eq!(error["param"], "stream_options.include_everything");
    }
}

/// A client cannot make an answer long with what it warns of.
#[tokio::test]
async fn warnings_are_bounded() {
    let long = "x".repeat(1000);
    let fields: Vec<String> = (0..500)
        .map(|index| format!(r#","{long}{index}":1"#))
        .collect();
    let fields = fields.concat();
    let answer = Client::new()
        .complete(&format!(r#""prompt":"the","max_tokens":1{fields}"#))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.len() < 8192, "{}", answer.text.len());
    assert!(answer.text.contains("484"), "{}", answer.text);
}

/// A server whose limits are all small.
fn narrow() -> Client {
    Client::configured(&ServerConfig {
        max_body: Bytes::new(4096),
        max_batch_body: Bytes::new(8192),
        limits: RequestLimits {
            depth: 5,
            messages: 2,
            tools: 1,
            stops: 1,
            stop_bytes: 3,
            logit_bias: 1,
            choices: 2,
            logprobs: 1,
            prompts: 2,
            texts: 2,
        },
        ..ServerConfig::default()
    })
}

/// The limits are those of the configuration, and an error tells both numbers.
#[tokio::test]
async fn limits_are_configured() {
    let client = narrow();
    for (fields, param, numbers) in [
        (r#""x":[[[[[1]]]]]"#, "", ["", "5"]),
        (r#""stop":["a","b"]"#, "stop", ["2", "1"]),
        (r#""stop":["abcd"]"#, "stop", ["4", "3"]),
        (r#""bad_words":["abcd"]"#, "bad_words", ["4", "3"]),
        (r#""logit_bias":{"1":1,"2":1}"#, "logit_bias", ["2", "1"]),
        (r#""n":3"#, "n", ["3", "2"]),
        (r#""logprobs":2"#, "logprobs", ["2", "1"]),
        (r#""prompt_logprobs":2"#, "prompt_logprobs", ["2", "1"]),
    ] {
        let error = client
            .complete(&format!(r#""prompt":"the",{fields}"#))
            .await
            .error(400);
        check_limit(&error, param, numbers);
    }
    let error = client
        .complete(r#""prompt":["a","b","c"]"#)
        .await
        .error(400);
    check_limit(&error, "prompt", ["3", "2"]);
    client.check_alive().await;
}

#[tokio::test]
async fn limits_of_conversations_are_configured() {
    let client = narrow();
    let message = r#"{"role":"user","content":"the"}"#;
    let tool = |name: &str| format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#);
    let many = format!(r#""messages":[{message},{message},{message}]"#);
    check_limit(&client.chat(&many).await.error(400), "messages", ["3", "2"]);
    for (fields, param) in [
        (format!(r#""tools":[{},{}]"#, tool("a"), tool("b")), "tools"),
        (
            r#""logprobs":true,"top_logprobs":2"#.to_owned(),
            "top_logprobs",
        ),
    ] {
        let answer = client
            .chat(&format!(r#""messages":[{message}],{fields}"#))
            .await;
        check_limit(&answer.error(400), param, ["2", "1"]);
    }
}

fn check_limit(error: &Value, param: &str, numbers: [&str; 2]) {
    assert_eq!(
        error["param"].as_str().unwrap_or_default(),
        param,
        "{error}"
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        numbers.iter().all(|number| message.contains(number)),
        "{message}"
    );
}

/// Calls with many texts have a limit of their own.
#[tokio::test]
async fn sizes_of_bodies_are_configured() {
    let client = narrow();
    let long = |size: usize| {
        let user = "u".repeat(size);
        format!(r#"{{"input":"the","prompt":"the","user":"{user}"}}"#)
    };
    client.post("/v1/completions", &long(5000)).await.error(413);
    client.post("/v1/embeddings", &long(9000)).await.error(413);
    assert_ne!(client.post("/v1/embeddings", &long(5000)).await.status, 413);
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
