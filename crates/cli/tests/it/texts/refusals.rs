//! What is refused, with the field that is wrong and what would work.

use super::Server;
use serde_json::{Value, json};

pub(super) fn check(server: &Server) {
    // What has no effect is told, not refused.
    let body = json!({"model": "embedder", "input": "a", "temperature": 1});
    let warnings = server.post("/v1/embeddings", &body)["warnings"].clone();
    assert_eq!(warnings.as_array().map(Vec::len), Some(1), "{warnings}");
    assert!(
        warnings[0].as_str().unwrap().starts_with("`temperature` "),
        "{warnings}"
    );
    let long = "memory ".repeat(60);
    let refused = |path: &str, body: Value, param: &str, says: &str| {
        let error = server.refused(path, &body.to_string());
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
        assert_eq!(error["param"], param, "{error}");
        error["code"].clone()
    };
    let code = refused(
        "/v1/embeddings",
        json!({"model": "embedder", "input": ["a", long]}),
        "input",
        "62 tokens, this model's maximum context length is 40 tokens",
    );
    assert_eq!(code, "context_length_exceeded");
    let cut = json!({"model": "embedder", "input": ["a", long], "truncate_prompt_tokens": -1});
    let cut = server.post("/v1/embeddings", &cut);
    assert_eq!(cut["usage"]["truncated_tokens"], 22);
    assert!(
        cut["warnings"][0]
            .as_str()
            .unwrap()
            .contains("1 texts were truncated to 40"),
        "{cut}"
    );
    for (path, body, param, says) in wrong(&long) {
        refused(path, body, param, says);
    }
}

/// A route, a body, the field at fault and a part of the message.
type Wrong = (&'static str, Value, &'static str, &'static str);

fn wrong(long: &str) -> Vec<Wrong> {
    let mut all = of_models();
    all.extend(of_fields(long));
    all.extend(of_labels());
    all
}

/// Calls to endpoints that the model is not made for.
fn of_models() -> Vec<Wrong> {
    vec![
        (
            "/v1/embeddings",
            json!({"model": "labels", "input": "a"}),
            "model",
            "labels or scores",
        ),
        (
            "/v1/embeddings",
            json!({"model": "chat", "input": "a"}),
            "model",
            "generates text",
        ),
        (
            "/v1/classify",
            json!({"model": "embedder", "input": "a"}),
            "model",
            "/v1/embeddings",
        ),
        (
            "/v1/chat/completions",
            json!({"model": "embedder", "messages": [{"role": "user", "content": "a"}]}),
            "model",
            "makes vectors of texts",
        ),
        (
            "/v1/completions",
            json!({"model": "labels", "prompt": "a"}),
            "model",
            "labels or scores",
        ),
        (
            "/v1/rerank",
            json!({"model": "labels", "query": "a", "documents": ["b"]}),
            "model",
            "3 labels",
        ),
    ]
}

/// Fields with values that cannot be.
fn of_fields(long: &str) -> Vec<Wrong> {
    vec![
        (
            "/v1/rerank",
            json!({"model": "reranker", "query": "a", "documents": []}),
            "documents",
            "0 texts",
        ),
        (
            "/v1/rerank",
            json!({"model": "reranker", "query": "a", "documents": ["b"], "top_n": 0}),
            "top_n",
            "allowed is 1",
        ),
        (
            "/v1/rerank",
            json!({"model": "reranker", "query": long, "documents": ["b"]}),
            "documents",
            "maximum context length is 40 tokens",
        ),
        (
            "/v1/score",
            json!({"model": "reranker", "text_1": ["a", "b", "c"], "text_2": ["a", "b"]}),
            "text_1",
            "text_1 has 3 texts",
        ),
        (
            "/v1/embeddings",
            json!({"model": "embedder", "input": "a", "dimensions": 21}),
            "dimensions",
            "1 to 20",
        ),
        (
            "/v1/embeddings",
            json!({"model": "embedder", "input": [[1, 99999]]}),
            "input",
            "99999",
        ),
        (
            "/v1/embeddings",
            json!({"model": "embedder", "input": "a", "truncate_prompt_tokens": 41}),
            "truncate_prompt_tokens",
            "1 to 40",
        ),
        (
            "/v1/embeddings",
            json!({"model": "embedder", "input": "a", "encoding_format": "hex"}),
            "encoding_format",
            "hex",
        ),
    ]
}

/// Labels, which some models have and others need.
fn of_labels() -> Vec<Wrong> {
    vec![
        (
            "/v1/classify",
            json!({"model": "chat", "input": "a"}),
            "labels",
            "0 labels",
        ),
        (
            "/v1/classify",
            json!({"model": "labels", "input": "a", "labels": ["x", "y"]}),
            "labels",
            "labels of its own: sport",
        ),
        (
            "/v1/classify",
            json!({"model": "chat", "input": "a", "labels": ["x", "x"]}),
            "labels",
            "given twice",
        ),
    ]
}
