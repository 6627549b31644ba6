//! Filters, penalties and temperatures under the names of llama.cpp's server.

use crate::support::{Client, PLAIN, Shape};
use serde_json::{Value, json};

async fn rendered(client: &Client, fields: &str) -> Value {
    let body = format!(r#"{{"prompt":"the",{fields}}}"#);
    let answer = client.post("/v1/completions/render", &body).await;
    assert_eq!(answer.status, 200, "{fields}: {}", answer.text);
    answer.json()["sampling"].clone()
}

/// Texts of so many seeds, each of some tokens.
async fn texts(client: &Client, fields: &str, seeds: u32) -> Vec<String> {
    let mut texts = Vec::new();
    for seed in 0..seeds {
        let body = format!(r#"{{"prompt":"the","max_tokens":12,"seed":{seed},{fields}}}"#);
        texts.push(client.post("/v1/completions", &body).await.completion());
    }
    texts
}

#[tokio::test]
async fn every_field_reaches_the_engine_and_changes_answers() {
    let client = Client::new();
    let hot = r#""temperature":1.5"#;
    let plain = texts(&client, hot, 12).await;
    for fields in [
        r#""typical_p":0.3"#,
        r#""top_n_sigma":0.5"#,
        r#""xtc_probability":1,"xtc_threshold":0.05"#,
        r#""dry_multiplier":50,"dry_allowed_length":0,"dry_sequence_breakers":[]"#,
        r#""dynatemp_range":1.5"#,
        r#""mirostat":1,"mirostat_tau":0.5"#,
        r#""mirostat":2,"mirostat_tau":0.5,"mirostat_eta":0.5"#,
        r#""repeat_penalty":20"#,
        r#""repeat_penalty":20,"repeat_last_n":8"#,
    ] {
        let changed = texts(&client, &format!("{hot},{fields}"), 12).await;
        assert_ne!(changed, plain, "{fields}");
        let again = texts(&client, &format!("{hot},{fields}"), 12).await;
        assert_eq!(changed, again, "{fields}");
    }
    // Greedy by what XTC leaves, and by all.
    let filters = r#""temperature":0,"xtc_probability":1,"xtc_threshold":0.05,"samplers":"#;
    let first = texts(&client, &format!(r#"{filters}["xtc","temperature"]"#), 1).await;
    let last = texts(&client, &format!(r#"{filters}"tx""#), 1).await;
    assert_eq!(last, texts(&client, r#""temperature":0"#, 1).await);
    assert_ne!(first, last);
}

#[tokio::test]
async fn off_values_change_nothing() {
    let client = Client::new();
    let plain = texts(&client, r#""temperature":1.2"#, 8).await;
    for fields in [
        r#""typical_p":1,"top_n_sigma":-1,"mirostat":0,"mirostat_tau":3,"dynatemp_range":0"#,
        r#""top_n_sigma":0,"xtc_probability":0,"xtc_threshold":0.2,"dynatemp_exponent":2"#,
        r#""xtc_probability":1,"xtc_threshold":0.51,"repeat_penalty":1,"repeat_last_n":-1"#,
        r#""repeat_penalty":2,"repeat_last_n":0,"dry_multiplier":5,"dry_penalty_last_n":0"#,
        r#""dry_multiplier":0,"dry_base":3,"dry_sequence_breakers":["x"],"samplers":"edskypmxt""#,
    ] {
        let fields = format!(r#""temperature":1.2,{fields}"#);
        assert_eq!(texts(&client, &fields, 8).await, plain, "{fields}");
    }
}

#[tokio::test]
async fn fields_are_read_as_they_are_written() {
    let client = Client::new();
    let fields = r#""typical_p":0.5,"top_n_sigma":2,"xtc_probability":0.25,"xtc_threshold":0.125,
        "dry_multiplier":0.5,"dry_base":2,"dry_allowed_length":3,"dry_penalty_last_n":100,
        "dynatemp_range":0.5,"dynatemp_exponent":2,"repeat_penalty":1.5,"repeat_last_n":-1,
        "samplers":["temperature","typical_p","top_n_sigma","xtc","dry","penalties"]"#;
    let sampling = rendered(&client, fields).await;
    for (name, value) in [
        ("typical_p", json!(0.5)),
        ("top_n_sigma", json!(2.0)),
        ("xtc_probability", json!(0.25)),
        ("xtc_threshold", json!(0.125)),
        ("dry_multiplier", json!(0.5)),
        ("dry_base", json!(2.0)),
        ("dry_allowed_length", json!(3)),
        ("dry_penalty_last_n", json!(100)),
        ("dynatemp_range", json!(0.5)),
        ("dynatemp_exponent", json!(2.0)),
        ("repeat_penalty", json!(1.5)),
        ("repeat_last_n", json!(-1)),
        (
            "samplers",
            json!([
                "temperature",
                "typ_p",
                "top_n_sigma",
                "xtc",
                "dry",
                "penalties"
            ]),
        ),
    ] {
        assert_eq!(sampling[name], value, "{name}");
    }
    let usual = rendered(&client, r#""mirostat":2"#).await;
    assert_eq!(usual["mirostat"], 2);
    assert_eq!(usual["mirostat_tau"], 5.0);
    assert_eq!(usual["repeat_last_n"], 64);
    assert_eq!(usual["dry_penalty_last_n"], -1);
    assert_eq!(usual["dry_base"], 1.75);
    // One penalty under two names is that penalty once.
    let both = rendered(&client, r#""repeat_penalty":1.5,"repetition_penalty":1.5"#).await;
    assert_eq!(both["repeat_penalty"], 1.0);
    assert_eq!(both["repetition_penalty"], 1.5);
}

#[tokio::test]
async fn a_breaker_ends_what_dry_follows() {
    let client = Client::new();
    let dry = r#""temperature":0,"dry_multiplier":50,"dry_allowed_length":1"#;
    let usual = texts(&client, dry, 1).await;
    let plain = texts(&client, r#""temperature":0"#, 1).await;
    assert_ne!(usual, plain);
    // Every token of the toy has one of these letters, or it does not come.
    let letters = r#"["a","e","i","o","u","y","p","t","s","n","r","l","d","g","c"]"#;
    let broken = format!(r#"{dry},"dry_sequence_breakers":{letters}"#);
    assert_eq!(texts(&client, &broken, 1).await, plain);
}

#[tokio::test]
async fn ranges_and_contradictions_are_refused_by_field() {
    let client = Client::new();
    for (fields, param) in [
        (r#""typical_p":1.1"#, "typical_p"),
        (r#""typical_p":"x""#, "typical_p"),
        (r#""top_n_sigma":-2"#, "top_n_sigma"),
        (r#""xtc_probability":1.1"#, "xtc_probability"),
        (r#""xtc_threshold":-0.1"#, "xtc_threshold"),
        (r#""dry_multiplier":-1"#, "dry_multiplier"),
        (r#""dry_base":0.5"#, "dry_base"),
        (r#""dry_allowed_length":-1"#, "dry_allowed_length"),
        (r#""dry_penalty_last_n":-2"#, "dry_penalty_last_n"),
        (r#""dry_sequence_breakers":[""]"#, "dry_sequence_breakers"),
        (r#""dry_sequence_breakers":"x""#, "dry_sequence_breakers"),
        (r#""dynatemp_range":2.1"#, "dynatemp_range"),
        (r#""dynatemp_exponent":-1"#, "dynatemp_exponent"),
        (r#""mirostat":3"#, "mirostat"),
        (r#""mirostat_tau":-1"#, "mirostat_tau"),
        (r#""mirostat_eta":2"#, "mirostat_eta"),
        (r#""repeat_penalty":0"#, "repeat_penalty"),
        (r#""repeat_last_n":-2"#, "repeat_last_n"),
        (r#""samplers":"z""#, "samplers"),
        (r#""samplers":["top_k","top_k"]"#, "samplers"),
        (r#""samplers":["best"]"#, "samplers"),
        // Contradictions.
        (r#""mirostat":2,"top_k":40"#, "top_k"),
        (r#""mirostat":2,"typical_p":0.9"#, "typical_p"),
        (r#""mirostat":1,"dynatemp_range":0.1"#, "dynatemp_range"),
        (r#""mirostat":1,"samplers":"t""#, "samplers"),
        (r#""samplers":"kt","top_p":0.9"#, "top_p"),
        (r#""samplers":[],"temperature":0.5"#, "temperature"),
        (r#""samplers":"t","dry_multiplier":1"#, "dry_multiplier"),
        (
            r#""repeat_penalty":1.1,"repetition_penalty":1.2"#,
            "repeat_penalty",
        ),
        (
            r#""repeat_penalty":1.1,"repetition_penalty":1.1,"repeat_last_n":64"#,
            "repeat_penalty",
        ),
    ] {
        let body = format!(r#"{{"prompt":"the",{fields}}}"#);
        let answer = client.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param, "{fields}");
    }
    client.check_alive().await;
}

#[tokio::test]
async fn conversations_have_the_same_fields() {
    let client = Client::with(Some(PLAIN), Shape::default());
    let body = r#"{"messages":[{"role":"user","content":"the"}],"typical_p":0.5,"mirostat":2}"#;
    let answer = client.post("/v1/chat/completions", body).await;
    assert_eq!(answer.json()["error"]["param"], "typical_p");
}
