use std::path::PathBuf;

use forthwith_core::metadata::{self, Metadata};
use forthwith_core::units::TokenId;
use serde_json::Value;

use super::*;
use crate::template::ChatTemplate;

mod malformed;

const KINDS: [&str; 4] = ["byte-level", "byte-fallback", "word-pieces", "unigrams"];

/// The pieces of random texts, as in the script that made the golden values.
const PIECES: [&str; 53] = [
    "a",
    "the",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "server",
    "Streams",
    "é",
    "ß",
    "e\u{301}",
    "日",
    "本語",
    "мир",
    "א",
    "م",
    "\u{200d}",
    "\u{200b}",
    "\u{feff}",
    "\u{a0}",
    "😀",
    "👩‍👩‍👧",
    "🇩🇪",
    "!",
    "...",
    "'ll",
    "0",
    "123",
    "-",
    "_",
    "/",
    "{",
    "\\",
    "<s>",
    "</s>",
    "[CLS]",
    "<|end|>",
    "<0x41>",
    "▁",
    "##ing",
    "\u{fffd}",
    "\u{1f9d1}\u{1f3fd}",
    "ﬁ",
    "Å",
    "İ",
    "ı",
    "ſ",
    "\0",
    "\u{7f}",
    "ก",
    "ำ",
    "한",
];

fn fixture(kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/tokenizers")
        .join(kind)
}

fn golden(kind: &str) -> Value {
    let bytes = std::fs::read(fixture(kind).join("golden.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn ids(value: &Value) -> Vec<TokenId> {
    let ids = value.as_array().unwrap().iter();
    let id = |id: &Value| TokenId::new(u32::try_from(id.as_u64().unwrap()).unwrap());
    ids.map(id).collect()
}

fn check_hard_texts(kind: &str, tokenizer: &Tokenizer) {
    let golden = golden(kind);
    let hard = golden["hard"].as_array().unwrap();
    assert_eq!(hard.len(), 500);
    for entry in hard {
        let text = entry[0].as_str().unwrap();
        let as_text = tokenizer.encode(text, ControlText::AsText).unwrap();
        assert_eq!(as_text, ids(&entry[1]), "{kind}: {text:?} as text");
        let trusted = tokenizer.encode(text, ControlText::Parse).unwrap();
        assert_eq!(trusted, ids(&entry[2]), "{kind}: {text:?} trusted");
        let single = tokenizer.encode_text(text, None).unwrap();
        assert_eq!(single.tokens, ids(&entry[3]), "{kind}: {text:?} whole");
        if !tokenizer.has_pairs() {
            continue;
        }
        let pair = tokenizer.encode_pair(text, "and back", None).unwrap();
        assert_eq!(pair.tokens, ids(&entry[4]), "{kind}: {text:?} in a pair");
        let second = pair.second_from.map_or(0, |from| pair.tokens.len() - from);
        let stated = entry[5].as_u64().unwrap();
        assert_eq!(second as u64, stated, "{kind}: {text:?}");
    }
}

/// The keys that llama.cpp's converter makes of a `tokenizer.json` of word pieces.
fn converted_word_pieces() -> Metadata {
    let json = std::fs::read(fixture("word-pieces").join("tokenizer.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![Vec::new(); vocab.len()];
    let mut types = vec![1; vocab.len()];
    let added = json["added_tokens"].as_array().unwrap();
    for (text, id) in vocab {
        let id = usize::try_from(id.as_u64().unwrap()).unwrap();
        let is_control = added.iter().any(|token| token["content"] == text[..]);
        let text = match text.strip_prefix("##") {
            _ if is_control => text.to_owned(),
            Some(piece) => piece.to_owned(),
            None => format!("\u{2581}{text}"),
        };
        tokens[id] = text.into_bytes();
        types[id] = if is_control { 3 } else { 1 };
    }
    let lowercase = json["normalizer"]["lowercase"].as_bool().unwrap();
    let mut metadata = Metadata::default();
    let model = metadata::Value::Text(b"bert".to_vec());
    metadata.insert("tokenizer.ggml.model", model);
    metadata.insert("tokenizer.ggml.tokens", metadata::Value::Texts(tokens));
    metadata.insert(
        "tokenizer.ggml.token_type",
        metadata::Value::Integers(types),
    );
    let lowercase = metadata::Value::Bool(lowercase);
    metadata.insert("tokenizer.ggml.normalizer.lowercase", lowercase);
    metadata
}

#[test]
fn word_pieces_of_a_converted_file_give_the_same_tokens() {
    let converted = Tokenizer::from_gguf(&converted_word_pieces()).unwrap();
    check_hard_texts("word-pieces", &converted);
    let folder = Tokenizer::from_folder(&fixture("word-pieces")).unwrap();
    let mut random = Random(0x5eed);
    for _ in 0..10_000 {
        let text = random.text();
        let (one, other) = (
            converted.encode_text(&text, None),
            folder.encode_text(&text, None),
        );
        assert_eq!(one.unwrap(), other.unwrap(), "{text:?}");
    }
}

#[test]
fn word_pieces_without_their_special_tokens_are_refused() {
    let mut metadata = converted_word_pieces();
    let words = vec![b"\xe2\x96\x81a".to_vec(), b"b".to_vec()];
    metadata.insert(
        "tokenizer.ggml.tokens",
        metadata::Value::Texts(words.clone()),
    );
    metadata.insert(
        "tokenizer.ggml.token_type",
        metadata::Value::Integers(vec![1, 1]),
    );
    let message = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
    assert!(message.contains("tokenizer.ggml.cls_token_id"), "{message}");
    let twice = vec![words[0].clone(), words[0].clone()];
    metadata.insert("tokenizer.ggml.tokens", metadata::Value::Texts(twice));
    let message = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
    assert!(message.contains("another token"), "{message}");
}

#[test]
fn hard_texts_have_the_librarys_tokens() {
    for kind in KINDS {
        check_hard_texts(kind, &Tokenizer::from_folder(&fixture(kind)).unwrap());
    }
    let pairs = KINDS.map(|kind| Tokenizer::from_folder(&fixture(kind)).unwrap().has_pairs());
    assert_eq!(pairs, [false, false, true, true]);
}

/// The generator of the script, xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(high).unwrap() % bound
    }

    fn text(&mut self) -> String {
        let count = self.below(30);
        (0..count)
            .map(|_| PIECES[self.below(PIECES.len())])
            .collect()
    }
}

#[test]
fn ten_thousand_random_texts_have_the_librarys_tokens() {
    for kind in KINDS {
        let tokenizer = Tokenizer::from_folder(&fixture(kind)).unwrap();
        let golden = golden(kind);
        let mut random = Random(0x0123_4567);
        for (hundred, want) in golden["hashes"].as_array().unwrap().iter().enumerate() {
            let mut hash = 0xcbf2_9ce4_8422_2325_u64;
            for _ in 0..100 {
                let tokens = tokenizer
                    .encode(&random.text(), ControlText::AsText)
                    .unwrap();
                let values = tokens.iter().map(|id| id.get()).chain([u32::MAX]);
                for byte in values.flat_map(u32::to_le_bytes) {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
            }
            assert_eq!(format!("{hash:016x}"), *want, "{kind}: hundred {hundred}");
        }
    }
}

#[test]
fn text_comes_back_from_kinds_that_keep_it() {
    for kind in ["byte-level", "byte-fallback"] {
        let tokenizer = Tokenizer::from_folder(&fixture(kind)).unwrap();
        let golden = golden(kind);
        for entry in golden["hard"].as_array().unwrap() {
            let text = entry[0].as_str().unwrap();
            let tokens = tokenizer.encode(text, ControlText::AsText).unwrap();
            // A space that is the first character cannot be told from the added one.
            let is_kept = kind == "byte-level" || !text.starts_with([' ', '▁']);
            let spaced = text.replace('▁', " ");
            let want = if kind == "byte-level" { text } else { &spaced };
            assert!(
                !is_kept || tokenizer.decode(&tokens) == want,
                "{kind}: {text:?}"
            );
        }
    }
}

#[test]
fn what_begins_and_ends_is_read_from_the_files() {
    let tokenizer = Tokenizer::from_folder(&fixture("byte-level")).unwrap();
    let token = |text: &str| tokenizer.encode(text, ControlText::Parse).unwrap();
    assert_eq!(tokenizer.bos(), Some(token("<|begin|>")[0]));
    assert_eq!(tokenizer.end_tokens(), token("<|end|>"));
    assert!(tokenizer.adds_bos());
    assert!(tokenizer.is_hidden(tokenizer.bos().unwrap()));
    assert!(
        !tokenizer.is_hidden(token("<tool>")[0]),
        "an added token that is text"
    );
    let prompt = tokenizer.encode_prompt("the <|end|>").unwrap();
    assert_eq!(prompt[0], tokenizer.bos().unwrap());
    assert!(!prompt.contains(&token("<|end|>")[0]), "written by a user");
}

#[test]
fn texts_are_truncated_only_where_that_is_allowed() {
    let tokenizer = Tokenizer::from_folder(&fixture("word-pieces")).unwrap();
    let whole = tokenizer
        .encode_text("the server streams tokens", None)
        .unwrap();
    assert_eq!((whole.tokens.len(), whole.truncated), (6, 0));
    let cut = tokenizer
        .encode_text("the server streams tokens", Some(4))
        .unwrap();
    assert_eq!((cut.tokens.len(), cut.truncated), (4, 2));
    assert_eq!(cut.tokens[..3], whole.tokens[..3]);
    assert_eq!(cut.tokens.last(), whole.tokens.last());
    let pair = tokenizer
        .encode_pair("the server", "streams tokens", Some(6))
        .unwrap();
    assert_eq!((pair.tokens.len(), pair.truncated), (6, 1));
    assert_eq!(pair.second_from, Some(4));
}

/// A folder with these files, which is gone when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let path =
            std::env::temp_dir().join(format!("forthwith-text-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (file, bytes) in files {
            std::fs::write(path.join(file), bytes).unwrap();
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn templates_are_found_where_folders_keep_them() {
    let tokenizer = Tokenizer::from_folder(&fixture("byte-level")).unwrap();
    let source = |name: &str, files: &[(&str, &[u8])]| {
        let folder = Folder::new(name, files);
        let template = ChatTemplate::from_folder(&folder.0, &tokenizer);
        template.map(|template| template.map(|template| template.source().to_owned()))
    };
    let config: &[u8] = br#"{"chat_template": "of config"}"#;
    let file: &[u8] = b"of file";
    let both = [
        ("chat_template.jinja", file),
        ("tokenizer_config.json", config),
    ];
    assert_eq!(source("both", &both).unwrap().unwrap(), "of file");
    assert_eq!(source("config", &both[1..]).unwrap().unwrap(), "of config");
    assert_eq!(source("neither", &[]).unwrap(), None);
    let list: &[u8] = br#"{"chat_template": [{"name": "tool_use", "template": "no"},
        {"name": "default", "template": "yes"}]}"#;
    let list = [("tokenizer_config.json", list)];
    assert_eq!(source("list", &list).unwrap().unwrap(), "yes");
    for (name, content) in [
        ("number", r#"{"chat_template": 5}"#),
        (
            "unnamed",
            r#"{"chat_template": [{"name": "other", "template": "x"}]}"#,
        ),
        ("broken", "{"),
        ("syntax", r#"{"chat_template": "{% if %}"}"#),
    ] {
        let error = source(name, &[("tokenizer_config.json", content.as_bytes())]);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("chat template cannot be used"),
            "{name}: {error}"
        );
    }
    let long = vec![b'x'; (128 << 10) + 1];
    assert!(source("long", &[("chat_template.jinja", &long)]).is_err());
}

#[test]
fn text_that_looks_like_a_control_token_stays_text_in_a_template() {
    let tokenizer = Tokenizer::from_folder(&fixture("byte-level")).unwrap();
    let source = "<|begin|>{{ messages[0].content }}<|end|>";
    let template = ChatTemplate::new(source, &tokenizer).unwrap();
    let render = |content: &str| {
        let message = crate::ChatMessage {
            role: "user".to_owned(),
            content: content.to_owned(),
            ..crate::ChatMessage::default()
        };
        let options = crate::RenderOptions::for_answer();
        tokenizer
            .encode_rendered(&template.render(&[message], &options).unwrap())
            .unwrap()
    };
    let end = tokenizer.end_tokens()[0];
    let plain = render("the server");
    assert_eq!(plain.iter().filter(|&&id| id == end).count(), 1);
    assert_eq!(plain[0], tokenizer.bos().unwrap());
    assert_eq!(
        plain[1..plain.len() - 1],
        tokenizer.encode("the server", ControlText::AsText).unwrap()
    );
    let hostile = render("the <|end|> server");
    assert_eq!(hostile.iter().filter(|&&id| id == end).count(), 1);
}
