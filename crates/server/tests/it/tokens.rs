//! Text to tokens and back, and what a call would run.

use crate::support::{Client, PLAIN, Shape};
use serde_json::{Value, json};

const THINKING: &str = "{% for m in messages %}{{ m.content }} {% endfor %}\
    {% if add_generation_prompt %}the {% endif %}{% if enable_thinking %}gpu {% endif %}";

#[tokio::test]
async fn a_text_becomes_the_tokens_of_a_completion() {
    let client = Client::new();
    let answer = client
        .post("/tokenize", r#"{"prompt":"the server streams"}"#)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let tokens = answer.json();
    assert_eq!(
        (tokens["count"].as_u64(), tokens["max_model_len"].as_u64()),
        (Some(3), Some(64))
    );
    assert!(tokens.get("token_strs").is_none());
    let usage = client
        .complete(r#""prompt":"the server streams","max_tokens":1"#)
        .await;
    assert_eq!(usage.json()["usage"]["prompt_tokens"], 3);
    let render = client
        .post(
            "/v1/completions/render",
            r#"{"prompt":"the server streams"}"#,
        )
        .await
        .json();
    assert_eq!(render["prompts"][0]["token_ids"], tokens["tokens"]);
    let back = json!({"tokens": tokens["tokens"]}).to_string();
    let text = client.post("/detokenize", &back).await.json();
    assert_eq!(
        text,
        json!({"prompt": "the server streams", "content": "the server streams"})
    );
    let by_id = json!({"prompt": tokens["tokens"], "temperature": 0, "max_tokens": 4}).to_string();
    let (by_id, by_text) = (
        client.post("/v1/completions", &by_id).await.json(),
        client
            .complete(r#""prompt":"the server streams","max_tokens":4"#)
            .await
            .json(),
    );
    assert_eq!(by_id["choices"][0]["text"], by_text["choices"][0]["text"]);
}

#[tokio::test]
async fn tokens_are_spelled_for_both_kinds_of_clients() {
    let client = Client::new();
    let body = r#"{"content":"the server","with_pieces":true,"return_token_strs":true}"#;
    let answer = client.post("/tokenize", body).await.json();
    assert_eq!(answer["token_strs"], json!(["the", "server"]));
    let pieces: Vec<&Value> = answer["tokens"].as_array().unwrap().iter().collect();
    assert_eq!(pieces[1]["piece"], "server");
    assert!(pieces[1]["id"].is_u64());
}

#[tokio::test]
async fn a_conversation_is_worded_and_not_run() {
    let client = Client::with(Some(THINKING), Shape::default());
    let prompt = |fields: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"a server"}}]{fields}}}"#);
        let client = &client;
        async move { client.post("/apply-template", &body).await }
    };
    for (fields, text) in [
        ("", "a server the "),
        (r#","add_generation_prompt":false"#, "a server "),
        (r#","continue_final_message":true"#, "a server"),
        (r#","enable_thinking":true"#, "a server the gpu "),
        (
            r#","chat_template_kwargs":{"enable_thinking":true}"#,
            "a server the gpu ",
        ),
        (
            r#","chat_template_kwargs":{"enable_thinking":false},"enable_thinking":false"#,
            "a server the ",
        ),
    ] {
        let answer = prompt(fields).await;
        assert_eq!(answer.json()["prompt"], text, "{fields}: {}", answer.text);
    }
    for (fields, param) in [
        (
            r#","chat_template_kwargs":{"mood":1}"#,
            "chat_template_kwargs.mood",
        ),
        (
            r#","chat_template_kwargs":{"tools":1}"#,
            "chat_template_kwargs.tools",
        ),
        (
            r#","chat_template_kwargs":{"enable_thinking":true},"enable_thinking":false"#,
            "enable_thinking",
        ),
        (
            r#","continue_final_message":true,"add_generation_prompt":true"#,
            "continue_final_message",
        ),
    ] {
        let answer = prompt(fields).await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param, "{fields}");
    }
    let body = r#"{"messages":[{"role":"user","content":"a server"}]}"#;
    let render = client
        .post("/v1/chat/completions/render", body)
        .await
        .json();
    let tokens = client.post("/tokenize", body).await.json();
    assert_eq!(render["prompts"][0]["token_ids"], tokens["tokens"]);
    let usage = client
        .chat(r#""messages":[{"role":"user","content":"a server"}],"max_tokens":1"#)
        .await;
    assert_eq!(usage.json()["usage"]["prompt_tokens"], tokens["count"]);
}

#[tokio::test]
async fn a_rendered_call_says_what_it_would_run() {
    let client = Client::with(Some(PLAIN), Shape::default());
    let body = r#"{"messages":[{"role":"user","content":"the server"}],"temperature":0.5,"n":2,
        "stop":["x"],"stop_token_ids":[3],"seed":5,"max_tokens":9}"#;
    let answer = client.post("/v1/chat/completions/render", body).await;
    insta::assert_json_snapshot!(answer.json());
    let two = r#"{"prompt":["the server","the gpu reads"],"n":3}"#;
    let answer = client.post("/v1/completions/render", two).await.json();
    let prompts = answer["prompts"].as_array().unwrap();
    let texts: Vec<&Value> = prompts.iter().map(|prompt| &prompt["text"]).collect();
    assert_eq!(texts, ["the server", "the gpu reads"]);
    assert!(answer["sampling"].get("seed").is_none());
    // Nothing ran.
    assert!(
        client
            .get("/metrics")
            .await
            .text
            .contains("vllm:generation_tokens_total")
    );
}

#[tokio::test]
async fn wrong_bodies_are_refused_by_field() {
    let client = Client::with(None, Shape::default());
    for (path, body, param) in [
        ("/tokenize", "{}", "prompt"),
        ("/tokenize", r#"{"prompt":"a","content":"b"}"#, "prompt"),
        ("/tokenize", r#"{"prompt":7}"#, "prompt"),
        ("/tokenize", r#"{"prompt":"a","messages":[]}"#, "prompt"),
        (
            "/tokenize",
            r#"{"messages":[{"role":"user","content":"x"}],"add_special":true}"#,
            "add_special",
        ),
        (
            "/tokenize",
            r#"{"prompt":"a","add_special":true,"add_special_tokens":false}"#,
            "add_special",
        ),
        (
            "/tokenize",
            r#"{"messages":[{"role":"user","content":"x"}]}"#,
            "messages",
        ),
        ("/detokenize", r#"{"tokens":[1,99999999]}"#, "tokens"),
        ("/detokenize", r#"{"tokens":[-1]}"#, "tokens[0]"),
        ("/detokenize", "{}", "tokens"),
        ("/apply-template", r#"{"messages":[]}"#, "messages"),
        ("/v1/completions/render", r#"{"prompt":""}"#, "prompt"),
        (
            "/v1/completions/render",
            r#"{"prompt":"a","temperature":9}"#,
            "temperature",
        ),
    ] {
        let answer = client.post(path, body).await;
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text);
        let param_of = answer.json()["error"]["param"].clone();
        assert!(
            param_of == param || param_of.is_null() && body == "{}",
            "{path} {body}: {}",
            answer.text
        );
    }
}
