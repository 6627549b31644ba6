//! What answers tell of their prompts: log-probabilities, ids, and what was cut from them.

use serde_json::{Value, json};

use crate::bytes::{noisy, script};
use crate::support::Client;

/// The only choice of an answer.
pub(crate) fn choice(answer: &Value) -> &Value {
    &answer["choices"][0]
}

/// What the parts of a stream say of each choice, joined: texts and lists in their order, all else as
/// it was said last.
fn joined(events: &[Value], choices: usize) -> Vec<Value> {
    let mut all = vec![json!({}); choices];
    for said in events.iter().filter_map(|event| event["choices"].get(0)) {
        let index = usize::try_from(said["index"].as_u64().unwrap()).unwrap();
        let whole = all[index].as_object_mut().unwrap();
        for (name, value) in said.as_object().unwrap() {
            join(whole.entry(name).or_insert(Value::Null), value);
        }
    }
    all
}

fn join(whole: &mut Value, part: &Value) {
    match (whole, part) {
        (_, Value::Null) => {}
        (Value::String(whole), Value::String(part)) => whole.push_str(part),
        (Value::Array(whole), Value::Array(part)) => whole.extend(part.iter().cloned()),
        (Value::Object(whole), Value::Object(part)) => {
            for (name, value) in part {
                join(whole.entry(name).or_insert(Value::Null), value);
            }
        }
        (whole, part) => *whole = part.clone(),
    }
}

/// A plain answer, after the stream of the same call was found to say the same of each choice.
pub(crate) async fn both(client: &Client, fields: &str) -> Value {
    let plain = client.complete(fields).await;
    assert_eq!(plain.status, 200, "{fields}: {}", plain.text);
    let plain = plain.json();
    let choices = plain["choices"].as_array().unwrap();
    let stream = client.complete(&format!(r#"{fields},"stream":true"#)).await;
    assert_eq!(
        joined(&stream.events(), choices.len()),
        *choices,
        "{fields}"
    );
    plain
}

/// Asked about the whole vocabulary of the toy, so that shares sum to one.
#[tokio::test]
async fn prompt_log_probabilities_are_a_distribution() {
    let client = Client::new();
    let fields = r#""prompt":"the server streams the","max_tokens":1,"prompt_logprobs":20"#;
    let answer = both(&client, fields).await;
    let places = choice(&answer)["prompt_logprobs"].as_array().unwrap();
    let ids = client
        .post("/tokenize", r#"{"prompt":"the server streams the"}"#)
        .await
        .json();
    let ids = ids["tokens"].as_array().unwrap();
    assert_eq!(places.len(), ids.len());
    assert_eq!(places[0], Value::Null);
    for (place, id) in places.iter().zip(ids).skip(1) {
        let place = place.as_object().unwrap();
        let logprob = |entry: &Value| entry["logprob"].as_f64().unwrap();
        let sum: f64 = place.values().map(|entry| logprob(entry).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{place:?}");
        let own = &place[&id.to_string()];
        let more = |entry: &&Value| logprob(entry) > logprob(own);
        let rank = own["rank"].as_u64().unwrap();
        assert!(rank > place.values().filter(more).count() as u64);
        assert!(own["decoded_token"].is_string());
    }
}

#[tokio::test]
async fn a_prompt_that_cannot_come_has_a_number_and_a_rank() {
    let client = Client::new();
    let fields = r#""prompt":[0,0,1],"max_tokens":1,"prompt_logprobs":0"#;
    let answer = both(&client, fields).await;
    let places = &choice(&answer)["prompt_logprobs"];
    // "the" never follows itself, and nothing of a lower id does not.
    assert_eq!(places[1]["0"]["logprob"], -9999.0);
    assert!(places[1]["0"]["rank"].as_u64().unwrap() > 1);
    assert_eq!(places[1].as_object().unwrap().len(), 1);
    assert_eq!(places[2]["1"]["decoded_token"], "gpu");
}

#[tokio::test]
async fn what_is_told_of_the_prompt_changes_no_answer() {
    let client = noisy();
    for fields in [
        r#""prompt":["abcdefgh","xyz"],"n":3,"max_tokens":9,"temperature":1,"seed":4"#,
        r#""prompt":"abc","max_tokens":20,"logprobs":3"#,
    ] {
        let body = |more: &str| format!("{{{fields}{more}}}");
        let plain = client.post("/v1/completions", &body("")).await.json();
        let more = r#","prompt_logprobs":7,"return_token_ids":true"#;
        let told = client.post("/v1/completions", &body(more)).await.json();
        let pairs = plain["choices"].as_array().unwrap().iter();
        let mut told = told["choices"].as_array().unwrap().clone();
        assert_eq!(pairs.len(), told.len());
        for (plain, told) in pairs.zip(&mut told) {
            assert_eq!(
                told["prompt_logprobs"].as_array().unwrap().len(),
                told["prompt_token_ids"].as_array().unwrap().len()
            );
            for name in ["prompt_logprobs", "prompt_token_ids", "token_ids"] {
                assert!(told.as_object_mut().unwrap().remove(name).is_some());
            }
            assert_eq!(plain, told);
        }
    }
}

#[tokio::test]
async fn choices_of_a_prompt_tell_the_same_of_it() {
    let client = noisy();
    let fields = r#""prompt":["abcdefgh",[1,2,3]],"n":3,"max_tokens":4,"prompt_logprobs":2,"temperature":1,"seed":3"#;
    let body = format!("{{{fields}}}");
    let answer = client.post("/v1/completions", &body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    for (index, choice) in choices.iter().enumerate() {
        let first = &choices[index / 3 * 3];
        assert_eq!(choice["prompt_logprobs"], first["prompt_logprobs"]);
    }
    let body = format!(r#"{{{fields},"stream":true}}"#);
    let events = client.post("/v1/completions", &body).await.events();
    assert_eq!(joined(&events, 6), *choices);
}

#[tokio::test]
async fn a_conversation_tells_of_its_prompt_once() {
    let client = noisy();
    let fields = r#""messages":[{"role":"user","content":"hi"}],"max_tokens":5,"ignore_eos":true,"n":2,"prompt_logprobs":1,"return_token_ids":true"#;
    let plain = client.chat(fields).await.json();
    let ids = plain["prompt_token_ids"].as_array().unwrap();
    assert_eq!(
        plain["prompt_logprobs"].as_array().unwrap().len(),
        ids.len()
    );
    assert_eq!(plain["usage"]["prompt_tokens"], ids.len());
    for choice in plain["choices"].as_array().unwrap() {
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), 5);
    }
    let stream = client.chat(&format!(r#"{fields},"stream":true"#)).await;
    let events = stream.events();
    for name in ["prompt_token_ids", "prompt_logprobs"] {
        let told: Vec<&Value> = events.iter().filter_map(|event| event.get(name)).collect();
        assert_eq!(told, [&plain[name]], "{name}");
    }
    for (choice, joined) in plain["choices"]
        .as_array()
        .unwrap()
        .iter()
        .zip(joined(&events, 2))
    {
        assert_eq!(joined["token_ids"], choice["token_ids"]);
        assert_eq!(joined["delta"]["content"], choice["message"]["content"]);
    }
}

#[tokio::test]
async fn ids_are_those_of_all_tokens() {
    let client = Client::new();
    let fields = r#""prompt":["the server",[0]],"max_tokens":4"#;
    let both_names = format!(r#"{fields},"return_token_ids":true,"return_tokens":true"#);
    let answer = both(&client, &both_names).await;
    let plain = client.complete(fields).await.json();
    for (choice, plain) in answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .zip(plain["choices"].as_array().unwrap())
    {
        assert_eq!(choice["token_ids"], choice["tokens"]);
        assert_eq!(choice["text"], plain["text"]);
        let body = json!({ "tokens": choice["token_ids"] }).to_string();
        let text = client.post("/detokenize", &body).await.json();
        let said = choice["text"].as_str().unwrap().trim();
        assert_eq!(text["prompt"], said);
    }
    assert_eq!(choice(&answer)["prompt_token_ids"], json!([0, 7]));
    // A token that ends the answer has no text.
    let ended = both(
        &client,
        r#""prompt":"the","stop_token_ids":[1],"return_token_ids":true"#,
    )
    .await;
    assert_eq!(choice(&ended)["text"], "");
    assert_eq!(choice(&ended)["token_ids"], json!([1]));
    let repeated = format!(r#"{both_names},"echo":true,"logprobs":1"#);
    let repeated = both(&client, &repeated).await;
    assert_eq!(choice(&repeated)["token_ids"], choice(&answer)["token_ids"]);
}

#[tokio::test]
async fn tokens_can_be_named_by_their_ids() {
    let client = Client::new();
    let more = r#""return_tokens_as_token_ids":true,"return_token_ids":true"#;
    let fields = format!(r#""prompt":"the","max_tokens":3,"logprobs":2,"echo":true,{more}"#);
    let answer = both(&client, &fields).await;
    let choice = choice(&answer);
    let all = [&choice["prompt_token_ids"], &choice["token_ids"]];
    let ids = all.into_iter().flat_map(|ids| ids.as_array().unwrap());
    let names: Vec<String> = ids.map(|id| format!("token_id:{id}")).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(names));
    let top = choice["logprobs"]["top_logprobs"][1].as_object().unwrap();
    assert!(top.keys().all(|name| name.starts_with("token_id:")));
    let fields = format!(
        r#""messages":[{{"role":"user","content":"the"}}],"max_tokens":2,"logprobs":true,"top_logprobs":1,{more}"#
    );
    let chat = client.chat(&fields).await.json();
    let content = &chat["choices"][0]["logprobs"]["content"][0];
    let name = format!("token_id:{}", chat["choices"][0]["token_ids"][0]);
    assert_eq!(
        (&content["token"], &content["top_logprobs"][0]["token"]),
        (&json!(name), &json!(name))
    );
}

#[tokio::test]
async fn a_prompt_is_cut_only_on_request_and_that_is_said() {
    let client = Client::new();
    let long = vec!["the gpu reads"; 22].join(" ");
    let fields = |more: &str| format!(r#""prompt":"{long}"{more}"#);
    let refused = client.complete(&fields("")).await.error(400);
    assert_eq!(refused["code"], "context_length_exceeded");
    for (more, kept) in [
        (r#","max_tokens":2,"truncate_prompt_tokens":-1"#, 62),
        (r#","truncate_prompt_tokens":-1"#, 63),
        (r#","max_tokens":2,"truncate_prompt_tokens":4"#, 4),
    ] {
        let fields = fields(&format!(r#"{more},"return_token_ids":true,"echo":true"#));
        let answer = both(&client, &fields).await;
        let ids = choice(&answer)["prompt_token_ids"].as_array().unwrap();
        assert_eq!(ids.len(), kept);
        let said = format!(
            "the prompt of 66 tokens was truncated to its last {kept}, as truncate_prompt_tokens asks"
        );
        assert_eq!(answer["warnings"], json!([said]));
        let text = choice(&answer)["text"].as_str().unwrap();
        assert!(
            kept > 4 || text.starts_with("reads the gpu reads"),
            "{text}"
        );
        let stream = client.complete(&format!(r#"{fields},"stream":true"#)).await;
        assert_eq!(stream.events().last().unwrap()["warnings"], json!([said]));
        let body = format!("{{{fields}}}");
        let rendered = client.post("/v1/completions/render", &body).await.json();
        assert_eq!(rendered["warnings"], json!([said]));
    }
    let short = client
        .complete(r#""prompt":"the gpu","max_tokens":1,"truncate_prompt_tokens":2"#)
        .await;
    assert_eq!(short.json().get("warnings"), None);
    let chat = client
        .chat(r#""messages":[{"role":"user","content":"the gpu reads the server"}],"max_tokens":1,"truncate_prompt_tokens":2,"return_token_ids":true"#)
        .await
        .json();
    assert_eq!(chat["prompt_token_ids"].as_array().unwrap().len(), 2);
    assert!(chat["warnings"][0].as_str().unwrap().contains("last 2"));
}

#[tokio::test]
async fn hidden_tokens_are_spelled_on_request() {
    let client = script();
    // A control token is the only one that may come.
    let fields = r#""prompt":"x","max_tokens":3,"allowed_token_ids":[257]"#;
    let noisy = noisy();
    let hidden = noisy.complete(fields).await.completion();
    assert_eq!(hidden, "");
    for spaced in [
        "",
        r#","spaces_between_special_tokens":true"#,
        r#","spaces_between_special_tokens":false"#,
    ] {
        let shown = format!(r#"{fields},"skip_special_tokens":false,"logprobs":1{spaced}"#);
        let answer = both(&noisy, &shown).await;
        let text = choice(&answer)["text"].as_str().unwrap();
        let tokens = choice(&answer)["logprobs"]["tokens"].as_array().unwrap();
        let spelled: Vec<&str> = tokens.iter().map(|token| token.as_str().unwrap()).collect();
        assert_eq!((tokens.len(), spelled.concat()), (3, text.to_owned()));
        assert!(text.contains("<|"), "{text}");
    }
    let stopped = format!(r#"{fields},"skip_special_tokens":false,"stop":["|>"]"#);
    let answer = both(&noisy, &stopped).await;
    assert_eq!(choice(&answer)["stop_reason"], "|>");
    // What ends the answer is part of it only if that is asked for.
    let ends =
        r#""prompt":"x","max_tokens":3,"allowed_token_ids":[258],"skip_special_tokens":false"#;
    assert_eq!(both(&noisy, ends).await["choices"][0]["text"], "");
    let shown = format!(r#"{ends},"include_stop_str_in_output":true"#);
    assert_eq!(
        both(&noisy, &shown).await["choices"][0]["text"],
        "<|im_end|>"
    );
    let goes_on = format!(r#"{ends},"ignore_eos":true"#);
    assert_eq!(
        both(&noisy, &goes_on).await["choices"][0]["text"],
        "<|im_end|>".repeat(3)
    );
    // A prompt of ids is repeated as it is spelled.
    let echo = r#""prompt":[257,97],"max_tokens":1,"echo":true"#;
    assert!(client.complete(echo).await.completion().starts_with('a'));
    let echo = format!(r#"{echo},"skip_special_tokens":false"#);
    assert!(
        client
            .complete(&echo)
            .await
            .completion()
            .starts_with("<|im_start|>a")
    );
}

#[tokio::test]
async fn wrong_values_are_refused_by_name() {
    let client = Client::new();
    for (fields, param) in [
        (r#""prompt_logprobs":21"#, "prompt_logprobs"),
        (r#""prompt_logprobs":-1"#, "prompt_logprobs"),
        (r#""prompt_logprobs":true"#, "prompt_logprobs"),
        (r#""logprobs":21,"echo":true"#, "logprobs"),
        (r#""max_tokens":0"#, "max_tokens"),
        (r#""max_tokens":0,"prompt_logprobs":1"#, "max_tokens"),
        (r#""max_tokens":0,"echo":false"#, "max_tokens"),
        (r#""max_tokens":0,"echo":true,"min_tokens":1"#, "min_tokens"),
        (r#""return_token_ids":1"#, "return_token_ids"),
        (r#""return_tokens":"yes""#, "return_tokens"),
        (
            r#""return_tokens_as_token_ids":true"#,
            "return_tokens_as_token_ids",
        ),
        (r#""truncate_prompt_tokens":0"#, "truncate_prompt_tokens"),
        (r#""truncate_prompt_tokens":-2"#, "truncate_prompt_tokens"),
        (r#""truncate_prompt_tokens":64"#, "truncate_prompt_tokens"),
        (
            r#""truncate_prompt_tokens":-1,"max_tokens":64"#,
            "max_tokens",
        ),
        (r#""skip_special_tokens":"no""#, "skip_special_tokens"),
        (
            r#""spaces_between_special_tokens":1"#,
            "spaces_between_special_tokens",
        ),
    ] {
        let body = format!(r#""prompt":"the",{fields}"#);
        let error = client.complete(&body).await.error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    for (fields, param) in [
        (r#""max_tokens":0"#, "max_tokens"),
        (r#""prompt_logprobs":21"#, "prompt_logprobs"),
        (
            r#""return_tokens_as_token_ids":true"#,
            "return_tokens_as_token_ids",
        ),
    ] {
        let body = format!(r#""messages":[{{"role":"user","content":"the"}}],{fields}"#);
        let error = client.chat(&body).await.error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    client.check_alive().await;
}
