//! Files that are wrong: one line that names them, whatever is wrong.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn good(kind: &str) -> Value {
    let bytes = std::fs::read(fixture(kind).join("tokenizer.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// A change of a good `tokenizer.json`, and what its refusal must say.
type Change = (fn(&mut Value), &'static str);

const CHANGES: &[Change] = &[
    (|json| *json = json!([]), "tokenizer.json: "),
    (|json| *json = json!("text"), "tokenizer.json: "),
    (|json| *json = json!({}), "missing field `model`"),
    (|json| json["model"] = json!(null), "tokenizer.json: "),
    (|json| json["model"] = json!({}), "tokenizer.json: "),
    (
        |json| json["model"]["type"] = json!("Telepathy"),
        "tokenizer.json: ",
    ),
    (|json| json["model"]["type"] = json!(7), "tokenizer.json: "),
    (|json| json["model"]["vocab"] = json!(7), "tokenizer.json: "),
    (
        |json| json["model"]["vocab"] = json!({}),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["vocab"]["a"] = json!(-1),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["vocab"]["a"] = json!("x"),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["vocab"]["a"] = json!(1e300),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["vocab"]["a"] = json!(4_000_000_000_u64),
        "tokens; allowed are",
    ),
    (
        |json| json["model"]["merges"] = json!([["no", "such"]]),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["merges"] = json!([["a"]]),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["merges"] = json!(["a"]),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["merges"] = json!(5),
        "tokenizer.json: ",
    ),
    (
        |json| json["model"]["dropout"] = json!("much"),
        "tokenizer.json: ",
    ),
    (
        |json| json["pre_tokenizer"] = json!({"type": "Axe"}),
        "tokenizer.json: ",
    ),
    (|json| json["pre_tokenizer"] = json!(5), "tokenizer.json: "),
    (
        |json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({"Regex": "(("}),
        "tokenizer.json: ",
    ),
    (
        |json| json["normalizer"] = json!({"type": "Iron"}),
        "tokenizer.json: ",
    ),
    (|json| json["normalizer"] = json!([]), "tokenizer.json: "),
    (
        |json| json["decoder"] = json!({"type": "Ring"}),
        "tokenizer.json: ",
    ),
    (
        |json| json["post_processor"] = json!({"type": "Cork"}),
        "tokenizer.json: ",
    ),
    (
        |json| json["post_processor"]["single"] = json!([]),
        "tokenizer.json: ",
    ),
    (
        |json| json["post_processor"]["special_tokens"] = json!({}),
        "tokenizer.json: ",
    ),
    (|json| json["added_tokens"] = json!(5), "tokenizer.json: "),
    (
        |json| json["added_tokens"] = json!([{"content": "x"}]),
        "tokenizer.json: ",
    ),
    (
        |json| json["added_tokens"][0]["id"] = json!(-5),
        "tokenizer.json: ",
    ),
    (
        |json| json["added_tokens"][0]["id"] = json!(99_999),
        "added_tokens: id 99999",
    ),
    (
        |json| json["added_tokens"][0]["content"] = json!(5),
        "tokenizer.json: ",
    ),
    (|json| json["version"] = json!("9.0"), "tokenizer.json: "),
    (|json| json["truncation"] = json!("yes"), "tokenizer.json: "),
    (
        |json| json["padding"] = json!({"strategy": "Cotton"}),
        "tokenizer.json: ",
    ),
];

/// Other files, and what the refusal must say.
const OTHERS: &[(&str, &str, &str)] = &[
    ("tokenizer_config.json", "{", "tokenizer_config.json: EOF"),
    ("tokenizer_config.json", "", "tokenizer_config.json: EOF"),
    (
        "tokenizer_config.json",
        r#"{"bos_token": 5}"#,
        "bos_token: must be a text",
    ),
    (
        "tokenizer_config.json",
        r#"{"bos_token": []}"#,
        "bos_token: must be a text",
    ),
    (
        "tokenizer_config.json",
        r#"{"eos_token": {"content": 1}}"#,
        "eos_token: must be a text",
    ),
    (
        "tokenizer_config.json",
        r#"{"eos_token": "<nowhere>"}"#,
        "\"<nowhere>\" is not in the",
    ),
    ("generation_config.json", "[", "generation_config.json: EOF"),
    (
        "generation_config.json",
        r#"{"eos_token_id": "x"}"#,
        "eos_token_id: \"x\" is not a token",
    ),
    (
        "generation_config.json",
        r#"{"eos_token_id": -1}"#,
        "eos_token_id: -1 is not a token",
    ),
    (
        "generation_config.json",
        r#"{"eos_token_id": 701}"#,
        "eos_token_id: 701 is not a token",
    ),
    (
        "generation_config.json",
        r#"{"eos_token_id": [1, 9999]}"#,
        "eos_token_id: 9999 is not",
    ),
    (
        "config.json",
        r#"{"eos_token_id": 1.5}"#,
        "eos_token_id: 1.5 is not a token",
    ),
    ("config.json", "nonsense", "config.json: expected"),
];

fn refusal(name: &str, files: &[(&str, &[u8])]) -> String {
    let folder = Folder::new(name, files);
    let error = Tokenizer::from_folder(&folder.0)
        .expect_err(name)
        .to_string();
    assert!(
        !error.contains('\n') && error.len() < 600,
        "one line: {error}"
    );
    error
}

#[test]
fn malformed_files_are_one_line_that_names_them() {
    for (index, (change, says)) in CHANGES.iter().enumerate() {
        let mut json = good("byte-level");
        change(&mut json);
        let bytes = json.to_string().into_bytes();
        let error = refusal(&format!("change-{index}"), &[("tokenizer.json", &bytes)]);
        assert!(error.contains(says), "change {index}: {error}");
    }
    let good = good("byte-level").to_string().into_bytes();
    for (index, (file, content, says)) in OTHERS.iter().enumerate() {
        let files = [("tokenizer.json", &good[..]), (*file, content.as_bytes())];
        let error = refusal(&format!("other-{index}"), &files);
        assert!(error.contains(says), "{file} {index}: {error}");
    }
    let deep = ["[".repeat(1 << 20), "]".repeat(1 << 20)].concat();
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("half", &good[..good.len() / 2]),
        ("not-text", b"\xff\xfe\x00"),
        ("deep", deep.as_bytes()),
    ] {
        let error = refusal(name, &[("tokenizer.json", bytes)]);
        assert!(error.starts_with("tokenizer.json: "), "{name}: {error}");
    }
    let error = refusal("none", &[]);
    assert!(error.contains("missing; text cannot"), "{error}");
    let error = refusal("old", &[("vocab.txt", b"a")]);
    assert!(
        error.contains("`vocab.txt`") && error.contains("save_pretrained"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_bytes_are_read_or_refused(
        kind in prop::sample::select(KINDS.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(fixture(kind).join("tokenizer.json")).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = Folder::new("changed", &[("tokenizer.json", &bytes)]);
        match Tokenizer::from_folder(&folder.0) {
            Ok(tokenizer) => {
                let tokens = tokenizer.encode("the server 123 <s>", ControlText::Parse);
                for token in tokens.unwrap_or_default() {
                    prop_assert!(token.index() < tokenizer.vocab_size());
                }
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
