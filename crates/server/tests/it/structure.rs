//! Answers of a form that the request asks for. The toy's tokens are words with a space before them, and
//! it knows few ways on from each; its full stop ends an answer.

use serde_json::{Value, json};

use crate::support::Client;

async fn answer(client: &Client, fields: &Value) -> Value {
    let mut body = json!({ "model": "toy", "prompt": "the", "max_tokens": 20 });
    let all = body.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    let answer = client.post("/v1/completions", &body.to_string()).await;
    let mut json = answer.json();
    json["status"] = answer.status.as_u16().into();
    json
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn an_answer_is_one_of_the_choices_and_ends_there() {
    let client = Client::new();
    let choices = [" gpu reads", " weights", " server streams the gpu"];
    for temperature in [0.0, 1.5] {
        for seed in 0..10 {
            let fields = json!({ "choice": choices, "temperature": temperature, "seed": seed });
            let answer = answer(&client, &fields).await;
            assert!(choices.contains(&text(&answer)), "{answer}");
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            let tokens = text(&answer).split_whitespace().count();
            assert_eq!(answer["usage"]["completion_tokens"], tokens);
        }
    }
}

#[tokio::test]
async fn an_answer_that_may_end_or_go_on_ends_with_the_models_end() {
    let client = Client::new();
    let fields = json!({ "regex": "( the| gpu| reads| writes| answer)+", "temperature": 1.0, "n": 8, "seed": 1, "max_tokens": 40 });
    let answer = answer(&client, &fields).await;
    let mut ended = 0;
    for choice in answer["choices"].as_array().unwrap() {
        let words = choice["text"].as_str().unwrap().split_whitespace();
        let words: Vec<&str> = words.collect();
        assert!(!words.is_empty());
        assert!(
            words
                .iter()
                .all(|word| ["the", "gpu", "reads", "writes", "answer", "."].contains(word)),
            "{choice}"
        );
        ended += usize::from(choice["finish_reason"] == "stop");
    }
    assert!(ended > 0, "{answer}");
}

#[tokio::test]
async fn a_stream_says_what_the_plain_answer_says_and_stops_still_cut() {
    let client = Client::new();
    for fields in [
        json!({ "choice": [" gpu reads the weights"], "logprobs": 2 }),
        json!({ "choice": [" gpu reads the weights"], "stop": "reads" }),
        json!({ "choice": [" gpu reads the weights"], "max_tokens": 2 }),
    ] {
        let plain = answer(&client, &fields).await;
        let mut body = json!({ "model": "toy", "prompt": "the", "max_tokens": 20, "stream": true });
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let stream = client.post("/v1/completions", &body.to_string()).await;
        let chunks = stream.events();
        let said: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(said, text(&plain), "{fields}");
        let mut ends = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["finish_reason"]);
        let end = ends.rfind(|end| !end.is_null()).unwrap();
        assert_eq!(end, &plain["choices"][0]["finish_reason"]);
    }
}

#[tokio::test]
async fn logprobs_are_those_of_the_model_not_of_the_form() {
    let client = Client::new();
    let free = answer(
        &client,
        &json!({ "max_tokens": 1, "logprobs": 5, "temperature": 0 }),
    )
    .await;
    let held = json!({ "max_tokens": 1, "logprobs": 5, "choice": [" server", " answer"], "temperature": 0 });
    let held = answer(&client, &held).await;
    let top = |answer: &Value| answer["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    assert_eq!(top(&free), top(&held));
}

#[tokio::test]
async fn what_cannot_be_is_the_requests_fault() {
    let client = Client::new();
    for (fields, param, code) in [
        (json!({ "regex": "(" }), "regex", "invalid_form"),
        (json!({ "choice": [] }), "choice", "invalid_form"),
        (
            json!({ "regex": "a".repeat(70_000) }),
            "regex",
            "form_too_large",
        ),
        (
            json!({ "json_schema": { "not": {} } }),
            "json_schema",
            "invalid_form",
        ),
        (
            json!({ "choice": ["a"], "ignore_eos": true }),
            "ignore_eos",
            "",
        ),
        (json!({ "choice": ["a"], "regex": "a" }), "choice", ""),
        (
            json!({ "structured_outputs": { "xml": "a" } }),
            "structured_outputs.xml",
            "",
        ),
    ] {
        let answer = answer(&client, &fields).await;
        assert_eq!(answer["status"], 400, "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
        if !code.is_empty() {
            assert_eq!(answer["error"]["code"], code, "{answer}");
        }
    }
    let body = json!({ "prompt": "gpu" }).to_string();
    let gpu = client.post("/tokenize", &body).await.json()["tokens"][0].clone();
    let fields = json!({ "choice": [" server"], "allowed_token_ids": [gpu] });
    let impossible = answer(&client, &fields).await;
    assert_eq!(impossible["status"], 400, "{impossible}");
    assert_eq!(impossible["error"]["code"], "impossible_answer");
    let fields = json!({ "choice": [" server"] });
    assert_eq!(text(&answer(&client, &fields).await), " server");
}

#[tokio::test]
async fn a_form_that_ends_before_min_tokens_says_so() {
    let client = Client::new();
    let fields = json!({ "choice": [" gpu reads"], "min_tokens": 5 });
    let answer = answer(&client, &fields).await;
    assert_eq!(text(&answer), " gpu reads");
    assert!(
        answer["warnings"][0]
            .as_str()
            .unwrap()
            .contains("min_tokens"),
        "{answer}"
    );
}
