//! Prompts that are repeated before their answers, and the log-probabilities of both.

use serde_json::{Value, json};

use crate::bytes::noisy;
use crate::prompts::{both, choice};
use crate::support::Client;

/// How lm-evaluation-harness reads an answer: the slice, the sum and the comparison are its own.
fn likelihood(choice: &Value, context: usize) -> (f64, bool) {
    let logprobs = &choice["logprobs"];
    let list = |name: &str| {
        let list = logprobs[name].as_array().unwrap();
        list[context..list.len() - 1].to_vec()
    };
    let own: Vec<f64> = list("token_logprobs")
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect();
    let best = list("top_logprobs").into_iter().map(|top| {
        let top = top.as_object().unwrap().values();
        top.map(|value| value.as_f64().unwrap())
            .fold(f64::MIN, f64::max)
    });
    let greedy = own
        .iter()
        .zip(best)
        .all(|(own, best)| own.to_bits() == best.to_bits());
    (own.iter().sum(), greedy)
}

#[tokio::test]
async fn an_evaluation_harness_finds_likelihoods_where_it_looks() {
    let client = Client::new();
    // The server streams the, and never streams reads.
    let (context, likely, unlikely) = ("[0,7]", "8,0", "8,2");
    for (continuation, greedy) in [(likely, true), (unlikely, false)] {
        let prompt = format!("{},{continuation}]", context.trim_end_matches(']'));
        let fields =
            format!(r#""prompt":[{prompt}],"max_tokens":1,"logprobs":1,"seed":1234,"echo":true"#);
        let answer = both(&client, &fields).await;
        let (sum, is_greedy) = likelihood(choice(&answer), 2);
        assert_eq!(is_greedy, greedy, "{answer}");
        let asked = format!(r#""prompt":[{prompt}],"max_tokens":1,"prompt_logprobs":1"#);
        let places = client.complete(&asked).await.json();
        let places = choice(&places)["prompt_logprobs"].clone();
        let ids = continuation.split(',').enumerate();
        let expected: f64 = ids
            .map(|(at, id)| places[2 + at][id]["logprob"].as_f64().unwrap())
            .sum();
        assert!((sum - expected).abs() < 1e-12);
    }
}

/// The last one is what the harness cuts off: it must be the answer's, though it has no text.
#[tokio::test]
async fn an_end_token_is_listed_behind_a_repeated_prompt() {
    let client = noisy();
    for ends in [
        r#""allowed_token_ids":[98],"stop_token_ids":[98]"#,
        r#""allowed_token_ids":[258]"#,
    ] {
        let fields =
            format!(r#""prompt":[90,97,95,90],"max_tokens":1,"logprobs":1,"echo":true,{ends}"#);
        let answer = both(&client, &fields).await;
        let logprobs = &choice(&answer)["logprobs"];
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(
                logprobs[name].as_array().unwrap().len(),
                5,
                "{name} {answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_repeated_prompt_is_listed_before_its_answer() {
    let client = noisy();
    for prompt in [
        r#""añb""#,
        r#"["añb","c"]"#,
        "[97,195,177,98]",
        "[[97,98],[99]]",
    ] {
        for n in [1, 2] {
            let fields =
                format!(r#""prompt":{prompt},"n":{n},"max_tokens":3,"logprobs":2,"echo":true"#);
            let answer = both(&client, &fields).await;
            for choice in answer["choices"].as_array().unwrap() {
                let logprobs = &choice["logprobs"];
                let all = |name: &str| logprobs[name].as_array().unwrap().clone();
                let (tokens, values) = (all("tokens"), all("token_logprobs"));
                assert_eq!(
                    (&values[0], &all("top_logprobs")[0]),
                    (&Value::Null, &Value::Null)
                );
                assert!(values[1..].iter().all(Value::is_number));
                let text = choice["text"].as_str().unwrap();
                let offsets = all("text_offset");
                assert_eq!((tokens.len(), tokens.len()), (values.len(), offsets.len()));
                assert!(offsets.is_sorted_by(|a, b| a.as_u64() <= b.as_u64()));
                for (token, offset) in tokens.iter().zip(offsets) {
                    let token = token.as_str().unwrap();
                    let rest: String = text
                        .chars()
                        .skip(usize::try_from(offset.as_u64().unwrap()).unwrap())
                        .collect();
                    let broken = token.starts_with("bytes:") || rest.contains('\u{fffd}');
                    assert!(broken || rest.starts_with(token), "{token:?} {text:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_prompt_alone_is_told_with_no_answer() {
    let client = noisy();
    let fields = r#""prompt":["abc",[100]],"n":2,"max_tokens":0,"echo":true"#;
    let plain = both(&client, fields).await;
    let listed = both(&client, &format!(r#"{fields},"logprobs":1"#)).await;
    for answer in [&plain, &listed] {
        let choices = answer["choices"].as_array().unwrap();
        let texts: Vec<&str> = choices
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["abc", "abc", "d", "d"]);
        assert!(
            choices
                .iter()
                .all(|choice| choice["finish_reason"] == "length")
        );
        assert_eq!(answer["usage"]["completion_tokens"], 0);
        assert_eq!(answer["usage"]["prompt_tokens"], 4);
    }
    assert_eq!(choice(&plain)["logprobs"], Value::Null);
    let logprobs = &choice(&listed)["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c"]));
    assert_eq!(
        listed["choices"][2]["logprobs"]["token_logprobs"],
        json!([null])
    );
    // The same numbers as before an answer.
    let longer = client
        .complete(r#""prompt":"abc","max_tokens":2,"echo":true,"logprobs":1"#)
        .await
        .json();
    let values = choice(&longer)["logprobs"]["token_logprobs"]
        .as_array()
        .unwrap();
    assert_eq!(
        values[..3],
        logprobs["token_logprobs"].as_array().unwrap()[..]
    );
}
