//! A vocabulary of single bytes, so that every character is cut across tokens.

use std::sync::Arc;

use forthwith_core::clock::ManualClock;
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::metadata::{Metadata, Value};
use forthwith_core::units::{BlockId, Blocks, Tokens};
use forthwith_models::hash_model::{HashCapacity, HashModel};
use forthwith_text::Tokenizer;
use serde_json::Value as Json;

use crate::support::{Client, Gate, Shape, served};

const TEXT: &str = "海の日 🌊🧭 Żółć ½ 👩‍🔬 é | two  spaces\r\n\u{feff}한국어 조합 | ";
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant\n";
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub(crate) const VOCAB: u32 = 259;
/// The token that ends an answer.
pub(crate) const END: u32 = 258;

/// Bytes 0 to 255, then the control tokens.
pub(crate) fn tokenizer() -> Tokenizer {
    let mut fresh = 256..;
    let letters = (0..=255_u32).map(|byte| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from_u32(byte).unwrap(),
        _ => char::from_u32(fresh.next().unwrap()).unwrap(),
    });
    let bytes = letters.map(|letter| letter.to_string());
    let tokens = bytes.chain(CONTROL.map(str::to_owned));
    let tokens = tokens.map(String::into_bytes).collect();
    let types = (0..VOCAB).map(|id| if id < 256 { 1 } else { 3 }).collect();
    let mut metadata = Metadata::default();
    for (key, value) in [
        ("model", Value::Text(b"gpt2".to_vec())),
        ("tokens", Value::Texts(tokens)),
        ("token_type", Value::Integers(types)),
        ("merges", Value::Texts(Vec::new())),
        ("eos_token_id", Value::Unsigned(258)),
    ] {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    }
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// Says the bytes of [`TEXT`] by position, over and over; a prompt of one token comes before it.
struct Script;

impl Executor for Script {
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
            let start = logits.len();
            logits.resize(start + VOCAB as usize, f32::NEG_INFINITY);
            let said = TEXT.as_bytes()[positions[row] % TEXT.len()];
            logits[start + usize::from(said)] = 0.0;
        }
        Ok(())
    }

    fn copy_block(&mut self, _: BlockId, _: BlockId) {}
}

fn client(executor: Box<dyn Executor>) -> Client {
    let shape = Shape {
        context: 1024,
        ..Shape::default()
    };
    let clock = Arc::new(ManualClock::default());
    let parts = (tokenizer(), Some(TEMPLATE));
    let model = served("bytes", executor, parts, shape, clock);
    Client::over(model, Arc::new(Gate::default()))
}

/// A client of the model that says the text of this file.
pub(crate) fn script() -> Client {
    client(Box::new(Script))
}

/// A client of a model that says anything.
pub(crate) fn noisy() -> Client {
    client(noise())
}

fn noise() -> Box<dyn Executor> {
    let capacity = HashCapacity {
        block_size: Tokens::new(16),
        blocks: Blocks::new(512),
        max_step_tokens: Tokens::new(64),
    };
    Box::new(
        HashModel {
            vocab: VOCAB,
            seed: 3,
        }
        .executor(capacity),
    )
}

#[tokio::test]
async fn a_character_is_sent_when_it_is_whole() {
    let client = client(Box::new(Script));
    let mut longest = String::new();
    for max_tokens in 1..=TEXT.len() {
        let fields = format!(r#""prompt":"x","max_tokens":{max_tokens}"#);
        let plain = client.complete(&fields).await.completion();
        let deltas = client
            .complete(&format!(r#"{fields},"stream":true"#))
            .await
            .deltas();
        assert_eq!(deltas.concat(), plain);
        let whole = plain.strip_suffix('\u{fffd}').unwrap_or(&plain);
        assert!(TEXT.starts_with(whole), "{plain:?}");
        assert!(
            whole.starts_with(&longest),
            "a longer answer begins with the shorter one"
        );
        whole.clone_into(&mut longest);
    }
    assert_eq!(longest, TEXT);
}

#[tokio::test]
async fn a_stop_string_of_cut_characters_is_found() {
    let client = client(Box::new(Script));
    let characters: Vec<(usize, char)> = TEXT.char_indices().collect();
    for window in characters.windows(3) {
        let stop: String = window.iter().map(|(_, character)| character).collect();
        let stop = serde_json::to_string(&stop).unwrap();
        let expected = &TEXT[..TEXT
            .find(&serde_json::from_str::<String>(&stop).unwrap())
            .unwrap()];
        let fields = format!(r#""prompt":"x","max_tokens":{},"stop":{stop}"#, TEXT.len());
        let plain = client.complete(&fields).await;
        assert_eq!(plain.completion(), expected, "{stop}");
        assert_eq!(plain.json()["choices"][0]["finish_reason"], "stop");
        let streamed = client.complete(&format!(r#"{fields},"stream":true"#)).await;
        assert_eq!(streamed.deltas().concat(), expected, "{stop}");
    }
}

#[tokio::test]
async fn a_prompt_of_odd_characters_comes_back_as_it_was() {
    let client = client(Box::new(Script));
    for prompt in [
        " lead",
        "trail ",
        "  two",
        "\t\tx",
        "a\r\nb\rc\n",
        "x\0y",
        "e\u{301} vs é",
        "ﬁ ＡＢＣ",
        "\u{200b}\u{2060}",
        "▁ low",
        "<0x41>",
        "한국어 조합",
        "👨‍👩‍👧‍👦",
        "\u{feff}bom",
        "<|im_end|>",
    ] {
        let json = serde_json::to_string(prompt).unwrap();
        let fields = format!(r#""prompt":{json},"echo":true,"max_tokens":1"#);
        let answer = client.complete(&fields).await;
        let rest = answer.completion().strip_prefix(prompt).map(str::len);
        assert!(rest.is_some(), "{prompt:?}");
        assert_eq!(answer.json()["usage"]["prompt_tokens"], prompt.len());
        // The same as token ids: what goes in comes out.
        let ids = serde_json::to_string(prompt.as_bytes()).unwrap();
        let answer = client
            .complete(&format!(r#""prompt":{ids},"echo":true,"max_tokens":1"#))
            .await;
        assert!(answer.completion().starts_with(prompt), "{prompt:?}");
    }
}

#[tokio::test]
async fn noise_streams_as_it_is_answered_plain() {
    let client = client(noise());
    for prompt in 0..24 {
        let fields = format!(
            r#""prompt":[{prompt},1],"max_tokens":80,"ignore_eos":true,"logprobs":2,"stop":["\u00e9"]"#
        );
        let plain = client.complete(&fields).await;
        let streamed = client.complete(&format!(r#"{fields},"stream":true"#)).await;
        assert_eq!(streamed.deltas().concat(), plain.completion());
        let events = streamed.events();
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let parts = events
                .iter()
                .filter_map(|event| event["choices"][0]["logprobs"][list].as_array());
            let parts: Vec<Json> = parts.flatten().cloned().collect();
            assert_eq!(
                Json::from(parts),
                plain.json()["choices"][0]["logprobs"][list]
            );
        }
    }
}

#[tokio::test]
async fn the_bytes_of_log_probabilities_are_the_text() {
    let client = client(Box::new(Script));
    let fields = r#""messages":[{"role":"user","content":"x"}],"max_tokens":70,"logprobs":true"#;
    let answer = client.chat(fields).await.json();
    let tokens = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let bytes = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes
        .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
        .collect();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&bytes).trim_end_matches('\u{fffd}'),
        text.trim_end_matches('\u{fffd}')
    );
    assert!(tokens.iter().all(|token| token["logprob"].is_number()));
}

#[tokio::test]
async fn control_tokens_written_by_users_stay_text() {
    let client = client(noise());
    let cost = async |message: &str| {
        let fields = format!(r#""messages":[{message}],"max_tokens":1"#);
        let answer = client.chat(&fields).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let forms = [
        r#"{"role":"user","content":"leftMARKright"}"#,
        r#"{"role":"system","content":"leftMARKright"}"#,
        r#"{"role":"assistant","content":"leftMARKright"}"#,
        r#"{"role":"user","content":[{"type":"text","text":"leftMARKright"}]}"#,
        r#"{"role":"tool","tool_call_id":"c","content":"leftMARKright"}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"c","type":"function",
            "function":{"name":"leftMARKright","arguments":"{\"a\":\"leftMARKright\"}"}}]}"#,
    ];
    for form in forms {
        let times = u64::try_from(form.matches("MARK").count()).unwrap();
        let without = cost(&form.replace("MARK", "")).await;
        let with = cost(&form.replace("MARK", "<|im_end|>")).await;
        assert_eq!(with - without, 10 * times, "{form}");
    }
}
