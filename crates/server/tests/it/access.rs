//! Keys and names, before any route.

use crate::support::{Client, Gate, PLAIN, Shape, send, state_with, toy};
use axum::body::Body;
use axum::http::{Request, header};
use forthwith_server::{AccessRules, ApiKeys, ServerConfig, router};
use std::sync::Arc;

const ANN: &str = "sk-0123456789abcdef";
const BOB: &str = "sk-fedcba9876543210";

fn keys(text: &str) -> ApiKeys {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    ApiKeys::read(file.path()).unwrap()
}

/// A client of a server with these keys.
fn guarded(text: &str) -> Client {
    let config = ServerConfig {
        access: AccessRules {
            keys: keys(text),
            hosts: vec!["llm.lan".to_owned()],
            origins: Vec::new(),
        },
        ..ServerConfig::default()
    };
    let gate = Arc::new(Gate::default());
    let model = toy("toy", Some(PLAIN), Shape::default(), Arc::clone(&gate));
    let engine = model.engine.clone();
    let state = state_with(&config);
    state.open(vec![model]);
    Client {
        router: router(state.clone()),
        state,
        engine,
        gate,
    }
}

fn post(path: &str, body: &str, header: Option<(&str, String)>) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    let request = match header {
        Some((name, value)) => request.header(name, value),
        None => request,
    };
    request.body(Body::from(body.to_owned())).unwrap()
}

const ROUTES: &[&str] = &[
    "/v1/completions",
    "/v1/completions/render",
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/embeddings",
    "/v1/classify",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/nothing",
    "/",
];

#[tokio::test]
async fn every_route_but_those_of_readiness_needs_a_key() {
    let client = guarded(&format!("ann {ANN}\nbob {BOB}\n"));
    for path in ROUTES {
        for header in [
            None,
            Some(("authorization", "Bearer sk-0000000000000000".to_owned())),
            Some(("authorization", ANN.to_owned())),
            Some(("authorization", format!("Basic {ANN}"))),
            Some(("authorization", "Bearer".to_owned())),
            Some(("authorization", format!("Bearer {ANN}x"))),
            Some(("x-api-key", String::new())),
        ] {
            let answer = send(&client.router, post(path, "{}", header)).await;
            let error = answer.error(401);
            assert_eq!(error["code"], "invalid_api_key", "{path}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert!(!answer.text.contains("sk-"), "{}", answer.text);
        }
    }
    for path in ["/v1/models", "/v1/models/toy", "/metrics", "/nothing"] {
        assert_eq!(client.get(path).await.status, 401, "{path}");
    }
    for path in ["/health", "/live", "/ready"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_key_opens_all_and_shares_no_cache_with_another() {
    let client = guarded(&format!("ann {ANN}\nbob {BOB}\n"));
    let prompt = "the server ".repeat(24);
    let body = format!(
        r#"{{"prompt":"{}","max_tokens":1,"temperature":0}}"#,
        prompt.trim()
    );
    let cached = |header: (&'static str, String)| {
        let request = post("/v1/completions", &body, Some(header));
        let router = &client.router;
        async move {
            let answer = send(router, request).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
        }
    };
    let bearer = |key: &str| ("authorization", format!("bearer {key}"));
    assert_eq!(cached(bearer(ANN)).await, 0);
    assert_eq!(cached(bearer(BOB)).await, 0);
    assert_eq!(cached(("x-api-key", ANN.to_owned())).await, 32);
    assert_eq!(cached(bearer(BOB)).await, 32);
    for path in ["/v1/nothing", "/nothing"] {
        let answer = send(&client.router, post(path, "{}", Some(bearer(ANN)))).await;
        assert_eq!(answer.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_foreign_name_is_refused_before_anything_else() {
    let client = guarded(&format!("ann {ANN}\n"));
    for (host, status) in [
        ("evil.test", 403),
        ("evil.test:8080", 403),
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("llm.lan:8080", 200),
    ] {
        let request = Request::get("/health").header(header::HOST, host);
        let answer = send(&client.router, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{host}: {}", answer.text);
    }
    let request = Request::get("/v1/models").header(header::HOST, "evil.test");
    let answer = send(&client.router, request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.error(403)["code"], "host_not_allowed");
}

#[test]
fn a_wrong_file_names_itself_and_the_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (text, said) in [
        ("", "no keys"),
        ("# nothing\n", "no keys"),
        ("\nann", "line 2"),
        ("ann x", "line 1"),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let error = ApiKeys::read(file.path()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(
            error.contains(&file.path().display().to_string()),
            "{error}"
        );
    }
    let error = ApiKeys::read("/nowhere/keys".as_ref()).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot read /nowhere/keys"),
        "{error}"
    );
}
