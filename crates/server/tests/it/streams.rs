//! Streams say what plain answers say, and end by the book.

use serde_json::Value;

use crate::support::Client;

const ENDPOINTS: [(&str, &str); 2] = [
    (
        "/v1/chat/completions",
        r#""messages":[{"role":"user","content":"the server"}]"#,
    ),
    ("/v1/completions", r#""prompt":"the server""#),
];

async fn ask(client: &Client, (path, input): (&str, &str), fields: &str) -> crate::support::Answer {
    let json = format!(r#"{{{input},"temperature":0,"max_tokens":12{fields}}}"#);
    client.post(path, &json).await
}

fn text_of(choice: &Value) -> &str {
    let text = choice
        .get("text")
        .or_else(|| choice["delta"].get("content"));
    text.and_then(Value::as_str).unwrap_or_default()
}

#[tokio::test]
async fn usage_comes_last_and_only_when_asked_for() {
    let client = Client::new();
    for endpoint in ENDPOINTS {
        for n in [1, 3] {
            let count = format!(r#","n":{n}"#);
            let plain = ask(&client, endpoint, &count).await.json();
            for (options, asked) in [
                (
                    r#","stream":true,"stream_options":{"include_usage":true}"#,
                    true,
                ),
                (
                    r#","stream":true,"stream_options":{"include_usage":false}"#,
                    false,
                ),
                (r#","stream":true,"stream_options":null"#, false),
                (r#","stream":true"#, false),
            ] {
                let fields = format!("{count}{options}");
                let mut events = ask(&client, endpoint, &fields).await.events();
                if asked {
                    let last = events.pop().unwrap();
                    assert_eq!(last["choices"], serde_json::json!([]));
                    assert_eq!(last["usage"], plain["usage"]);
                }
                check_chunks(&events, &plain, n);
            }
        }
    }
}

fn check_chunks(events: &[Value], plain: &Value, n: usize) {
    let mut texts = vec![String::new(); n];
    let mut reasons = vec![Vec::new(); n];
    for event in events {
        assert_eq!(
            (&event["id"], &event["created"]),
            (&events[0]["id"], &events[0]["created"])
        );
        assert!(event.get("usage").is_none_or(Value::is_null), "{event}");
        let choices = event["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 1);
        let index = usize::try_from(choices[0]["index"].as_u64().unwrap()).unwrap();
        assert!(
            reasons[index].is_empty(),
            "nothing follows the end of a choice"
        );
        texts[index].push_str(text_of(&choices[0]));
        reasons[index].extend(choices[0]["finish_reason"].as_str());
    }
    for (index, text) in texts.iter().enumerate() {
        let choice = &plain["choices"][index];
        let whole = choice.get("text").unwrap_or(&choice["message"]["content"]);
        assert_eq!(whole, text.as_str());
        assert_eq!(reasons[index], [choice["finish_reason"].as_str().unwrap()]);
    }
}

#[tokio::test]
async fn stream_options_without_a_stream_are_refused() {
    let client = Client::new();
    for endpoint in ENDPOINTS {
        for stream in ["", r#","stream":false"#] {
            let fields = format!(r#"{stream},"stream_options":{{"include_usage":true}}"#);
            let error = ask(&client, endpoint, &fields).await.error(400);
            assert_eq!(error["param"], "stream_options");
        }
    }
}

#[tokio::test]
async fn a_chat_stream_begins_with_the_role_of_each_choice() {
    let events = ask(&Client::new(), ENDPOINTS[0], r#","n":2,"stream":true"#)
        .await
        .events();
    for (index, event) in events[..2].iter().enumerate() {
        assert_eq!(event["choices"][0]["index"], index);
        let delta = serde_json::json!({ "role": "assistant", "content": "" });
        assert_eq!(event["choices"][0]["delta"], delta);
    }
    assert!(
        events[2..]
            .iter()
            .all(|event| event["choices"][0]["delta"].get("role").is_none())
    );
}

#[tokio::test]
async fn logprobs_of_a_stream_are_those_of_the_plain_answer() {
    let client = Client::new();
    let fields = r#","logprobs":2,"stop":"e gp""#;
    let plain = ask(&client, ENDPOINTS[1], fields).await.json();
    let events = ask(&client, ENDPOINTS[1], &format!(r#"{fields},"stream":true"#))
        .await
        .events();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"][list].as_array());
        let streamed: Vec<Value> = parts.flatten().cloned().collect();
        assert_eq!(
            Value::from(streamed),
            plain["choices"][0]["logprobs"][list],
            "{list}"
        );
    }
}
