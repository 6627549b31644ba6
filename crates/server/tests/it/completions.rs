//! Completion requests and their answers.

use serde_json::json;

use crate::support::{Client, rounded};

#[tokio::test]
async fn a_plain_answer() {
    let answer = Client::new()
        .complete(r#""prompt":"the server","max_tokens":6"#)
        .await;
    insta::assert_json_snapshot!(answer.json());
}

#[tokio::test]
async fn a_stream() {
    let fields = r#""model":"toy","prompt":"gpu","max_tokens":3,"stream":true"#;
    insta::assert_snapshot!(Client::new().complete(fields).await.text);
}

#[tokio::test]
async fn a_refusal() {
    let answer = Client::new().complete(r#""prompt":[[1,2],[999999]]"#).await;
    insta::assert_json_snapshot!(answer.json());
}

#[tokio::test]
async fn every_shape_of_prompt_is_answered() {
    let client = Client::new();
    let words = client
        .complete(r#""prompt":"the server","max_tokens":3"#)
        .await;
    assert_eq!(words.completion(), " streams the gpu");
    // Ids in order of first appearance: the 0, gpu 1, reads 2, … server 7.
    for prompt in [r#"["the server"]"#, "[0,7]", "[[0,7]]"] {
        let answer = client
            .complete(&format!(r#""prompt":{prompt},"max_tokens":3"#))
            .await;
        assert_eq!(answer.json(), words.json(), "{prompt}");
    }
    let several = client
        .complete(r#""prompt":["the server","gpu"],"n":2,"max_tokens":2"#)
        .await
        .json();
    let texts: Vec<_> = several["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (choice["index"].clone(), choice["text"].clone()))
        .collect();
    let expected = [" streams the", " streams the", " reads the", " reads the"];
    for (index, (seen, text)) in texts.iter().enumerate() {
        assert_eq!((seen, text), (&json!(index), &json!(expected[index])));
    }
    assert_eq!(several["usage"]["prompt_tokens"], 3);
    assert_eq!(several["usage"]["completion_tokens"], 8);
}

#[tokio::test]
async fn broken_prompts_are_refused_whole() {
    let client = Client::new();
    for prompt in [
        r#""""#,
        r#"[""]"#,
        r#"["","the"]"#,
        "[]",
        "[[]]",
        "[[],[1]]",
        "null",
        "7",
        "[1,\"a\"]",
        "[1.5]",
        "[-1]",
        "[99999999999]",
        "{}",
        "[true]",
        "[null]",
    ] {
        let error = client
            .complete(&format!(r#""prompt":{prompt},"max_tokens":4"#))
            .await
            .error(400);
        assert!(
            error["param"].as_str().unwrap().starts_with("prompt"),
            "{prompt}: {error}"
        );
    }
    client.complete(r#""max_tokens":4"#).await.error(400);
    let many = vec!["\"the\""; 65].join(",");
    client
        .complete(&format!(r#""prompt":[{many}]"#))
        .await
        .error(400);
    client.check_alive().await;
}

#[tokio::test]
async fn echo_repeats_the_prompt_as_it_was_written() {
    let client = Client::new();
    let prompt = "the\\u0000 \\r\\n\\t  e\\u0301 🧭 server";
    let fields = format!(r#""prompt":"{prompt}","echo":true,"max_tokens":2"#);
    let plain = client.complete(&fields).await.completion();
    assert_eq!(plain, "the\0 \r\n\t  e\u{301} 🧭 server streams the");
    let stream = client.complete(&format!(r#"{fields},"stream":true"#)).await;
    let streamed = stream.deltas().concat();
    assert_eq!(streamed, plain);
    let tokens = client
        .complete(r#""prompt":[0,7],"echo":true,"max_tokens":1"#)
        .await;
    assert_eq!(tokens.completion(), "the server streams");
}

#[tokio::test]
async fn log_probabilities_are_finite_and_listed_once() {
    let fields = r#""prompt":"the","max_tokens":2,"logprobs":3"#;
    let answer = Client::new().complete(fields).await;
    insta::assert_json_snapshot!(rounded(answer.json()["choices"][0]["logprobs"].clone()));
}

#[tokio::test]
async fn stop_strings_are_found_dropped_and_named() {
    let client = Client::new();
    let whole = client
        .complete(r#""prompt":"the server","max_tokens":8"#)
        .await
        .completion();
    for (stop, text, reason) in [
        (r#""gpu""#, " streams the ", "stop"),
        (r#"["never","e g"]"#, " streams th", "stop"),
        (r#""gpu §§""#, whole.as_str(), "length"),
        ("null", whole.as_str(), "length"),
        ("[]", whole.as_str(), "length"),
    ] {
        let fields = format!(r#""prompt":"the server","max_tokens":8,"stop":{stop}"#);
        let plain = client.complete(&fields).await;
        assert_eq!(plain.completion(), text, "{stop}");
        assert_eq!(plain.json()["choices"][0]["finish_reason"], reason);
        let stream = client.complete(&format!(r#"{fields},"stream":true"#)).await;
        let streamed = stream.deltas().concat();
        assert_eq!(streamed, text, "{stop}");
        assert_eq!(
            stream.events().last().unwrap()["choices"][0]["finish_reason"],
            reason
        );
    }
    let answer = client
        .complete(r#""prompt":"the server","stop":["x","gpu"]"#)
        .await
        .json();
    assert_eq!(answer["choices"][0]["stop_reason"], "gpu");
    // " streams", " the" and the token that completed the stop string.
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    let answer = client
        .complete(r#""prompt":"the server","stop_token_ids":[1]"#)
        .await
        .json();
    assert_eq!(answer["choices"][0]["stop_reason"], 1);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let id = answer["choices"][0]["stop_reason"].clone();
    let word = client
        .post("/detokenize", &format!(r#"{{"tokens":[{id}]}}"#))
        .await
        .json();
    let word = word["prompt"].as_str().unwrap();
    let without = answer["choices"][0]["text"].as_str().unwrap();
    assert!(!without.contains(word), "{without:?} has {word:?}");
    for (stops, ending) in [
        (r#""stop_token_ids":[1]"#, word),
        (r#""stop":["x","gp"]"#, "gp"),
    ] {
        let fields = format!(r#""prompt":"the server",{stops},"include_stop_str_in_output":true"#);
        let shown = client.complete(&fields).await.json();
        let text = shown["choices"][0]["text"].as_str().unwrap().to_owned();
        assert!(text.ends_with(ending), "{text:?} ends with {ending:?}");
        let streamed = client.complete(&format!(r#"{fields},"stream":true"#)).await;
        assert_eq!(streamed.deltas().concat(), text);
    }
}

#[tokio::test]
async fn seeds_repeat_and_choices_differ() {
    let client = Client::new();
    let ask = |fields: &str| {
        format!(
            r#"{{"prompt":"the","max_tokens":16,"ignore_eos":true,"temperature":1,"n":4{fields}}}"#
        )
    };
    let texts = |answer: &serde_json::Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        choices
            .iter()
            .map(|choice| choice["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = client
        .post("/v1/completions", &ask(r#","seed":977"#))
        .await
        .json();
    let second = client
        .post("/v1/completions", &ask(r#","seed":977"#))
        .await
        .json();
    assert_eq!(texts(&first), texts(&second));
    assert!(texts(&first).iter().any(|text| *text != texts(&first)[0]));
    assert_eq!(first["seed"], 977);
    // The drawn seed is told, and repeats the answer.
    let drawn = client.post("/v1/completions", &ask("")).await.json();
    assert_eq!(drawn["seed"], 7);
    let again = client
        .post("/v1/completions", &ask(r#","seed":7"#))
        .await
        .json();
    assert_eq!(texts(&drawn), texts(&again));
    for seed in [
        "0",
        "-1",
        "2147483648",
        "9007199254740993",
        "18446744073709551615",
    ] {
        let answer = client
            .post("/v1/completions", &ask(&format!(r#","seed":{seed}"#)))
            .await;
        assert!(
            answer.text.contains(&format!(r#""seed":{seed}"#)),
            "{}",
            answer.text
        );
    }
    for seed in [
        "18446744073709551616",
        "1.5",
        "\"7\"",
        "-9223372036854775809",
    ] {
        let answer = client
            .post("/v1/completions", &ask(&format!(r#","seed":{seed}"#)))
            .await;
        assert_eq!(answer.error(400)["param"], "seed");
    }
}

#[tokio::test]
async fn a_prompt_that_was_seen_is_found_again_under_the_same_salt() {
    let client = Client::new();
    let prompt = ["the gpu reads the weights ."; 7].join(" ");
    let ask = |salt: &str| format!(r#""prompt":"{prompt}","max_tokens":2{salt}"#);
    let cached = |answer: &serde_json::Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    let first = client.complete(&ask("")).await.json();
    let second = client.complete(&ask("")).await.json();
    assert_eq!((cached(&first), cached(&second)), (json!(0), json!(32)));
    assert_eq!(first["choices"], second["choices"]);
    let salt = r#","cache_salt":"a""#;
    let third = client.complete(&ask(salt)).await.json();
    let fourth = client.complete(&ask(salt)).await.json();
    assert_eq!((cached(&third), cached(&fourth)), (json!(0), json!(32)));
}

#[tokio::test]
async fn where_a_request_stands_is_checked_and_changes_no_answer() {
    let client = Client::new();
    let plain = client
        .complete(r#""prompt":"the server","max_tokens":3"#)
        .await;
    for fields in [
        r#""priority":-3"#,
        r#""priority":7,"max_queue_time":10.5"#,
        r#""max_ttft_ms":60000"#,
    ] {
        let body = format!(r#""prompt":"the server","max_tokens":3,{fields}"#);
        assert_eq!(
            client.complete(&body).await.completion(),
            plain.completion(),
            "{fields}"
        );
    }
    for (field, value) in [
        ("priority", "3000000000"),
        ("priority", "1.5"),
        ("max_queue_time", "-1"),
        ("max_ttft_ms", "-1"),
        ("cache_salt", "7"),
    ] {
        let body = format!(r#"{{"prompt":"the","{field}":{value}}}"#);
        let answer = client.post("/v1/completions", &body).await;
        assert_eq!(answer.json()["error"]["param"], field, "{value}");
    }
}
