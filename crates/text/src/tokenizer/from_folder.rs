//! Builds a tokenizer from the files of a model folder.
//!
//! `tokenizer.json` says how text becomes tokens, `tokenizer_config.json` which tokens begin and end
//! a sequence, `generation_config.json` and `config.json` which ones end an answer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use forthwith_core::units::TokenId;
use serde::Deserialize;
use serde_json::Value;

use super::byte_level::Alphabet;
use super::error::TokenizerError;
use super::library::Library;
use super::scored_merges::{SPACE, named_byte};
use super::special::{ControlGuard, SpecialTokens};
use super::vocabulary::{MAX_TOKENS, TokenBytes};
use super::{Model, Tokenizer};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
/// The largest `tokenizer.json`; known ones have up to 33 MB.
const MAX_TOKENIZER: u64 = 128 << 20;
/// The largest other file.
const MAX_OTHER: u64 = 16 << 20;

/// What is read of `tokenizer.json` beside what the library reads.
#[derive(Deserialize)]
struct Head {
    model: ModelHead,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct ModelHead {
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// How the texts of tokens stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Each byte is a printable character.
    Bytes,
    /// `▁` is a space, `<0x41>` a byte.
    Spaces,
    /// `##` continues a word, all others begin one.
    Pieces,
}

pub(super) fn build(folder: &Path) -> Result<Tokenizer, TokenizerError> {
    let Some(json) = read(&folder.join(TOKENIZER), TOKENIZER, MAX_TOKENIZER)? else {
        return Err(missing(folder));
    };
    let config = read_json(folder, CONFIG)?;
    of_json(&json, config.as_ref(), |eos, count| {
        end_tokens(folder, eos, count)
    })
}

/// Builds it from the content of `tokenizer.json` and of `tokenizer_config.json`; `ends` gives the tokens
/// that end an answer.
pub(super) fn of_json(
    json: &[u8],
    config: Option<&Value>,
    ends: impl FnOnce(Option<TokenId>, usize) -> Result<Vec<TokenId>, TokenizerError>,
) -> Result<Tokenizer, TokenizerError> {
    let head: Head = serde_json::from_slice(json).map_err(|error| wrong(TOKENIZER, &error))?;
    head.check()?;
    let library = Library::new(json)?;
    let texts = library.texts();
    let count = texts.iter().map(|(id, _)| *id as usize + 1).max();
    let count = count.unwrap_or(0);
    if count == 0 || count > MAX_TOKENS {
        return Err(TokenizerError::VocabularySize(count));
    }
    let mut hidden = vec![true; count];
    let mut by_id: Vec<&str> = vec![""; count];
    for (id, text) in &texts {
        by_id[*id as usize] = text;
        hidden[*id as usize] = false;
    }
    let mut added = vec![false; count];
    let special = || head.added_tokens.iter().filter(|token| token.special);
    for token in &head.added_tokens {
        let place = added.get_mut(token.id as usize);
        *place.ok_or_else(|| TokenizerError::File {
            file: TOKENIZER,
            problem: format!("added_tokens: id {} is not in the vocabulary", token.id),
        })? = true;
    }
    for token in special() {
        hidden[token.id as usize] = true;
    }
    let bytes = bytes(head.spelling(), &by_id, &added);
    let around = library.around()?;
    let bos = named(config, "bos_token", &library)?;
    let eos = named(config, "eos_token", &library)?;
    // A text of one character cannot be told from the same character in a user's text.
    let controls = || special().filter(|token| token.content.chars().nth(1).is_some());
    let kind = format!(
        "{} of {TOKENIZER} ({count} tokens)",
        head.model.r#type.as_deref().unwrap_or("model")
    );
    Ok(Tokenizer {
        kind,
        bytes,
        hidden,
        end_tokens: ends(eos, count)?,
        bos,
        eos,
        adds_bos: bos.is_some() && around.before.first() == bos.as_ref(),
        adds_space: head.spelling() != Spelling::Bytes && adds_space(&library)?,
        user_defined: SpecialTokens::new([])?,
        all_special: SpecialTokens::new(
            controls().map(|token| (TokenId::new(token.id), token.content.as_str())),
        )?,
        guard: Arc::new(ControlGuard::new(
            controls().map(|token| token.content.as_str()),
        )?),
        around,
        model: Model::Library(Box::new(library)),
    })
}

impl Head {
    /// The library takes some lists for parts that do nothing.
    fn check(&self) -> Result<(), TokenizerError> {
        for (name, part) in [
            ("normalizer", &self.normalizer),
            ("pre_tokenizer", &self.pre_tokenizer),
            ("post_processor", &self.post_processor),
            ("decoder", &self.decoder),
        ] {
            if part.as_ref().is_some_and(|part| !part.is_object()) {
                return Err(TokenizerError::File {
                    file: TOKENIZER,
                    problem: format!("{name}: must be an object"),
                });
            }
        }
        Ok(())
    }

    fn spelling(&self) -> Spelling {
        let names = |part: Option<&Value>, name: &str| {
            let text = part.map(Value::to_string).unwrap_or_default();
            text.contains(&format!("\"type\":\"{name}\""))
        };
        if self.model.r#type.as_deref() == Some("WordPiece") {
            Spelling::Pieces
        } else if names(self.decoder.as_ref(), "ByteLevel")
            || names(self.pre_tokenizer.as_ref(), "ByteLevel")
        {
            Spelling::Bytes
        } else {
            Spelling::Spaces
        }
    }
}

/// The bytes that tokens stand for; added tokens are spelled as they are.
fn bytes(spelling: Spelling, texts: &[&str], added: &[bool]) -> TokenBytes {
    let mut bytes = TokenBytes::default();
    let alphabet = Alphabet::new();
    for (text, &is_added) in texts.iter().zip(added) {
        bytes.push(match spelling {
            _ if is_added => text.as_bytes().to_vec(),
            Spelling::Bytes => alphabet.decode(text),
            Spelling::Spaces => match named_byte(text.as_bytes()) {
                Some(byte) => vec![byte],
                None => text.replace(SPACE, " ").into_bytes(),
            },
            Spelling::Pieces => match text.strip_prefix("##") {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {text}").into_bytes(),
            },
        });
    }
    bytes
}

/// Whether the first word of a text gets a space before it.
fn adds_space(library: &Library) -> Result<bool, TokenizerError> {
    let mut tokens = Vec::new();
    let encoded = library.encode("a", false, &mut tokens);
    encoded.map_err(|error| TokenizerError::Library(error.to_string()))?;
    let first = tokens.first().map(|id| id.get());
    let mut texts = library.texts().into_iter();
    let text = texts.find(|(id, _)| Some(*id) == first);
    Ok(text.is_some_and(|(_, text)| text.starts_with(SPACE)))
}

/// The token that a key of the configuration names, by its text.
fn named(
    config: Option<&Value>,
    key: &str,
    library: &Library,
) -> Result<Option<TokenId>, TokenizerError> {
    let value = config.and_then(|config| config.get(key));
    let text = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => Some(text.as_str()),
        Some(object) => object.get("content").and_then(Value::as_str),
    };
    let wrong = |problem: String| TokenizerError::File {
        file: CONFIG,
        problem: format!("{key}: {problem}"),
    };
    let text = text.ok_or_else(|| wrong("must be a text".to_owned()))?;
    let shown: String = text.chars().take(64).collect();
    let id = library.token_id(text);
    id.map(Some)
        .ok_or_else(|| wrong(format!("{shown:?} is not in the vocabulary")))
}

/// All tokens that end an answer: one or a list in each of two files, and the tokenizer's own.
fn end_tokens(
    folder: &Path,
    eos: Option<TokenId>,
    count: usize,
) -> Result<Vec<TokenId>, TokenizerError> {
    const KEY: &str = "eos_token_id";
    let mut ends: BTreeSet<TokenId> = eos.into_iter().collect();
    for file in ["generation_config.json", "config.json"] {
        let json = read_json(folder, file)?;
        let ids = match json.as_ref().and_then(|json| json.get(KEY)) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(ids)) => ids.clone(),
            Some(one) => vec![one.clone()],
        };
        for id in ids {
            let small = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let known = small.filter(|&id| (id as usize) < count);
            let id = known.ok_or_else(|| TokenizerError::File {
                file,
                problem: format!("{KEY}: {id} is not a token of the {count} there are"),
            })?;
            ends.insert(TokenId::new(id));
        }
    }
    Ok(ends.into_iter().collect())
}

/// What to do where a folder has no `tokenizer.json`.
fn missing(folder: &Path) -> TokenizerError {
    const OTHERS: [&str; 4] = ["tokenizer.model", "vocab.txt", "vocab.json", "spiece.model"];
    let other = OTHERS.into_iter().find(|name| folder.join(name).exists());
    let problem = match other {
        Some(other) => format!(
            "missing; the folder has `{other}`, from which it is made by \
             `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)` of transformers"
        ),
        None => "missing; text cannot be turned into tokens without it".to_owned(),
    };
    TokenizerError::File {
        file: TOKENIZER,
        problem,
    }
}

/// A file of JSON, if it is there.
pub(crate) fn read_json(
    folder: &Path,
    file: &'static str,
) -> Result<Option<Value>, TokenizerError> {
    let Some(bytes) = read(&folder.join(file), file, MAX_OTHER)? else {
        return Ok(None);
    };
    let json = serde_json::from_slice(&bytes);
    json.map(Some).map_err(|error| wrong(file, &error))
}

/// A file's bytes, if it is there and not larger than allowed.
pub(crate) fn read(
    path: &Path,
    file: &'static str,
    most: u64,
) -> Result<Option<Vec<u8>>, TokenizerError> {
    let broken = |problem: String| TokenizerError::File { file, problem };
    let opened = match File::open(path) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(error.to_string())),
    };
    let mut bytes = Vec::new();
    let read = opened.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| broken(error.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(broken(format!("has more than {most} bytes")));
    }
    Ok(Some(bytes))
}

fn wrong(file: &'static str, error: &serde_json::Error) -> TokenizerError {
    TokenizerError::File {
        file,
        problem: error.to_string(),
    }
}
