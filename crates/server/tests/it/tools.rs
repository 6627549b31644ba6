//! Calls of tools and reasoning, over a vocabulary of bytes: once with a model that says what it is told to,
//! once with one that says anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use forthwith_core::clock::ManualClock;
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::units::{BlockId, Blocks, Tokens};
use forthwith_models::hash_model::{HashCapacity, HashModel};
use serde_json::{Value, json};

use crate::bytes::{END, VOCAB, tokenizer};
use crate::support::{Client, Gate, Shape, served};

const TEMPLATE: &str = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}\
    {% for c in m.tool_calls %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>\
    {% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
const THINKING: &str =
    "{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}<think>\n";
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

/// Says a text after a prompt of so many tokens, then ends, as far as it may.
struct Says {
    text: &'static str,
    after: usize,
}

impl Executor for Says {
    fn vocab(&self) -> usize {
        VOCAB as usize
    }

    fn kv_geometry(&self) -> KvGeometry {
        KvGeometry {
            block_size: Tokens::new(16),
            block_bytes: forthwith_core::units::Bytes::ZERO,
            blocks: Blocks::new(256),
        }
    }

    fn max_step_tokens(&self) -> Tokens {
        Tokens::new(64)
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        let positions = input
            .segments
            .iter()
            .flat_map(|segment| segment.position..segment.position + segment.tokens);
        let positions: Vec<usize> = positions.collect();
        logits.clear();
        for &row in input.output_rows {
            let at = (positions[row] + 1).saturating_sub(self.after);
            let said = self.text.as_bytes().get(at);
            let next = said.map_or(END as usize, |&byte| byte.into());
            let start = logits.len();
            logits.resize(start + VOCAB as usize, 0.0);
            logits[start + next] = 20.0;
        }
        Ok(())
    }

    fn copy_block(&mut self, _: BlockId, _: BlockId) {}
}

fn over(executor: Box<dyn Executor>, template: &str) -> Client {
    let shape = Shape {
        context: 2048,
        ..Shape::default()
    };
    let clock = Arc::new(ManualClock::default());
    let model = served(
        "bytes",
        executor,
        (tokenizer(), Some(template)),
        shape,
        clock,
    );
    Client::over(model, Arc::new(Gate::default()))
}

/// A client whose model answers this conversation with a text.
async fn saying(text: &'static str, template: &str, fields: &Value) -> Client {
    let probe = over(Box::new(Says { text, after: 0 }), template);
    let rendered = probe
        .post("/v1/chat/completions/render", &body(fields).to_string())
        .await;
    let prompt = rendered.json()["prompts"][0]["token_ids"]
        .as_array()
        .map(Vec::len);
    let after = prompt.unwrap_or_else(|| panic!("{}", rendered.text));
    over(Box::new(Says { text, after }), template)
}

fn anything(seed: u64) -> Client {
    let capacity = HashCapacity {
        block_size: Tokens::new(16),
        blocks: Blocks::new(512),
        max_step_tokens: Tokens::new(64),
    };
    let model = HashModel { vocab: VOCAB, seed };
    over(Box::new(model.executor(capacity)), TEMPLATE)
}

fn body(fields: &Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Hi" }],
        "temperature": 0,
        "max_tokens": 1200
    });
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body
}

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "set_lamp", "parameters": {
            "type": "object",
            "properties": {
                "room": { "type": "string", "enum": ["hall", "attic \"2\"", "küche"] },
                "level": { "type": "integer", "minimum": 0, "maximum": 9 }
            },
            "required": ["room", "level"],
            "additionalProperties": false
        } } },
        { "type": "function", "function": { "name": "ring" } }
    ])
}

/// The choices of an answer: plain and streamed are checked to be the same, ids aside.
async fn choices(client: &Client, fields: &Value) -> Vec<Value> {
    let body = body(fields);
    let plain = client.post("/v1/chat/completions", &body.to_string()).await;
    assert_eq!(plain.status, 200, "{}", plain.text);
    let plain = plain.json();
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = client
        .post("/v1/chat/completions", &streamed.to_string())
        .await
        .events();
    let mut joined: BTreeMap<u64, Value> = BTreeMap::new();
    for choice in events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap())
    {
        let index = choice["index"].as_u64().unwrap();
        let whole = joined
            .entry(index)
            .or_insert_with(|| json!({ "content": "", "reasoning": "", "calls": [], "end": null }));
        join(whole, choice);
    }
    let choices = plain["choices"].as_array().unwrap().clone();
    for (choice, streamed) in choices.iter().zip(joined.values()) {
        assert_eq!(&told(choice), streamed, "{plain}");
    }
    choices
}

/// Adds a delta to what came before, and checks that it is one by the book.
fn join(whole: &mut Value, choice: &Value) {
    let delta = &choice["delta"];
    for (from, to) in [("content", "content"), ("reasoning_content", "reasoning")] {
        let text = format!(
            "{}{}",
            whole[to].as_str().unwrap(),
            delta[from].as_str().unwrap_or("")
        );
        whole[to] = text.into();
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
        let calls = whole["calls"].as_array_mut().unwrap();
        let function = &call["function"];
        if index == calls.len() {
            assert!(!call["id"].as_str().unwrap().is_empty());
            assert_eq!(call["type"], "function");
            calls.push(json!([function["name"], function["arguments"]]));
        } else {
            assert_eq!(call.as_object().unwrap().len(), 2, "{call}");
            assert_eq!(function.as_object().unwrap().len(), 1, "{call}");
            let before = calls[index][1].as_str().unwrap();
            calls[index][1] = format!("{before}{}", function["arguments"].as_str().unwrap()).into();
        }
    }
    if !choice["finish_reason"].is_null() {
        whole["end"] = choice["finish_reason"].clone();
    }
}

/// A plain choice in the same form.
fn told(choice: &Value) -> Value {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        assert!(!call["id"].as_str().unwrap().is_empty());
        json!([call["function"]["name"], call["function"]["arguments"]])
    });
    json!({
        "content": message["content"].as_str().unwrap_or(""),
        "reasoning": message["reasoning_content"].as_str().unwrap_or(""),
        "calls": calls.collect::<Vec<Value>>(),
        "end": choice["finish_reason"],
    })
}

fn check_call(call: &Value) {
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    match call["function"]["name"].as_str().unwrap() {
        "ring" => assert_eq!(arguments, json!({})),
        "set_lamp" => {
            assert_eq!(arguments.as_object().unwrap().len(), 2);
            assert!(
                ["hall", "attic \"2\"", "küche"].contains(&arguments["room"].as_str().unwrap())
            );
            assert!((0..10).contains(&arguments["level"].as_i64().unwrap()));
        }
        other => panic!("`{other}` was not declared"),
    }
}

#[tokio::test]
async fn a_named_tool_is_called_whatever_the_model_would_say() {
    let fields = json!({
        "tools": tools(),
        "tool_choice": { "type": "function", "function": { "name": "set_lamp" } }
    });
    let client = saying("Hello there", TEMPLATE, &fields).await;
    let choice = &choices(&client, &fields).await[0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["name"],
        "set_lamp"
    );
    check_call(&choice["message"]["tool_calls"][0]);
}

#[tokio::test]
async fn calls_are_valid_even_from_a_model_that_says_anything() {
    let (mut calls, mut several, mut cut) = (0, 0, 0);
    for seed in 0..12 {
        let client = anything(seed);
        for (choice, parallel) in [("required", true), ("required", false)] {
            let fields = json!({
                "tools": tools(), "tool_choice": choice, "parallel_tool_calls": parallel,
                "temperature": 1.2, "seed": seed, "n": 2, "max_tokens": if seed == 0 { 40 } else { 700 }
            });
            for choice in choices(&client, &fields).await {
                let made = choice["message"]["tool_calls"].as_array();
                let made = made.cloned().unwrap_or_default();
                let mut ids: Vec<&str> = made
                    .iter()
                    .map(|call| call["id"].as_str().unwrap())
                    .collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), made.len());
                assert!(parallel || made.len() <= 1);
                several += usize::from(made.len() > 1);
                let whole = choice["finish_reason"] == "tool_calls";
                cut += usize::from(!whole);
                let whole = made.len().saturating_sub(usize::from(!whole));
                made[..whole].iter().for_each(check_call);
                calls += whole;
            }
        }
    }
    assert!(
        calls > 20 && several > 3 && cut > 0,
        "{calls} {several} {cut}"
    );
}

#[tokio::test]
async fn a_model_that_may_call_says_what_it_likes_and_calls_as_it_must() {
    let call = "Let me see.\n<tool_call>\n{\"name\": \"ring\", \"arguments\": {}}\n</tool_call>";
    let fields = json!({ "tools": tools() });
    let client = saying(call, TEMPLATE, &fields).await;
    let choice = &choices(&client, &fields).await[0];
    assert_eq!(choice["message"]["content"], "Let me see.");
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["name"],
        "ring"
    );
    assert_eq!(choice["finish_reason"], "tool_calls");
    let client = saying("No <tool is needed.", TEMPLATE, &fields).await;
    let choice = &choices(&client, &fields).await[0];
    assert_eq!(choice["message"]["content"], "No <tool is needed.");
    assert_eq!(choice["message"].get("tool_calls"), None);
    assert_eq!(choice["finish_reason"], "stop");
    // It would call a tool that nobody declared.
    let wrong = "<tool_call>\n{\"name\": \"oven\", \"arguments\": 3}\n</tool_call>";
    let client = saying(wrong, TEMPLATE, &fields).await;
    let made = choices(&client, &fields).await[0]["message"]["tool_calls"].clone();
    made.as_array().unwrap().iter().for_each(check_call);
    let fields = json!({ "tools": tools(), "tool_choice": "none" });
    let client = saying(call, TEMPLATE, &fields).await;
    let choice = &choices(&client, &fields).await[0];
    assert_eq!(choice["message"].get("tool_calls"), None);
    assert_eq!(choice["finish_reason"], "stop");
}

async fn prompt(template: &str, fields: &Value) -> String {
    let client = over(Box::new(Says { text: "", after: 0 }), template);
    let rendered = client
        .post("/v1/chat/completions/render", &body(fields).to_string())
        .await;
    let text = rendered.json()["prompts"][0]["text"].clone();
    text.as_str()
        .unwrap_or_else(|| panic!("{}", rendered.text))
        .to_owned()
}

#[tokio::test]
async fn the_model_is_told_of_tools_and_of_earlier_calls() {
    let history = json!([
        { "role": "user", "content": "Ring!" },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function",
            "function": { "name": "ring", "arguments": "{\"n\": 2}" } }] },
        { "role": "tool", "tool_call_id": "c1", "content": "done" }
    ]);
    let fields = json!({ "tools": tools(), "messages": history });
    let shown = prompt(TEMPLATE, &fields).await;
    assert!(
        shown.starts_with("{\"type\": \"function\", \"function\": {\"name\": \"set_lamp\""),
        "{shown}"
    );
    assert!(
        shown.contains("<tool_call>ring {\"n\": 2}</tool_call>"),
        "{shown}"
    );
    let none = json!({ "tools": tools(), "messages": history, "tool_choice": "none" });
    assert!(!prompt(TEMPLATE, &none).await.contains("set_lamp"));
    // A template that knows of neither.
    let shown = prompt(PLAIN, &fields).await;
    assert!(
        shown.starts_with("system: You can call these tools:\n{\"type\":\"function\""),
        "{shown}"
    );
    let call = "assistant: <tool_call>\n{\"name\": \"ring\", \"arguments\": {\"n\": 2}}\n</tool_call>\ntool: done";
    assert!(shown.contains(call), "{shown}");
    // A template without a system message.
    let picky = format!(
        "{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no system') }}}}{{% endif %}}{PLAIN}"
    );
    let shown = prompt(&picky, &fields).await;
    assert!(
        shown.starts_with("user: You can call") && shown.contains("Ring!"),
        "{shown}"
    );
}

#[tokio::test]
async fn calls_that_cannot_be_are_refused_by_name() {
    let client = anything(1);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let looped = json!([{ "type": "function", "function": { "name": "a", "parameters":
        { "type": "object", "properties": { "x": { "not": {} } } } } }]);
    for (fields, param) in [
        (
            json!({ "tools": tools(), "tool_choice": named("oven") }),
            "tool_choice",
        ),
        (
            json!({ "tools": [], "tool_choice": "required" }),
            "tool_choice",
        ),
        (json!({ "tool_choice": named("ring") }), "tool_choice"),
        (
            json!({ "tools": tools(), "tool_choice": "perhaps" }),
            "tool_choice",
        ),
        (json!({ "tools": tools(), "tool_choice": 3 }), "tool_choice"),
        (
            json!({ "tools": tools(), "response_format": { "type": "json_object" } }),
            "tools",
        ),
        (json!({ "tools": looped }), "tools"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0]"),
        (
            json!({ "tools": tools(), "tool_choice": "required", "ignore_eos": true }),
            "ignore_eos",
        ),
        (
            json!({ "thinking_token_budget": 3 }),
            "thinking_token_budget",
        ),
        (json!({ "reasoning_effort": "high" }), "reasoning_effort"),
        (json!({ "reasoning_format": "xml" }), "reasoning_format"),
    ] {
        let answer = client
            .post("/v1/chat/completions", &body(&fields).to_string())
            .await;
        assert_eq!(answer.error(400)["param"], param, "{fields}");
    }
}

#[tokio::test]
async fn reasoning_is_told_apart_counted_and_can_be_left_out() {
    let text = "It is so.\n</think>\n\nYes.";
    let fields = json!({});
    let client = saying(text, THINKING, &fields).await;
    let choice = &choices(&client, &fields).await[0];
    assert_eq!(choice["message"]["reasoning_content"], "It is so.");
    assert_eq!(choice["message"]["content"], "Yes.");
    let usage = client
        .post("/v1/chat/completions", &body(&fields).to_string())
        .await
        .json()["usage"]
        .clone();
    let reasoned = "It is so.\n</think>".len();
    assert_eq!(
        usage["completion_tokens_details"]["reasoning_tokens"],
        reasoned
    );
    let hidden = &choices(&client, &json!({ "include_reasoning": false })).await[0];
    assert_eq!(hidden["message"].get("reasoning_content"), None);
    assert_eq!(hidden["message"]["content"], "Yes.");
    let raw = &choices(&client, &json!({ "reasoning_format": "none" })).await[0];
    assert_eq!(raw["message"]["content"], text);
    let cut = &choices(&client, &json!({ "max_tokens": 5 })).await[0];
    assert_eq!(cut["message"]["reasoning_content"], "It is");
    assert_eq!(cut["message"]["content"], "");
}

#[tokio::test]
async fn a_form_waits_for_the_reasoning_and_a_budget_ends_it() {
    let text = "It is so.\n</think>\n\nNo";
    let fields = json!({ "choice": ["Yes", "Never"] });
    let client = saying(text, THINKING, &fields).await;
    let choice = &choices(&client, &fields).await[0];
    assert_eq!(choice["message"]["reasoning_content"], "It is so.");
    assert!(["Yes", "Never"].contains(&choice["message"]["content"].as_str().unwrap()));
    let short = &choices(
        &client,
        &json!({ "thinking_token_budget": 5, "max_tokens": 30 }),
    )
    .await[0];
    assert_eq!(short["message"]["reasoning_content"], "It is");
    let tools =
        json!({ "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false });
    let client = saying(text, THINKING, &tools).await;
    let choice = &choices(&client, &tools).await[0];
    assert_eq!(choice["message"]["reasoning_content"], "It is so.");
    check_call(&choice["message"]["tool_calls"][0]);
}
