//! Seeds, choices, and the edges of every sampling field.

use super::smollm2;
use crate::server::{Server, greedy, joined};
use serde_json::{Value, json};

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
    }
    let texts = choices
        .iter()
        .map(|choice| choice["text"].as_str().unwrap());
    texts.map(str::to_owned).collect()
}

fn colours(more: &Value) -> Value {
    let mut body = json!({"prompt": "A short list of colours:", "max_tokens": 16});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn smollm2_repeats_seeded_choices() {
    let Some(mut server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let ask = |body: &Value| texts(&server.post("/v1/completions", body));
    let seeded = colours(&json!({"n": 4, "seed": 977, "temperature": 1.0}));
    let first = ask(&seeded);
    assert_eq!(first.len(), 4);
    assert!(first.iter().any(|text| *text != first[0]), "{first:?}");
    assert_eq!(ask(&seeded), first);
    let events = server.events("/v1/completions", &seeded);
    let streamed: Vec<String> = (0..4).map(|index| joined(&events, index)).collect();
    assert_eq!(streamed, first);

    let alone = ask(&colours(&json!({"temperature": 0})));
    let equal = ask(&colours(&json!({"n": 3, "temperature": 0})));
    assert_eq!(equal, vec![alone[0].clone(); 3]);

    let unseeded = colours(&json!({"n": 4, "temperature": 1.0}));
    assert_ne!(ask(&unseeded), ask(&unseeded));
    // The seed that an answer tells repeats it.
    let told = server.post("/v1/completions", &unseeded);
    let again = colours(&json!({"n": 4, "temperature": 1.0, "seed": told["seed"]}));
    assert_eq!(ask(&again), texts(&told));
    server.check_alive();
}

#[test]
fn seeds_are_whole_numbers_of_64_bits() {
    let mut server = Server::start("toy", &[]);
    let body = |seed: &str| format!(r#"{{"prompt": "the", "max_tokens": 1, "seed": {seed}}}"#);
    for seed in [
        "0",
        "-1",
        "2147483648",
        "9007199254740993",
        "-9223372036854775808",
        "18446744073709551615",
    ] {
        let answer = server.send("POST", "/v1/completions", &body(seed));
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(
            answer.body.contains(&format!("\"seed\":{seed}")),
            "{}",
            answer.body
        );
    }
    for seed in [
        "18446744073709551616",
        "-9223372036854775809",
        "1.5",
        "\"7\"",
        "true",
        "[]",
    ] {
        let error = server.refused("/v1/completions", &body(seed));
        assert_eq!(error["param"], "seed", "{error}");
    }
    server.check_alive();
}

#[test]
fn smollm2_samples_at_the_edges() {
    let Some(mut server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let base = r#""prompt": "Numbers: 4 8", "max_tokens": 12, "seed": 5, "logprobs": 2"#;
    let ask = |more: &str| {
        let answer = server.send("POST", "/v1/completions", &format!("{{{base}{more}}}"));
        assert_eq!(answer.status, 200, "{more}: {}", answer.body);
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let choice = &answer["choices"][0];
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert!(logprobs.iter().all(Value::is_f64), "{more}: {choice}");
        choice["text"].as_str().unwrap().to_owned()
    };
    let plain = ask("");
    for same in [
        r#", "top_p": 1.0"#,
        r#", "top_p": 1"#,
        r#", "top_k": -1"#,
        r#", "top_k": 0"#,
        r#", "top_k": 49152"#,
        r#", "top_k": 1000000000"#,
        r#", "min_p": 0"#,
        r#", "temperature": 1, "top_p": null, "top_k": null, "min_p": null"#,
    ] {
        assert_eq!(ask(same), plain, "{same}");
    }
    let likeliest = server.text(&greedy("Numbers: 4 8", 12));
    for same in [
        r#", "top_p": 0.0"#,
        r#", "top_p": 1e-30"#,
        r#", "top_k": 1, "temperature": 2"#,
        r#", "min_p": 1"#,
        r#", "temperature": 1e-30"#,
        r#", "temperature": -0.0"#,
    ] {
        assert_eq!(ask(same), likeliest, "{same}");
    }
    assert_ne!(ask(r#", "temperature": 2"#), likeliest);
    for (field, values) in [
        ("top_p", ["1.0000001", "-0.1", "2"]),
        ("top_k", ["-5", "1.5", "\"1\""]),
        ("min_p", ["1.1", "-0.1", "\"0\""]),
        ("temperature", ["1e39", "-1", "2.1"]),
    ] {
        for value in values {
            let body = format!(r#"{{{base}, "{field}": {value}}}"#);
            let error = server.refused("/v1/completions", &body);
            assert_eq!(error["param"], field, "{error}");
        }
        for word in ["NaN", "Infinity", "-Infinity", "1e400"] {
            server.refused(
                "/v1/completions",
                &format!(r#"{{{base}, "{field}": {word}}}"#),
            );
        }
    }
    server.check_alive();
}
