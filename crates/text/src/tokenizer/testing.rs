//! Tiny vocabularies for tests.

use forthwith_core::metadata::{Metadata, Value};
use forthwith_core::units::TokenId;

use super::Tokenizer;
use super::byte_level::character;

/// A token of a tiny vocabulary: text, class, score.
pub(crate) type Entry = (String, i64, f32);

/// The metadata of a vocabulary.
pub(crate) fn metadata(model: &str, entries: &[Entry]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", Value::Text(model.into()));
    let texts = entries.iter().map(|(text, ..)| text.clone().into_bytes());
    metadata.insert("tokenizer.ggml.tokens", Value::Texts(texts.collect()));
    let classes = entries.iter().map(|&(_, class, _)| class);
    metadata.insert(
        "tokenizer.ggml.token_type",
        Value::Integers(classes.collect()),
    );
    let scores = entries.iter().map(|&(.., score)| score);
    metadata.insert("tokenizer.ggml.scores", Value::Floats(scores.collect()));
    metadata
}

/// A byte-level vocabulary: control tokens first, then all bytes, then what the merges make.
pub(crate) fn byte_level_metadata(control: &[&str], merges: &[&str], pre: &str) -> Metadata {
    let mut entries: Vec<Entry> = control
        .iter()
        .map(|&text| (text.to_owned(), 3, 0.0))
        .collect();
    entries.extend((0..=255).map(|byte| (character(byte).to_string(), 1, 0.0)));
    for merge in merges {
        entries.push((merge.replace(' ', ""), 1, 0.0));
    }
    let mut metadata = metadata("gpt2", &entries);
    let merges = merges.iter().map(|&merge| merge.into()).collect();
    metadata.insert("tokenizer.ggml.merges", Value::Texts(merges));
    metadata.insert("tokenizer.ggml.pre", Value::Text(pre.into()));
    if control.len() > 1 {
        metadata.insert("tokenizer.ggml.bos_token_id", Value::Unsigned(0));
        metadata.insert("tokenizer.ggml.eos_token_id", Value::Unsigned(1));
    }
    metadata
}

/// The tokenizer of [`byte_level_metadata`].
pub(crate) fn byte_level(control: &[&str], merges: &[&str]) -> Tokenizer {
    Tokenizer::from_gguf(&byte_level_metadata(control, merges, "gpt-2")).unwrap()
}

/// A score-ordered vocabulary: control tokens, all bytes, then the given texts with scores.
pub(crate) fn scored_metadata(control: &[&str], texts: &[(&str, f32)]) -> Metadata {
    let mut entries: Vec<Entry> = control
        .iter()
        .map(|&text| (text.to_owned(), 3, 0.0))
        .collect();
    entries.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
    entries.extend(
        texts
            .iter()
            .map(|&(text, score)| (text.to_owned(), 1, score)),
    );
    let mut metadata = metadata("llama", &entries);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    metadata
}

/// The bytes of tokens in a row.
pub(crate) fn bytes(tokenizer: &Tokenizer, tokens: &[TokenId]) -> Vec<u8> {
    tokens
        .iter()
        .flat_map(|&token| tokenizer.token_bytes(token))
        .copied()
        .collect()
}
