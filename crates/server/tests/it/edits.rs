//! What requests change about the logits.

use crate::support::Client;
use serde_json::{Value, json};

async fn id_of(client: &Client, word: &str) -> u64 {
    let body = json!({ "prompt": word }).to_string();
    let answer = client.post("/tokenize", &body).await.json();
    answer["tokens"][0].as_u64().unwrap()
}

async fn text(client: &Client, fields: &str) -> String {
    let answer = client
        .complete(&format!(r#""prompt":"the",{fields}"#))
        .await;
    assert_eq!(answer.status, 200, "{fields}: {}", answer.text);
    let text = answer.json()["choices"][0]["text"].clone();
    text.as_str().unwrap().to_owned()
}

/// The most likely first words after the prompt, the first of them the one that is chosen. The toy makes
/// all other words impossible.
async fn first_words(client: &Client) -> Vec<String> {
    let fields = r#""prompt":"the","max_tokens":1,"logprobs":5"#;
    let answer = client.complete(fields).await.json();
    let top = &answer["choices"][0]["logprobs"]["top_logprobs"][0];
    let mut words: Vec<(&String, f64)> = top
        .as_object()
        .unwrap()
        .iter()
        .map(|(word, logprob)| (word, logprob.as_f64().unwrap()))
        .collect();
    words.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert!(words.len() > 2, "{answer}");
    let words = words.into_iter();
    words.map(|(word, _)| word.trim().to_owned()).collect()
}

#[tokio::test]
async fn a_bias_moves_a_token_and_allowed_ones_are_the_only_ones() {
    let client = Client::new();
    let words = first_words(&client).await;
    let (second, third) = (
        id_of(&client, &words[1]).await,
        id_of(&client, &words[2]).await,
    );
    let said = |word: &String| format!(" {word}");
    assert_eq!(text(&client, r#""max_tokens":1"#).await, said(&words[0]));
    let biased = format!(r#""max_tokens":1,"logit_bias":{{"{second}":100}}"#);
    assert_eq!(text(&client, &biased).await, said(&words[1]));
    let allowed = format!(r#""max_tokens":1,"allowed_token_ids":[{third}]"#);
    assert_eq!(text(&client, &allowed).await, said(&words[2]));
    let both = format!(
        r#""max_tokens":1,"allowed_token_ids":[{second},{third}],"logit_bias":{{"{third}":50,"{second}":-50}}"#
    );
    assert_eq!(text(&client, &both).await, said(&words[2]));
    for seed in 0..20 {
        let fields = format!(
            r#"{{"prompt":"the","seed":{seed},"max_tokens":1,"allowed_token_ids":[{third},{second}]}}"#
        );
        let answer = client.post("/v1/completions", &fields).await.completion();
        assert!(
            [said(&words[1]), said(&words[2])].contains(&answer),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn log_probabilities_stay_those_of_the_model() {
    let client = Client::new();
    let second = id_of(&client, &first_words(&client).await[1]).await;
    let fields = |more: &str| format!(r#""prompt":"the","max_tokens":1,"logprobs":3{more}"#);
    let plain = client.complete(&fields("")).await.json();
    let bias = format!(r#","logit_bias":{{"{second}":100}}"#);
    let biased = client.complete(&fields(&bias)).await.json();
    let top = |answer: &Value| answer["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    assert_eq!(top(&plain), top(&biased));
    assert!(plain["choices"][0]["text"] != biased["choices"][0]["text"]);
}

#[tokio::test]
async fn an_answer_does_not_end_before_its_least_length() {
    let client = Client::new();
    let words = first_words(&client).await;
    let first = id_of(&client, &words[0]).await;
    let stop = format!(r#""stop_token_ids":[{first}],"max_tokens":1"#);
    assert_eq!(text(&client, &stop).await, "");
    assert_eq!(
        text(&client, &format!(r#"{stop},"min_tokens":0"#)).await,
        ""
    );
    let least = format!(r#"{stop},"min_tokens":1"#);
    assert_eq!(text(&client, &least).await, format!(" {}", words[1]));
    let by_llama = client
        .complete(r#""prompt":"the","n_predict":6"#)
        .await
        .json();
    assert_eq!(by_llama["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn words_are_kept_out_and_runs_occur_once() {
    let client = Client::new();
    let words = first_words(&client).await;
    let without = format!(r#""max_tokens":1,"bad_words":["{}"]"#, words[0]);
    assert_eq!(text(&client, &without).await, format!(" {}", words[1]));
    let two = format!(
        r#""max_tokens":1,"bad_words":["{}"," {}"]"#,
        words[0], words[1]
    );
    assert_eq!(text(&client, &two).await, format!(" {}", words[2]));
    let plain = text(&client, r#""max_tokens":5"#).await;
    let once = text(&client, r#""max_tokens":5,"no_repeat_ngram_size":2"#).await;
    let runs = |text: &str| -> Vec<String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).map(|run| run.join(" ")).collect()
    };
    let repeats = |text: &str| {
        let mut all = runs(text);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        count - all.len()
    };
    assert!(repeats(&format!("the{plain}")) > 0, "{plain}");
    assert_eq!(repeats(&format!("the{once}")), 0, "{once}");
}

#[tokio::test]
async fn impossible_changes_are_refused() {
    let client = Client::new();
    for (fields, param) in [
        (r#""logit_bias":{"x":1}"#, "logit_bias"),
        (r#""logit_bias":{"1":101}"#, "logit_bias"),
        (r#""logit_bias":{"1":1,"01":1}"#, "logit_bias"),
        (r#""logit_bias":{"99999999":1}"#, "logit_bias"),
        (r#""logit_bias":{"1":"high"}"#, "logit_bias.1"),
        (r#""allowed_token_ids":[]"#, "allowed_token_ids"),
        (r#""allowed_token_ids":[99999999]"#, "allowed_token_ids"),
        (r#""min_tokens":9,"max_tokens":8"#, "min_tokens"),
        (r#""min_tokens":-1"#, "min_tokens"),
        (r#""bad_words":[""]"#, "bad_words"),
        (r#""bad_words":[" "]"#, "bad_words"),
        (r#""bad_words":"x""#, "bad_words"),
        (r#""no_repeat_ngram_size":-1"#, "no_repeat_ngram_size"),
        (r#""n_predict":-2"#, "n_predict"),
        (r#""n_predict":0"#, "n_predict"),
        (r#""n_predict":4,"max_tokens":5"#, "n_predict"),
        (r#""n_predict":-1,"max_tokens":5"#, "n_predict"),
        (
            r#""min_tokens":1,"stop_token_ids":[5],"allowed_token_ids":[5]"#,
            "allowed_token_ids",
        ),
    ] {
        let answer = client
            .complete(&format!(r#""prompt":"the",{fields}"#))
            .await;
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text);
        assert_eq!(
            answer.json()["error"]["param"],
            param,
            "{fields}: {}",
            answer.text
        );
    }
    client.check_alive().await;
}
