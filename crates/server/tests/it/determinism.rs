//! An answer says what repeats it.

use serde_json::{Value, json};

use crate::support::Client;

const ENDPOINTS: [(&str, &str); 2] = [
    (
        "/v1/chat/completions",
        r#""messages":[{"role":"user","content":"the server"}]"#,
    ),
    ("/v1/completions", r#""prompt":"the server""#),
];
const FINGERPRINT: &str = "forthwith-1.0.0-sha256:0123456789abcdef-f16-64";

async fn ask(client: &Client, endpoint: usize, fields: &str) -> crate::support::Answer {
    let (path, input) = ENDPOINTS[endpoint];
    let json = format!(r#"{{{input},"ignore_eos":true,"max_tokens":20{fields}}}"#);
    client.post(path, &json).await
}

fn text(choice: &Value) -> Value {
    let text = choice
        .get("text")
        .or_else(|| choice["message"].get("content"));
    text.unwrap().clone()
}

#[tokio::test]
async fn the_facts_of_an_answer_repeat_it() {
    let client = Client::new();
    for endpoint in 0..ENDPOINTS.len() {
        let first = ask(&client, endpoint, "").await.json();
        let facts = &first["usage"]["determinism"];
        assert_eq!(
            *facts,
            json!({
                "held": true,
                "seed": 7,
                "version": "1.0.0",
                "weights": "sha256:0123456789abcdef",
                "kv_format": "f16"
            })
        );
        assert_eq!(first["system_fingerprint"], FINGERPRINT);
        let seed = format!(r#","seed":{}"#, facts["seed"]);
        let again = ask(&client, endpoint, &seed).await.json();
        assert_eq!(text(&again["choices"][0]), text(&first["choices"][0]));
        let other = ask(&client, endpoint, r#","seed":8"#).await.json();
        assert_ne!(text(&other["choices"][0]), text(&first["choices"][0]));
        assert_eq!(other["usage"]["determinism"]["seed"], 8);
    }
}

#[tokio::test]
async fn a_stream_says_the_same() {
    let client = Client::new();
    for endpoint in 0..ENDPOINTS.len() {
        let plain = ask(&client, endpoint, r#","n":2"#).await.json();
        let stream = r#","n":2,"stream":true,"stream_options":{"include_usage":true}"#;
        let events = ask(&client, endpoint, stream).await.events();
        assert_eq!(events.last().unwrap()["usage"], plain["usage"]);
        let closing = |event: &&Value| event["choices"][0]["finish_reason"].is_string();
        let ends: Vec<&Value> = events.iter().filter(closing).collect();
        assert_eq!(ends.len(), 2);
        for end in ends {
            assert_eq!(
                (&end["seed"], &end["system_fingerprint"]),
                (&json!(7), &json!(FINGERPRINT))
            );
        }
        let told = events
            .iter()
            .filter(|event| event.get("system_fingerprint").is_some());
        assert_eq!(told.count(), 2, "no other part repeats it");
    }
}
