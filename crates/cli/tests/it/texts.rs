//! Vectors, labels and scores by the real binary: what transformers made of the same texts, stored
//! in `fixtures/served`.

use super::server::Server;
use super::{python, real_model};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

mod commands;
mod refusals;

/// The largest difference from double precision, as a share of what is compared.
const TOLERANCE: f64 = 1e-5;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/served")
        .join(name)
}

fn golden(name: &str) -> Value {
    let bytes = std::fs::read(folder(name).join("golden.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn path(name: &str) -> String {
    folder(name).to_str().unwrap().to_owned()
}

/// A server of all five models.
fn server() -> Server {
    let others = ["reranker", "labels", "entities", "chat"].map(path);
    let mut more: Vec<&str> = others.iter().flat_map(|path| ["--model", path]).collect();
    // Nothing but the products is rounded.
    more.extend(["--kv-format", "f32"]);
    Server::start(&path("embedder"), &more)
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_f64().unwrap())
        .collect()
}

fn assert_close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want
        .iter()
        .fold(0.0_f64, |size, value| size.max(value.abs()));
    for (got, want) in got.iter().zip(want) {
        assert!(
            (got - want).abs() <= TOLERANCE * size,
            "{what}: {got} {want}"
        );
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let powers: Vec<f64> = logits.iter().map(|logit| logit.exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

#[test]
fn texts_are_answered_as_transformers_answers_them() {
    let mut server = server();
    embeddings(&server);
    pairs(&server);
    labels(&server);
    generated_labels(&server);
    refusals::check(&server);
    let finished = server.metric("forthwith_requests_finished_total{reason=\"complete\"}");
    assert!(finished > 50.0, "{finished}");
    let chat = json!({"model": "chat", "prompt": "The boat", "max_tokens": 4, "temperature": 0});
    assert_eq!(
        server.post("/v1/completions", &chat)["usage"]["completion_tokens"],
        4
    );
    assert!(server.child.try_wait().unwrap().is_none());
}

fn embeddings(server: &Server) {
    let golden = golden("embedder");
    let texts = golden["texts"].as_array().unwrap();
    let ask = |input: &Value| {
        server.post(
            "/v1/embeddings",
            &json!({"model": "embedder", "input": input}),
        )
    };
    let together = ask(&golden["texts"]);
    assert_eq!(together["object"], "list");
    for (index, text) in texts.iter().enumerate() {
        let entry = &together["data"][index];
        assert_eq!(entry["index"], index);
        let vector = numbers(&entry["embedding"]);
        let what = format!("{text}");
        assert_close(&vector, &numbers(&golden["vectors"][index]), &what);
        assert_eq!(
            ask(text)["data"][0]["embedding"],
            entry["embedding"],
            "alone and together"
        );
    }
    assert_eq!(
        ask(&json!(vec![&texts[0]; 100]))["data"]
            .as_array()
            .unwrap()
            .len(),
        100
    );
    // Token ids are taken as they are.
    let ids = json!({"model": "embedder", "input": [[2, 5, 3], [2, 3]]});
    let answer = server.post("/v1/embeddings", &ids);
    assert_eq!(answer["usage"]["prompt_tokens"], 5);
    let cut = json!({"model": "embedder", "input": "a", "dimensions": 3});
    let cut = server.post("/v1/embeddings", &cut);
    let vector = numbers(&cut["data"][0]["embedding"]);
    assert_eq!(vector.len(), 3);
    assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-6);
    assert!(
        cut["warnings"][0]
            .as_str()
            .unwrap()
            .contains("first 3 of 20"),
        "{cut}"
    );
    let base64 = json!({"model": "embedder", "input": "a", "encoding_format": "base64"});
    let text = server.post("/v1/embeddings", &base64);
    assert_eq!(
        text["data"][0]["embedding"].as_str().unwrap().len(),
        (20 * 4_usize).div_ceil(3) * 4
    );
}

fn pairs(server: &Server) {
    let golden = golden("reranker");
    let logits = numbers(&golden["logits"]);
    let body = json!({"model": "reranker", "query": golden["query"],
        "documents": golden["texts"], "return_documents": true});
    for route in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let answer = server.post(route, &body);
        let results = answer["results"].as_array().unwrap();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        for (result, &index) in results.iter().zip(&order) {
            assert_eq!(result["index"], index);
            assert_eq!(result["document"]["text"], golden["texts"][index]);
            assert_close(
                &[result["logit"].as_f64().unwrap()],
                &[logits[index]],
                "logit",
            );
            let score = result["relevance_score"].as_f64().unwrap();
            assert_close(&[score], &[1.0 / (1.0 + (-logits[index]).exp())], "score");
        }
    }
    let top =
        json!({"model": "reranker", "query": "a", "documents": ["x", {"text": "y"}], "top_n": 1});
    assert_eq!(
        server.post("/v1/rerank", &top)["results"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let score = json!({"model": "reranker", "text_1": golden["query"], "text_2": golden["texts"]});
    let scores = server.post("/v1/score", &score);
    for (index, &logit) in logits.iter().enumerate() {
        assert_close(
            &[scores["data"][index]["logit"].as_f64().unwrap()],
            &[logit],
            "score",
        );
    }
    // A model for vectors scores by the angle.
    let score = json!({"model": "embedder", "text_1": ["a", "b"], "text_2": ["a", "memory"]});
    let scores = server.post("/v1/score", &score);
    let first = scores["data"][0]["score"].as_f64().unwrap();
    assert!((first - 1.0).abs() < 1e-6, "{first}");
    assert!(scores["data"][1]["score"].as_f64().unwrap() < 0.999);
}

fn labels(server: &Server) {
    let wanted = golden("labels");
    let body = json!({"model": "labels", "input": wanted["texts"]});
    let answer = server.post("/v1/classify", &body);
    for (index, entry) in answer["data"].as_array().unwrap().iter().enumerate() {
        let want = softmax(&numbers(&wanted["logits"][index][0]));
        assert_close(&numbers(&entry["probs"]), &want, "shares");
        assert_eq!(entry["scores"][1]["label"], "politics");
        assert_eq!(entry["num_classes"], 3);
        let best = (0..3).max_by(|&a, &b| want[a].total_cmp(&want[b])).unwrap();
        assert_eq!(entry["label"], ["sport", "politics", "weather"][best]);
    }
    let wanted = golden("entities");
    let body = json!({"model": "entities", "input": wanted["texts"]});
    let answer = server.post("/v1/classify", &body);
    for (index, entry) in answer["data"].as_array().unwrap().iter().enumerate() {
        let rows = wanted["logits"][index].as_array().unwrap();
        // The first and the last are around the text.
        let rows = &rows[1..rows.len() - 1];
        let tokens = entry["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), rows.len());
        for (token, row) in tokens.iter().zip(rows) {
            let want = softmax(&numbers(row));
            let best = if want[1] > want[0] {
                ("NAME", want[1])
            } else {
                ("O", want[0])
            };
            assert_eq!(token["label"], best.0);
            assert_close(
                &[token["score"].as_f64().unwrap()],
                &[best.1],
                "a token's label",
            );
        }
    }
}

fn generated_labels(server: &Server) {
    let wanted = golden("chat");
    let mut body = json!({"model": "chat", "input": wanted["texts"], "labels": wanted["labels"],
        "instruction": wanted["instruction"]});
    let answer = server.post("/v1/classify", &body);
    body["label_score"] = json!("mean");
    let by_mean = server.post("/v1/classify", &body);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
    for (index, entry) in answer["data"].as_array().unwrap().iter().enumerate() {
        let logprobs = wanted["logprobs"][index].as_array().unwrap();
        let sums: Vec<f64> = logprobs
            .iter()
            .map(|tokens| numbers(tokens).iter().sum())
            .collect();
        let got = |name: &str| -> Vec<f64> {
            let scores = entry["scores"].as_array().unwrap().iter();
            scores.map(|score| score[name].as_f64().unwrap()).collect()
        };
        assert_close(&got("logprob"), &sums, "log-probabilities");
        assert_close(&got("score"), &softmax(&sums), "shares by sums");
        let means = sums.iter().zip(logprobs);
        #[expect(clippy::cast_precision_loss, reason = "few tokens")]
        let means: Vec<f64> = means
            .map(|(sum, tokens)| sum / tokens.as_array().unwrap().len() as f64)
            .collect();
        let shares = numbers(&by_mean["data"][index]["probs"]);
        assert_close(&shares, &softmax(&means), "shares by means");
        let mass: f64 = sums.iter().map(|sum| sum.exp()).sum();
        assert_close(&[entry["label_mass"].as_f64().unwrap()], &[mass], "mass");
    }
    let alone = json!({"model": "chat", "input": wanted["texts"][3], "labels": wanted["labels"],
        "instruction": wanted["instruction"]});
    let alone = server.post("/v1/classify", &alone);
    assert_eq!(
        alone["data"][0]["scores"], answer["data"][3]["scores"],
        "alone and together"
    );
    // The second time the whole prompt but the labels is found.
    let cached = alone["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached > 0, "{alone}");
}

#[test]
fn the_official_client_reads_vectors() {
    let Some(python) = python() else {
        return;
    };
    let server = Server::start(&path("embedder"), &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/openai_embeddings.py");
    let output = std::process::Command::new(python)
        .arg(script)
        .arg(format!("http://{}/v1", server.address))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The vectors that transformers gives, in single precision, of `fixtures/minilm`.
#[test]
fn minilm_vectors_are_its_references() {
    let Some(model) = real_model("all-minilm-l6-v2") else {
        return;
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/minilm/golden.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let server = Server::start(model.to_str().unwrap(), &[]);
    let ask = |input: &Value| server.post("/v1/embeddings", &json!({"input": input}));
    let together = ask(&golden["texts"]);
    for (index, text) in golden["texts"].as_array().unwrap().iter().enumerate() {
        let got = &together["data"][index]["embedding"];
        let pairs = numbers(got)
            .into_iter()
            .zip(numbers(&golden["vectors"][index]));
        let cosine: f64 = pairs.map(|(got, want)| got * want).sum();
        eprintln!("{cosine:.8} {text:.40}");
        assert!(cosine > 0.999_99, "{text}: {cosine}");
        assert_eq!(
            &ask(text)["data"][0]["embedding"],
            got,
            "alone and together: {text}"
        );
    }
}
