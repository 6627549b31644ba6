//! Answers of a form: characters of several tokens, calls of tools, hostile patterns (A01, A11, A12).

use super::{repeats, smollm2, strict_gemma3_270m, together};
use crate::server::{Server, greedy};
use forthwith_core::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

/// The chat model, and the base model with a template.
fn servers() -> impl Iterator<Item = Server> {
    [smollm2(&["--context", "512"]), strict_gemma3_270m()]
        .into_iter()
        .flatten()
}

fn user(max_tokens: u32, more: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Set the lamp in the hall to four."}],
        "temperature": 0, "max_tokens": max_tokens, "seed": 1
    });
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[test]
fn a01_real_models_write_characters_of_a_schema_whole() {
    const TEXT: &str = "海の日 🌊🧭 Żółć ½ 👩‍🔬 é";
    for mut server in servers() {
        let body = user(
            64,
            &json!({"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": {
                "type": "object", "properties": {"t": {"enum": [TEXT]}},
                "required": ["t"], "additionalProperties": false
            }}}}),
        );
        let plain = server.post(CHAT, &body);
        let plain = plain["choices"][0]["message"]["content"].as_str().unwrap();
        let deltas: Vec<String> = server
            .events(CHAT, &body)
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .map(str::to_owned)
            .collect();
        assert_eq!(deltas.concat(), plain);
        assert!(!plain.contains('\u{fffd}'), "{plain}");
        assert!(deltas.len() < plain.len(), "one delta for each byte");
        let read: Value = serde_json::from_str(plain).unwrap();
        assert_eq!(read, json!({"t": TEXT}));
        server.check_alive();
    }
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn lamp() -> Value {
    tool(
        "set_lamp",
        &json!({
            "type": "object",
            "properties": {
                "room": {"type": "string", "enum": ["hall", "attic \"2\"", "küche"]},
                "level": {"type": "integer", "minimum": 0, "maximum": 9}
            },
            "required": ["room", "level"], "additionalProperties": false
        }),
    )
}

fn bell() -> Value {
    let parameters = json!({
        "type": "object", "properties": {"times": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["times"], "additionalProperties": false
    });
    tool("ring_bell", &parameters)
}

/// One call: its id, name and arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// The calls of a plain answer and why it ended.
fn plain_calls(answer: &Value) -> (Vec<Call>, String) {
    let choice = &answer["choices"][0];
    let content = &choice["message"]["content"];
    assert!(content.is_null() || content == "", "{content}");
    let calls = choice["message"]["tool_calls"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let calls = calls.map(|call| {
        assert_eq!(call["type"], "function");
        Call {
            id: text(&call["id"]),
            name: text(&call["function"]["name"]),
            arguments: text(&call["function"]["arguments"]),
        }
    });
    (calls.collect(), text(&choice["finish_reason"]))
}

/// The same of a stream, whose deltas are as the protocol says.
fn streamed_calls(events: &[Value]) -> (Vec<Call>, String) {
    let mut calls = BTreeMap::<u64, Call>::new();
    let mut reason = String::new();
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let content = &choice["delta"]["content"];
        assert!(content.is_null() || content == "", "{choice}");
        if let Some(end) = choice["finish_reason"].as_str() {
            end.clone_into(&mut reason);
        }
        for delta in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = delta["index"].as_u64().expect("an index");
            let function = &delta["function"];
            if let Some(call) = calls.get_mut(&index) {
                assert!(
                    delta.get("id").is_none() && delta.get("type").is_none(),
                    "{delta}"
                );
                assert!(function.get("name").is_none(), "{delta}");
                call.arguments += function["arguments"].as_str().unwrap();
            } else {
                assert_eq!(index, calls.len() as u64, "{delta}");
                assert_eq!(delta["type"], "function");
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let call = Call {
                    id: text(&delta["id"]),
                    name: text(&function["name"]),
                    arguments: text(&function["arguments"]),
                };
                assert!(!call.id.is_empty() && !call.name.is_empty(), "{delta}");
                calls.insert(index, call);
            }
        }
    }
    (calls.into_values().collect(), reason)
}

/// Arguments that the tool's schema allows, or the beginning of some where the answer was cut.
fn check_arguments(call: &Call, cut: bool) {
    let Ok(read) = serde_json::from_str::<Value>(&call.arguments) else {
        assert!(cut, "{call:?}");
        let error = serde_json::from_str::<Value>(&call.arguments).unwrap_err();
        assert!(error.is_eof(), "{call:?}");
        return;
    };
    let fields = read.as_object().unwrap();
    match call.name.as_str() {
        "set_lamp" => {
            assert_eq!(fields.len(), 2, "{call:?}");
            let room = fields["room"].as_str().unwrap();
            assert!(["hall", "attic \"2\"", "küche"].contains(&room), "{call:?}");
            assert!(fields["level"].as_u64().unwrap() <= 9, "{call:?}");
        }
        "ring_bell" => {
            assert_eq!(fields.len(), 1, "{call:?}");
            assert!(
                (1..=3).contains(&fields["times"].as_u64().unwrap()),
                "{call:?}"
            );
        }
        other => panic!("{other} was not declared"),
    }
}

#[test]
fn a11_real_models_stream_calls_by_the_book() {
    let named = json!({"type": "function", "function": {"name": "set_lamp"}});
    for mut server in servers() {
        for (tools, choice, only) in [
            (json!([lamp()]), named.clone(), Some("set_lamp")),
            (json!([bell(), lamp()]), named.clone(), Some("set_lamp")),
            (json!([lamp(), bell()]), json!("required"), None),
        ] {
            let body = user(200, &json!({"tools": tools, "tool_choice": choice}));
            let (plain, reason) = plain_calls(&server.post(CHAT, &body));
            let (streamed, same_reason) = streamed_calls(&server.events(CHAT, &body));
            assert_eq!(reason, same_reason);
            assert!(
                ["tool_calls", "length"].contains(&reason.as_str()),
                "{reason}"
            );
            assert!(!plain.is_empty());
            let unnumbered = |calls: &[Call]| {
                let calls = calls.iter().cloned();
                let calls = calls.map(|call| Call {
                    id: String::new(),
                    ..call
                });
                calls.collect::<Vec<_>>()
            };
            assert_eq!(unnumbered(&plain), unnumbered(&streamed));
            for calls in [&plain, &streamed] {
                let ids: std::collections::BTreeSet<_> =
                    calls.iter().map(|call| &call.id).collect();
                assert_eq!(ids.len(), calls.len(), "{calls:?}");
                for (index, call) in calls.iter().enumerate() {
                    assert!(only.is_none_or(|only| call.name == only), "{call:?}");
                    check_arguments(call, reason == "length" && index + 1 == calls.len());
                }
            }
        }
        a11_refusals(&server);
        server.check_alive();
    }
}

fn a11_refusals(server: &Server) {
    let none = user(24, &json!({"tools": [lamp()], "tool_choice": "none"}));
    let answer = server.post(CHAT, &none);
    assert_eq!(answer["choices"][0]["message"].get("tool_calls"), None);
    let events = server.events(CHAT, &none);
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    assert!(
        deltas
            .into_iter()
            .all(|delta| delta.get("tool_calls").is_none())
    );
    let unknown = json!({"type": "function", "function": {"name": "set_lam"}});
    for more in [
        json!({"tools": [lamp()], "tool_choice": unknown}),
        json!({"tools": [], "tool_choice": "required"}),
        json!({"tool_choice": "required"}),
    ] {
        let error = server.refused(CHAT, &user(24, &more).to_string());
        assert_eq!(error["param"], "tool_choice", "{error}");
    }
}

/// Patterns, and whether they are wrong or not supported; the others are costly.
fn patterns() -> Vec<(String, bool)> {
    let nested = format!("{}a{}", "(".repeat(5000), ")".repeat(5000));
    let long = "a?".repeat(500_000);
    let texts = [
        ("(", true),
        ("[z-a]", true),
        ("*x", true),
        ("(?<=a)b", true),
        ("\\1", true),
        ("a{5,2}", true),
        ("(a+)+$", false),
        ("(x|x|x)*y", false),
        (".{0,100000}", false),
        ("(((([a-z]{1,50}){1,50}){1,50}){1,50})", false),
        (&nested, false),
        (&long, false),
    ];
    texts.map(|(text, wrong)| (text.to_owned(), wrong)).into()
}

/// Every way to send a pattern, and the field that an error names.
fn asking(pattern: &str) -> [(Value, &'static str); 4] {
    let schema = json!({
        "type": "object", "properties": {"p": {"type": "string", "pattern": pattern}},
        "required": ["p"]
    });
    let form = json!({"type": "json_schema", "json_schema": {"name": "p", "schema": schema}});
    [
        (json!({ "response_format": form }), "response_format"),
        (json!({ "regex": pattern }), "regex"),
        (
            json!({"structured_outputs": {"regex": pattern}}),
            "structured_outputs",
        ),
        (
            json!({"tools": [tool("t", &schema)], "tool_choice": "required"}),
            "tools",
        ),
    ]
}

/// Sends all patterns in all ways and returns how long the slowest took.
fn send_patterns(server: &Server) -> Duration {
    let clock = SystemClock::start();
    let mut slowest = Duration::ZERO;
    for (pattern, wrong) in patterns() {
        for (more, field) in asking(&pattern) {
            let start = clock.now();
            let answer = server.send("POST", CHAT, &user(16, &more).to_string());
            slowest = slowest.max(clock.now().saturating_sub(start));
            let shown: String = pattern.chars().take(40).collect();
            let expected: &[u16] = if wrong { &[400] } else { &[200, 400] };
            assert!(
                expected.contains(&answer.status),
                "{shown} as {field}: {} {}",
                answer.status,
                answer.body
            );
            if answer.status == 400 {
                let error = answer.error();
                // What compiles may still cost too much to follow, which the answer tells.
                let followed = !wrong && error["code"] == "impossible_answer";
                let param = error["param"].as_str().unwrap_or_default();
                assert!(
                    followed || param.starts_with(field),
                    "{shown} as {field}: {error}"
                );
            }
            let alive = server.post("/v1/completions", &greedy("The boat", 4));
            assert!(alive["usage"]["completion_tokens"].as_u64().unwrap() > 0);
        }
    }
    slowest
}

/// The pauses between the parts of a stream.
fn pauses(server: &Server, index: usize) -> Vec<Duration> {
    let clock = SystemClock::start();
    let mut body = greedy(&format!("Ship {index} left the harbour and"), 64);
    body["stream"] = json!(true);
    body["ignore_eos"] = json!(true);
    let stream = server.open("POST", "/v1/completions", &body.to_string());
    let mut pauses = Vec::new();
    let mut last = None;
    for line in BufReader::new(stream).lines() {
        if line.unwrap().starts_with("data: {") {
            let now = clock.now();
            let before = last.replace(now);
            pauses.extend(before.map(|before| now.saturating_sub(before)));
        }
    }
    pauses
}

/// What four streams say while `work` runs, over and over.
fn beside<T: Send>(server: &Server, work: impl FnOnce() -> T + Send) -> (T, Vec<Vec<String>>) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|index| {
                let ended = &ended;
                scope.spawn(move || {
                    let body = greedy(&format!("Ship {index} left the harbour and"), 48);
                    let mut texts = Vec::new();
                    while !ended.load(Ordering::Relaxed) || texts.is_empty() {
                        texts.push(server.stream(&body));
                    }
                    texts
                })
            })
            .collect();
        let result = work();
        ended.store(true, Ordering::Relaxed);
        let texts = readers.into_iter().map(|reader| reader.join().unwrap());
        (result, texts.collect())
    })
}

#[test]
fn a12_hostile_patterns_stop_no_real_answer() {
    let Some(mut server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let alone: Vec<String> = (0..4)
        .map(|index| server.stream(&greedy(&format!("Ship {index} left the harbour and"), 48)))
        .collect();
    send_patterns(&server);
    let before = server.resident();
    let (_, streams) = beside(&server, || send_patterns(&server));
    for (texts, alone) in streams.iter().zip(&alone) {
        assert!(
            texts.iter().all(|text| text == alone),
            "{alone:?}: {texts:?}"
        );
    }
    // All in a row, with as many rounds as the test may take (200 requests are the full count).
    let wrong = user(16, &asking("(").map(|(more, _)| more)[0]);
    for _ in 0..repeats(20) {
        server.refused(CHAT, &wrong.to_string());
    }
    if let (Some(before), Some(after)) = (before, server.resident()) {
        assert!(after < before + (100 << 20), "{before} bytes, then {after}");
    }
    server.check_alive();
}

#[test]
#[ignore = "measures time, so it wants a quiet machine"]
fn a12_hostile_patterns_delay_no_real_answer() {
    let Some(server) = smollm2(&["--context", "512"]) else {
        return;
    };
    let measure = || {
        let jobs = (0..4).map(|index| move || index).map(|index| {
            let server = &server;
            move || pauses(server, index())
        });
        let mut all = together(jobs.collect()).concat();
        all.sort_unstable();
        all[all.len() * 99 / 100]
    };
    measure();
    let normal = measure();
    let (slowest, worst) = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| send_patterns(&server));
        let mut worst = Duration::ZERO;
        while !hostile.is_finished() {
            worst = worst.max(measure());
        }
        (hostile.join().unwrap(), worst)
    });
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(worst < 5 * normal, "{worst:?} instead of {normal:?}");
}
