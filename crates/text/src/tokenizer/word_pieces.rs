//! The tokenizer of BERT, as GGUF files hold it: a list of words and pieces of words.
//!
//! The file's list becomes a `tokenizer.json`, which the library runs: what llama.cpp's converter took
//! apart is put together again.
//!
//! Source: llama.cpp's converter (`▁` begins a word, all else continues one); Devlin et al. 2018,
//! arXiv:1810.04805.

use forthwith_core::metadata::Metadata;
use forthwith_core::units::TokenId;
use serde_json::{Map, Value, json};

use super::error::TokenizerError;
use super::from_gguf::{BOS, EOS, SEP, UNKNOWN};
use super::scored_merges::SPACE;
use super::vocabulary::{Class, Vocabulary};
use super::{Tokenizer, from_folder};

const CLS: &str = "tokenizer.ggml.cls_token_id";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

pub(super) fn build(
    vocabulary: &Vocabulary<'_>,
    metadata: &Metadata,
) -> Result<Tokenizer, TokenizerError> {
    let lowercase = metadata.boolean(LOWERCASE)?.unwrap_or(true);
    let strip_accents = metadata.boolean(ACCENTS)?.unwrap_or(lowercase);
    let texts = texts(vocabulary)?;
    let special = |keys: &[&'static str], usual: &str| -> Result<(String, usize), TokenizerError> {
        for key in keys {
            if let Some(id) = vocabulary.special(metadata, key)? {
                return Ok((texts[id.index()].clone(), id.index()));
            }
        }
        let found = texts.iter().position(|text| text == usual);
        let id = found.ok_or_else(|| TokenizerError::File {
            file: "tokenizer.ggml",
            problem: format!("neither `{}` nor a token {usual}", keys[0]),
        })?;
        Ok((usual.to_owned(), id))
    };
    let (cls, cls_id) = special(&[CLS, BOS], "[CLS]")?;
    let (sep, sep_id) = special(&[SEP, EOS], "[SEP]")?;
    let (unknown, _) = special(&[UNKNOWN], "[UNK]")?;
    let around = |kind: &str, id: &str, of: u8| json!({ kind: { "id": id, "type_id": of } });
    let first = [
        around("SpecialToken", &cls, 0),
        around("Sequence", "A", 0),
        around("SpecialToken", &sep, 0),
    ];
    let second = [around("Sequence", "B", 1), around("SpecialToken", &sep, 1)];
    let pair: Vec<&Value> = first.iter().chain(&second).collect();
    let words: Map<String, Value> = texts
        .iter()
        .enumerate()
        .map(|(id, text)| (text.clone(), json!(id)))
        .collect();
    let json = json!({
        "version": "1.0",
        "added_tokens": added_tokens(vocabulary, &texts),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": strip_accents, "lowercase": lowercase,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": pair,
            "special_tokens": {
                &cls: { "id": cls, "ids": [cls_id], "tokens": [cls] },
                &sep: { "id": sep, "ids": [sep_id], "tokens": [sep] },
            },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": words,
        },
    });
    let json = json.to_string();
    let mut tokenizer = from_folder::of_json(json.as_bytes(), None, |_, _| Ok(Vec::new()))?;
    let letters = if lowercase {
        "lower case"
    } else {
        "letters as they are"
    };
    tokenizer.kind = format!("pieces of words (bert, {letters}, {} tokens)", texts.len());
    tokenizer.bos = Some(TokenId::new(u32::try_from(cls_id).unwrap_or(u32::MAX)));
    Ok(tokenizer)
}

fn added_tokens(vocabulary: &Vocabulary<'_>, texts: &[String]) -> Vec<Value> {
    let tokens = texts.iter().zip(&vocabulary.classes).enumerate();
    let control = tokens.filter(|(_, (_, class))| class.is_control());
    control
        .map(|(id, (text, _))| {
            json!({
                "id": id, "content": text, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect()
}

/// What tokens are called in `tokenizer.json`.
fn texts(vocabulary: &Vocabulary<'_>) -> Result<Vec<String>, TokenizerError> {
    let texts = vocabulary.texts.iter().zip(&vocabulary.classes).enumerate();
    let mut seen = std::collections::HashSet::new();
    texts
        .map(|(id, (text, class))| {
            let broken = |problem: &str| TokenizerError::Token {
                id,
                problem: problem.to_owned(),
            };
            let text = std::str::from_utf8(text).map_err(|_| broken("its text is not UTF-8"))?;
            let whole = |text: &str| text.starts_with('[') && text.ends_with(']');
            let text = match text.strip_prefix(SPACE) {
                Some(word) => word.to_owned(),
                None if class.is_control() || *class == Class::Unused || whole(text) => {
                    text.to_owned()
                }
                None => format!("##{text}"),
            };
            if seen.insert(text.clone()) {
                Ok(text)
            } else {
                Err(broken("its text is that of another token"))
            }
        })
        .collect()
}
