//! Numbers at and beyond their edges: answered as documented or refused by name, never worse.

use crate::support::{Answer, CONTEXT, Client};

#[tokio::test]
async fn lengths() {
    let client = Client::new();
    let cases = [
        ("/v1/completions", r#""prompt":"the server""#, "max_tokens"),
        (
            "/v1/chat/completions",
            r#""messages":[{"role":"user","content":"the server"}]"#,
            "max_tokens",
        ),
        (
            "/v1/chat/completions",
            r#""messages":[{"role":"user","content":"the server"}]"#,
            "max_completion_tokens",
        ),
    ];
    for (path, input, field) in cases {
        for value in [
            "0",
            "-1",
            "-2147483648",
            "2147483648",
            "9223372036854775807",
            "1e19",
            "1.5",
            "\"8\"",
            "true",
            "[]",
            "63",
        ] {
            let json = format!(r#"{{{input},"{field}":{value}}}"#);
            let error = client.post(path, &json).await.error(400);
            assert_eq!(error["param"], field, "{value}: {error}");
        }
        for (value, completion_tokens) in [("1", 1), ("62", CONTEXT - 2), ("null", CONTEXT - 2)] {
            let json =
                format!(r#"{{{input},"ignore_eos":true,"temperature":0,"{field}":{value}}}"#);
            let answer = client.post(path, &json).await.json();
            assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
            assert_eq!(answer["usage"]["completion_tokens"], completion_tokens);
        }
    }
    let both =
        r#""messages":[{"role":"user","content":"the"}],"max_tokens":1,"max_completion_tokens":2"#;
    client.chat(both).await.error(400);
    client.check_alive().await;
}

#[tokio::test]
async fn prompts_beyond_the_context_name_both_numbers() {
    let client = Client::new();
    for (words, fits) in [
        (62, true),
        (63, true),
        (64, false),
        (65, false),
        (5000, false),
    ] {
        let text = vec!["the"; words].join(" ");
        for stream in [false, true] {
            let fields = format!(r#""prompt":"{text}","max_tokens":1,"stream":{stream}"#);
            let answer = client.complete(&fields).await;
            if fits {
                assert_eq!(answer.status, 200);
                continue;
            }
            let error = answer.error(400);
            assert_eq!(
                (&error["code"], &error["param"]),
                (&"context_length_exceeded".into(), &"prompt".into())
            );
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("has {words} tokens")),
                "{message}"
            );
            assert!(
                message.contains("maximum context length is 64 tokens"),
                "{message}"
            );
        }
        if !fits {
            let messages = format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
            assert_eq!(client.chat(&messages).await.error(400)["param"], "messages");
        }
    }
}

/// A completion with one sampling field.
async fn sample(client: &Client, field: &str, value: &str, more: &str) -> Answer {
    let json = format!(
        r#"{{"prompt":"the server","max_tokens":12,"ignore_eos":true,"seed":5,"{field}":{value}{more}}}"#
    );
    client.post("/v1/completions", &json).await
}

#[tokio::test]
async fn sampling_at_its_edges() {
    let client = Client::new();
    let plain = sample(&client, "user", "null", "").await.completion();
    let greedy = sample(&client, "temperature", "0", "").await.completion();
    assert_ne!(
        plain, greedy,
        "the seed draws something else than the most likely words"
    );
    for (field, value, expected) in [
        ("top_p", "1.0", &plain),
        ("top_p", "0.0", &greedy),
        ("top_p", "1e-30", &greedy),
        ("top_k", "-1", &plain),
        ("top_k", "0", &plain),
        ("top_k", "1", &greedy),
        ("top_k", "49152", &plain),
        ("top_k", "1000000000", &plain),
        ("top_k", "99999999999", &plain),
        ("min_p", "0", &plain),
        ("temperature", "1e-30", &greedy),
        ("temperature", "1", &plain),
        ("temperature", "null", &plain),
    ] {
        let text = sample(&client, field, value, "").await.completion();
        assert_eq!(text, *expected, "{field} {value}");
    }
    let hot = sample(&client, "top_k", "1", r#","temperature":2"#).await;
    assert_eq!(hot.completion(), greedy);
    sample(&client, "min_p", "1", "").await.completion();
    sample(&client, "temperature", "2", "").await.completion();
}

#[tokio::test]
async fn sampling_beyond_its_edges() {
    let client = Client::new();
    for (field, values) in [
        ("top_p", &["1.0000001", "-0.1"][..]),
        ("top_k", &["-5", "1.5"]),
        ("min_p", &["1.1"]),
        ("temperature", &["1e39", "-1", "2.1", "\"1\""]),
        ("repetition_penalty", &["0", "-1"]),
        ("frequency_penalty", &["2.5"]),
        ("presence_penalty", &["-2.5"]),
        ("n", &["0", "17", "1000000", "-1"]),
        ("logprobs", &["21", "1000000000"]),
        ("stop_token_ids", &["[1000000]", "[-1]"]),
        ("echo", &["1"]),
    ] {
        for value in values {
            let error = sample(&client, field, value, "").await.error(400);
            let param = error["param"].as_str().unwrap_or_default();
            assert!(param.starts_with(field), "{field} {value}: {error}");
        }
    }
    for word in ["NaN", "Infinity", "-Infinity", "1e400"] {
        sample(&client, "temperature", word, "").await.error(400);
    }
    client.check_alive().await;
}

#[tokio::test]
async fn stop_strings() {
    let client = Client::new();
    let long = format!("\"{}\"", "x".repeat(513));
    let many = format!("[{}]", vec!["\"x\""; 17].join(","));
    for stop in [
        "\"\"",
        "[\"a\",\"\"]",
        "7",
        "[7]",
        "{}",
        long.as_str(),
        many.as_str(),
    ] {
        let error = client
            .complete(&format!(r#""prompt":"the","stop":{stop}"#))
            .await
            .error(400);
        assert!(
            error["param"].as_str().unwrap().starts_with("stop"),
            "{error}"
        );
    }
    let most = format!("[{}]", vec!["\"x\""; 16].join(","));
    let answer = client
        .complete(&format!(r#""prompt":"the","stop":{most}"#))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test]
async fn top_logprobs_of_a_chat() {
    let client = Client::new();
    let question = r#""messages":[{"role":"user","content":"the server"}],"max_tokens":1"#;
    for fields in [
        r#""top_logprobs":21,"logprobs":true"#,
        r#""top_logprobs":3"#,
        r#""top_logprobs":3,"logprobs":false"#,
        r#""top_logprobs":-1,"logprobs":true"#,
    ] {
        let error = client
            .chat(&format!("{question},{fields}"))
            .await
            .error(400);
        assert_eq!(error["param"], "top_logprobs");
    }
    let answer = client.chat(&format!(r#"{question},"logprobs":3"#)).await;
    assert_eq!(answer.error(400)["param"], "logprobs");
}
