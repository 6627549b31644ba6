//! Token ids equal llama.cpp's for both real models on a corpus of hard strings.

use std::path::Path;
use std::sync::Arc;

use forthwith_core::units::TokenId;
use forthwith_text::{
    ChatMessage, ChatTemplate, ControlText, RenderOptions, TextStream, Tokenizer,
};
use serde_json::Value;

use crate::gguf;

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/tokenizer")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<TokenId> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| TokenId::new(u32::try_from(id.as_u64().unwrap()).unwrap()))
        .collect()
}

fn corpus() -> Vec<String> {
    serde_json::from_value(fixture("corpus.json")).unwrap()
}

fn check(file: &str, golden: &str, end_tokens: &[u32]) {
    let Some(path) = gguf::model(file) else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(&gguf::metadata(&path)).unwrap();
    let golden = fixture(golden);
    let corpus = corpus();
    let expected = golden["ids"].as_array().unwrap();
    assert_eq!(expected.len(), corpus.len());
    let mut wrong = Vec::new();
    for (text, expected) in corpus.iter().zip(expected) {
        let found = tokenizer.encode(text, ControlText::AsText).unwrap();
        if found != ids(expected) {
            wrong.push(format!("{text:?}: {found:?}, expected {expected}"));
        }
        assert!(
            !found.iter().any(|&id| tokenizer.is_hidden(id)),
            "{text:?} {found:?}"
        );
    }
    for (index, expected) in golden["ids_special"].as_object().unwrap() {
        let text = &corpus[index.parse::<usize>().unwrap()];
        let found = tokenizer.encode(text, ControlText::Parse).unwrap();
        if found != ids(expected) {
            wrong.push(format!("parsed {text:?}: {found:?}, expected {expected}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let adds_bos = golden["model_adds_bos_by_default"].as_bool().unwrap();
    assert_eq!(tokenizer.adds_bos(), adds_bos);
    assert_eq!(
        tokenizer.bos().map(|id| u64::from(id.get())),
        golden["bos_id"].as_u64()
    );
    assert_eq!(
        tokenizer.eos().map(|id| u64::from(id.get())),
        golden["eos_id"].as_u64()
    );
    assert_eq!(
        tokenizer.end_tokens(),
        end_tokens
            .iter()
            .map(|&id| TokenId::new(id))
            .collect::<Vec<_>>()
    );
    check_decoding(&Arc::new(tokenizer), &corpus);
}

/// Streamed text equals decoding all bytes at once, and the corpus comes back as it went in.
fn check_decoding(tokenizer: &Arc<Tokenizer>, corpus: &[String]) {
    let mut lost = 0;
    for text in corpus {
        let tokens = tokenizer.encode(text, ControlText::AsText).unwrap();
        let mut stream = TextStream::new(Arc::clone(tokenizer), vec![]);
        let mut streamed: String = tokens
            .iter()
            .map(|&token| stream.push(token).text)
            .collect();
        streamed.push_str(&stream.finish().text);
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| tokenizer.token_bytes(token))
            .copied()
            .collect();
        assert_eq!(streamed, String::from_utf8_lossy(&bytes), "{text:?}");
        assert_eq!(streamed, tokenizer.decode(&tokens), "{text:?}");
        lost += usize::from(streamed != text.replace('\u{2581}', " ") && streamed != *text);
    }
    // Texts with bytes that the byte-level vocabulary has no token for, see PROVENANCE.md.
    let expected = if tokenizer.kind().starts_with("byte-level") {
        23
    } else {
        0
    };
    assert_eq!(lost, expected);
}

#[test]
fn smollm2_ids_equal_llama_cpp() {
    check("smollm2.gguf", "smollm2.ids.json", &[0, 2, 4]);
}

#[test]
fn gemma3_ids_equal_llama_cpp() {
    check("gemma3-270m.gguf", "gemma3-270m.ids.json", &[1, 106, 212]);
}

#[test]
fn smollm2_conversations_are_encoded_as_their_text_is_parsed() {
    let Some(path) = gguf::model("smollm2.gguf") else {
        return;
    };
    let metadata = gguf::metadata(&path);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let template = ChatTemplate::from_gguf(&metadata, &tokenizer)
        .unwrap()
        .unwrap();
    let conversation = |content: &str| {
        let message = ChatMessage {
            role: "user".to_owned(),
            content: content.to_owned(),
            ..ChatMessage::default()
        };
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        template.render(&[message], &options).unwrap()
    };
    let prompt = conversation("hello");
    let text = prompt.text();
    assert!(text.starts_with("<|im_start|>system\nYou are a helpful AI assistant named SmolLM"));
    assert!(text.ends_with("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"));
    let tokens = tokenizer.encode_rendered(&prompt).unwrap();
    assert_eq!(tokens, tokenizer.encode(&text, ControlText::Parse).unwrap());
    let control = |tokens: &[TokenId]| {
        let hidden = tokens.iter().filter(|&&id| tokenizer.is_hidden(id));
        hidden.copied().collect::<Vec<_>>()
    };
    for content in corpus() {
        let prompt = conversation(&content);
        let found = tokenizer.encode_rendered(&prompt).unwrap();
        assert_eq!(control(&found), control(&tokens), "{content:?}");
    }
}
