use super::*;
use crate::tokenizer::{ControlText, Tokenizer, testing};
use forthwith_core::metadata::Value;

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<Vec<u8>> {
    let tokens = tokenizer.encode(text, ControlText::AsText).unwrap();
    tokens
        .iter()
        .map(|&id| tokenizer.token_bytes(id).to_vec())
        .collect()
}

#[test]
fn the_alphabet_is_printable_and_goes_both_ways() {
    let alphabet = Alphabet::new();
    for byte in 0..=255 {
        let character = character(byte);
        assert!(!character.is_whitespace() && !character.is_control());
        assert_eq!(alphabet.decode(&character.to_string()), [byte]);
    }
    assert_eq!(character(b' '), '\u{120}');
    assert_eq!(
        alphabet.decode("\u{120}a\u{4e2d}"),
        [b" a", "\u{4e2d}".as_bytes()].concat()
    );
}

#[test]
fn merges_apply_in_order_within_words() {
    let tokenizer = testing::byte_level(&[], &["a b", "b c", "ab c", "\u{120} ab"]);
    assert_eq!(
        encode(&tokenizer, "abc bc ab"),
        [&b"abc"[..], b" ", b"bc", b" ab"]
    );
}

#[test]
fn bytes_without_a_token_are_dropped_and_part_their_neighbours() {
    let mut metadata = testing::byte_level_metadata(&[], &["! !"], "gpt-2");
    let Some(Value::Texts(texts)) = metadata.get("tokenizer.ggml.tokens").cloned() else {
        panic!("texts");
    };
    let mut texts = texts;
    texts[1] = b"nothing".to_vec();
    metadata.insert("tokenizer.ggml.tokens", Value::Texts(texts));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(encode(&tokenizer, "!!\u{1}!"), [&b"!!"[..], b"!"]);
}

#[test]
fn whole_words_win_over_merges_where_the_pre_tokenizer_says_so() {
    let metadata = |pre| {
        let mut metadata = testing::byte_level_metadata(&[], &["a b", "ab c"], pre);
        let rules = Value::Texts(vec![b"a b".to_vec()]);
        metadata.insert("tokenizer.ggml.merges", rules);
        metadata
    };
    let whole = Tokenizer::from_gguf(&metadata("llama-bpe")).unwrap();
    assert_eq!(encode(&whole, "abc"), [b"abc"]);
    let merged = Tokenizer::from_gguf(&metadata("qwen2")).unwrap();
    assert_eq!(encode(&merged, "abc"), [&b"ab"[..], b"c"]);
}

#[test]
fn wrong_merges_are_errors_that_name_them() {
    for (rule, problem) in [
        (&b"ab"[..], "no space"),
        (b"", "no space"),
        (b"a zz", "\"zz\""),
        (b"a z", "\"az\""),
        (b"a \xff", "UTF-8"),
    ] {
        let mut metadata = testing::byte_level_metadata(&[], &["a b"], "gpt-2");
        metadata.insert(
            "tokenizer.ggml.merges",
            Value::Texts(vec![b"a b".to_vec(), rule.to_vec()]),
        );
        let error = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
        assert!(
            error.starts_with("merge 1 ") && error.contains(problem),
            "{error}"
        );
    }
}

#[test]
fn merges_of_control_tokens_do_not_apply_to_text() {
    let mut metadata = testing::byte_level_metadata(&["<>"], &["a b"], "gpt-2");
    metadata.insert("tokenizer.ggml.merges", Value::Texts(vec![b"< >".to_vec()]));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(encode(&tokenizer, "<>"), [b"<", b">"]);
    let parsed = tokenizer.encode("a<>", ControlText::Parse).unwrap();
    assert_eq!(parsed[1], TokenId::new(0));
}

#[test]
fn long_runs_of_every_class_come_back() {
    let tokenizer = testing::byte_level(&[], &["a a", "aa aa", "\u{120} \u{120}"]);
    for character in ["a", " ", "\n", "!", "1", "\u{4e2d}", "'"] {
        let text = character.repeat(50_000);
        let tokens = tokenizer.encode(&text, ControlText::AsText).unwrap();
        assert_eq!(testing::bytes(&tokenizer, &tokens), text.as_bytes());
    }
}
