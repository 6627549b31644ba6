use std::sync::Arc;

use forthwith_core::metadata::Value;
use proptest::prelude::*;

use super::*;
use crate::stream::TextStream;

fn id(id: u32) -> TokenId {
    TokenId::new(id)
}

fn scored(control: &[&str], texts: &[(&str, f32)], changes: &[(&str, Value)]) -> Tokenizer {
    let mut metadata = testing::scored_metadata(control, texts);
    for (key, value) in changes {
        metadata.insert(*key, value.clone());
    }
    Tokenizer::from_gguf(&metadata).unwrap()
}

#[test]
fn user_defined_tokens_are_always_found_and_control_tokens_only_when_parsed() {
    let entries = [
        ("<a>", 3, 0.0),
        ("<b>", 4, 0.0),
        ("<unk>", 2, 0.0),
        ("x", 1, 0.0),
    ];
    let mut entries: Vec<testing::Entry> = entries
        .iter()
        .map(|&(text, class, score)| (text.to_owned(), class, score))
        .collect();
    entries.extend(
        "<>abunk"
            .chars()
            .map(|character| (character.to_string(), 1, 0.0)),
    );
    let mut metadata = testing::metadata("llama", &entries);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let text = "x<a><b><unk>";
    let parsed = tokenizer.encode(text, ControlText::Parse).unwrap();
    assert_eq!(parsed, [id(3), id(0), id(1), id(2)]);
    let plain = tokenizer.encode(text, ControlText::AsText).unwrap();
    assert_eq!(plain.iter().filter(|&&token| token == id(1)).count(), 1);
    assert!(!plain.iter().any(|&token| tokenizer.is_hidden(token)));
    assert_eq!(tokenizer.decode(&plain), text);
}

#[test]
fn a_space_goes_before_the_first_word_and_after_special_tokens_and_is_dropped_in_decoding() {
    let texts = [("\u{2581}", -5.0), ("a", -6.0), ("\u{2581}a", -1.0)];
    let tokenizer = scored(
        &["<s>", "</s>"],
        &texts,
        &[
            ("tokenizer.ggml.add_space_prefix", Value::Bool(true)),
            ("tokenizer.ggml.bos_token_id", Value::Unsigned(0)),
        ],
    );
    assert_eq!(
        tokenizer.encode_prompt("a a").unwrap(),
        [id(0), id(260), id(260)]
    );
    let parsed = tokenizer.encode("a<s>a", ControlText::Parse).unwrap();
    assert_eq!(parsed, [id(260), id(0), id(260)]);
    assert_eq!(tokenizer.encode_prompt("").unwrap(), [id(0)]);
    assert_eq!(tokenizer.decode(&[id(0), id(260), id(260)]), "a a");
    let mut stream = TextStream::new(Arc::new(tokenizer), vec![]);
    assert_eq!(stream.push(id(260)).text, " a");
}

#[test]
fn prompts_begin_as_the_file_says() {
    let bos = ("tokenizer.ggml.bos_token_id", Value::Unsigned(0));
    let add = |add| ("tokenizer.ggml.add_bos_token", Value::Bool(add));
    for (changes, expected) in [
        (vec![bos.clone()], true),
        (vec![bos.clone(), add(false)], false),
        (vec![add(true)], false),
    ] {
        let tokenizer = scored(&["<s>"], &[("a", 0.0)], &changes);
        assert_eq!(tokenizer.adds_bos(), expected);
        let first = tokenizer.encode_prompt("a").unwrap()[0];
        assert_eq!(first == id(0), expected);
    }
}

#[test]
fn end_tokens_are_those_named_and_those_known_by_text() {
    let control = ["<s>", "<other>", "<|im_end|>", "<reponame>"];
    let changes = [("tokenizer.ggml.eot_token_id", Value::Unsigned(1))];
    let tokenizer = scored(&control, &[("</s>", 0.0), ("<PAD>", 0.0)], &changes);
    assert_eq!(tokenizer.end_tokens(), [id(1), id(2), id(3), id(260)]);
    assert!(tokenizer.is_hidden(id(260)) && !tokenizer.is_hidden(id(261)));
    let harmony = scored(&["<|end|>", "<|return|>", "<|call|>"], &[], &[]);
    assert_eq!(harmony.end_tokens(), [id(1), id(2)]);
}

#[test]
fn texts_and_pairs_stand_between_the_tokens_that_the_file_names() {
    let flag = |key| (key, Value::Bool(true));
    let mut changes = vec![
        flag("tokenizer.ggml.add_bos_token"),
        flag("tokenizer.ggml.add_eos_token"),
        ("tokenizer.ggml.bos_token_id", Value::Unsigned(1)),
        ("tokenizer.ggml.eos_token_id", Value::Unsigned(2)),
    ];
    let control = ["<s>", "</s>", "<sep>"];
    let open = |changes: &[(&str, Value)]| scored(&control, &[("a", 0.0)], changes);
    let single = open(&changes).encode_text("a", None).unwrap().tokens;
    assert_eq!((single[0], single[single.len() - 1]), (id(1), id(2)));
    assert!(!open(&changes).has_pairs());
    changes.push(flag("tokenizer.ggml.add_sep_token"));
    let middle = &single[1..single.len() - 1];
    let pair = |changes: &[(&str, Value)], between: [TokenId; 2]| {
        let found = open(changes).encode_pair("a", "a", None).unwrap().tokens;
        let wanted = [&[id(1)], middle, &between, middle, &[id(2)]].concat();
        assert_eq!(found, wanted);
    };
    pair(&changes, [id(2), id(2)]);
    changes.push(("tokenizer.ggml.seperator_token_id", Value::Unsigned(3)));
    pair(&changes, [id(2), id(3)]);
}

#[test]
fn wrong_metadata_is_an_error_that_names_the_key() {
    type Change = (&'static str, Value, &'static str);
    let cases: [Change; 10] = [
        ("tokenizer.ggml.model", Value::Text(b"t5".to_vec()), "`t5`"),
        (
            "tokenizer.ggml.model",
            Value::Bool(true),
            "tokenizer.ggml.model",
        ),
        ("tokenizer.ggml.tokens", Value::Texts(vec![]), "0 tokens"),
        (
            "tokenizer.ggml.scores",
            Value::Floats(vec![0.0]),
            "tokenizer.ggml.scores has 1",
        ),
        (
            "tokenizer.ggml.scores",
            Value::Floats(vec![f32::NAN; 258]),
            "token 0",
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Integers(vec![1; 3]),
            "token_type has 3",
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Integers(vec![7; 258]),
            "its type is 7",
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Integers(vec![6; 258]),
            "byte token",
        ),
        (
            "tokenizer.ggml.eos_token_id",
            Value::Unsigned(258),
            "eos_token_id is 258",
        ),
        (
            "tokenizer.ggml.bos_token_id",
            Value::Unsigned(u64::MAX),
            "bos_token_id is 18",
        ),
    ];
    for (key, value, expected) in cases {
        let mut metadata = testing::scored_metadata(&["<s>"], &[("a", 0.0)]);
        metadata.insert(key, value);
        let error = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let twice = testing::scored_metadata(&[], &[("a", 0.0), ("a", 0.0)]);
    let error = Tokenizer::from_gguf(&twice).unwrap_err().to_string();
    assert!(
        error.contains("token 257") && error.contains("token 256"),
        "{error}"
    );
}

#[test]
fn words_that_are_tokens_only_are_unknown_in_a_prompt() {
    let words = ["the", "<unk>", "<end>"].map(str::to_owned);
    let tokenizer = Tokenizer::words(&words, id(1), vec![id(2)], vec![id(1), id(2)]).unwrap();
    let tokens = tokenizer.encode_prompt(" the\n<end> x the ").unwrap();
    assert_eq!(tokens, [id(0), id(1), id(1), id(0)]);
    assert_eq!(tokenizer.decode(&[id(0), id(2), id(0)]), "the the");
    assert!(Tokenizer::words(&words, id(3), vec![], vec![]).is_err());
    assert!(Tokenizer::words(&[], id(0), vec![], vec![]).is_err());
}

#[test]
fn ids_outside_the_vocabulary_are_hidden_and_empty() {
    let tokenizer = testing::byte_level(&[], &[]);
    assert!(tokenizer.is_hidden(id(256)) && tokenizer.token_bytes(id(256)).is_empty());
    assert_eq!(tokenizer.vocab_size(), 256);
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ab \n<>s/\u{2581}\u{e9}\u{1f600}\u{0}]{0,40}"
    ]
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(text in any_text()) {
        let byte_level = testing::byte_level(&["<s>"], &["a b", "\u{120} a", "< s", "\u{c3} \u{a9}"]);
        let texts = [("\u{2581}", -5.0), ("a", -6.0), ("\u{2581}a", -1.0), ("ab", -2.0), ("<s", -3.0)];
        let scored = scored(&["<s>", "</s>"], &texts, &[]);
        for (tokenizer, expected) in [(byte_level, text.clone()), (scored, text.replace('\u{2581}', " "))] {
            let tokens = tokenizer.encode(&text, ControlText::AsText).unwrap();
            prop_assert!(!tokens.iter().any(|&token| tokenizer.is_hidden(token)));
            prop_assert_eq!(testing::bytes(&tokenizer, &tokens), expected.as_bytes());
            prop_assert_eq!(tokenizer.decode(&tokens), expected);
        }
    }
}
