//! Chat requests and their answers, word for word.

use crate::support::{Client, STRICT, Shape, rounded};

const QUESTION: &str = r#""messages":[{"role":"user","content":"the server"}]"#;

#[tokio::test]
async fn a_plain_answer() {
    let answer = Client::new()
        .chat(&format!(r#"{QUESTION},"max_tokens":6"#))
        .await;
    insta::assert_json_snapshot!(answer.json());
}

#[tokio::test]
async fn a_stream_with_usage() {
    let fields = format!(
        r#"{QUESTION},"max_completion_tokens":4,"stream":true,"stream_options":{{"include_usage":true}}"#
    );
    let answer = Client::new().chat(&fields).await;
    assert_eq!(answer.headers["cache-control"], "no-cache");
    insta::assert_snapshot!(answer.text);
}

#[tokio::test]
async fn a_refusal() {
    let answer = Client::new()
        .post(
            "/v1/chat/completions",
            &format!(r#"{{{QUESTION},"temperature":3}}"#),
        )
        .await;
    insta::assert_json_snapshot!(answer.json());
}

#[tokio::test]
async fn log_probabilities_of_a_chat() {
    let fields = format!(r#"{QUESTION},"max_tokens":2,"logprobs":true,"top_logprobs":2"#);
    let answer = Client::new().chat(&fields).await;
    insta::assert_json_snapshot!(rounded(answer.json()["choices"][0]["logprobs"].clone()));
}

#[tokio::test]
async fn the_end_token_is_counted_and_not_shown() {
    // An unknown word is followed by the hidden end alone.
    let answer = Client::new()
        .chat(r#""messages":[{"role":"user","content":"zebra"}],"logprobs":true"#)
        .await;
    let json = answer.json();
    assert_eq!(json["choices"][0]["message"]["content"], "");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(
        json["choices"][0]["logprobs"]["content"],
        serde_json::json!([])
    );
    assert_eq!(json["usage"]["completion_tokens"], 1);
}

#[tokio::test]
async fn every_shape_of_message_content_is_answered() {
    let client = Client::new();
    let part = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let call = r#"[{"id":"c1","type":"function","function":{"name":"lamp","arguments":"{}"}}]"#;
    let good = [
        r#"{"role":"user","content":"the server"}"#.to_owned(),
        format!(r#"{{"role":"user","content":[{}]}}"#, part("the server")),
        format!(
            r#"{{"role":"user","content":[{},{}]}}"#,
            part("the "),
            part("server")
        ),
        r#"{"role":"system","content":"the server"}"#.to_owned(),
        r#"{"role":"developer","content":"the server"}"#.to_owned(),
        r#"{"role":"user","content":""},{"role":"user","content":"the server"}"#.to_owned(),
        format!(
            r#"{{"role":"user","content":"the gpu"}},{{"role":"assistant","content":null,"tool_calls":{call}}},
               {{"role":"tool","tool_call_id":"c1","content":"the server"}}"#
        ),
    ];
    for messages in good {
        let answer = client
            .chat(&format!(r#""messages":[{messages}],"max_tokens":2"#))
            .await;
        assert_eq!(answer.status, 200, "{messages}: {}", answer.text);
        let json = answer.json();
        assert_eq!(
            json["choices"][0]["message"]["content"], " streams the",
            "{messages}"
        );
    }
    client.check_alive().await;
}

#[tokio::test]
async fn broken_shapes_of_messages_are_refused_by_name() {
    let client = Client::new();
    let bad = [
        (
            "messages[0].content",
            r#""messages":[{"role":"user","content":[]}]"#,
        ),
        (
            "messages[0].content",
            r#""messages":[{"role":"user","content":null}]"#,
        ),
        ("messages[0].content", r#""messages":[{"role":"user"}]"#),
        (
            "messages[0].content",
            r#""messages":[{"role":"user","content":7}]"#,
        ),
        (
            "messages[0].content",
            r#""messages":[{"role":"user","content":{"type":"text","text":"x"}}]"#,
        ),
        (
            "messages[0].content[0]",
            r#""messages":[{"role":"user","content":[{"type":"odour","text":"x"}]}]"#,
        ),
        (
            "messages[0].content[0]",
            r#""messages":[{"role":"user","content":[{"type":"text"}]}]"#,
        ),
        (
            "messages[0].content[0]",
            r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1:9/a.png"}}]}]"#,
        ),
        ("messages", r#""messages":[]"#),
        ("messages", r#""messages":null"#),
        ("messages", r#""messages":"hello""#),
        (
            "messages[0].tool_call_id",
            r#""messages":[{"role":"tool","content":"x"}]"#,
        ),
        (
            "messages[0].role",
            r#""messages":[{"role":"wizard","content":"x"}]"#,
        ),
        (
            "messages[0].role",
            r#""messages":[{"role":"","content":"x"}]"#,
        ),
    ];
    for (param, fields) in bad {
        let error = client.chat(fields).await.error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    client.chat(r#""max_tokens":1"#).await.error(400);
    client.check_alive().await;
}

#[tokio::test]
async fn a_strict_template_speaks_for_itself() {
    let client = Client::with(Some(STRICT), Shape::default());
    let twice =
        r#""messages":[{"role":"user","content":"the"},{"role":"user","content":"server"}]"#;
    for stream in ["", r#","stream":true"#] {
        let error = client.chat(&format!("{twice}{stream}")).await.error(400);
        assert_eq!(
            error["message"],
            "Conversation roles must alternate user/assistant"
        );
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn a_model_without_a_template_does_not_chat() {
    let client = Client::with(None, Shape::default());
    let error = client.chat(QUESTION).await.error(400);
    assert_eq!(error["code"], "no_chat_template");
    client.check_alive().await;
}
