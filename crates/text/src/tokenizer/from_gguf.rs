//! Builds a tokenizer from what a GGUF file says.

use std::sync::Arc;

use forthwith_core::metadata::{Metadata, require};
use forthwith_core::units::TokenId;

use super::byte_level::{Alphabet, ByteLevel};
use super::error::TokenizerError;
use super::library::Around;
use super::pre_tokenizer::PreTokenizer;
use super::scored_merges::{SPACE, ScoredMerges, named_byte};
use super::special::{ControlGuard, SpecialTokens};
use super::vocabulary::{Class, TokenBytes, Vocabulary};
use super::{Model, Tokenizer, end_tokens, word_pieces};

pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(super) const EOS: &str = "tokenizer.ggml.eos_token_id";
/// The key is spelled so in files.
pub(super) const SEP: &str = "tokenizer.ggml.seperator_token_id";
pub(super) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SEP: &str = "tokenizer.ggml.add_sep_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";

pub(super) fn build(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let model_key = "tokenizer.ggml.model";
    let model = require(model_key, metadata.text(model_key)?)?;
    let mut vocabulary = Vocabulary::read(metadata)?;
    if model == "bert" {
        return word_pieces::build(&vocabulary, metadata);
    }
    let end_tokens = end_tokens::find(&mut vocabulary, metadata)?;
    let bos = vocabulary.special(metadata, BOS)?;
    let eos = vocabulary.special(metadata, EOS)?;
    let unknown = vocabulary.special(metadata, UNKNOWN)?;
    let add_bos = metadata.boolean(ADD_BOS)?;
    let add_space = metadata.boolean(ADD_SPACE)?;
    let (model, kind, bytes, adds_bos, adds_space) = match model {
        "gpt2" => {
            let pre = metadata.text("tokenizer.ggml.pre")?.unwrap_or("default");
            let pre_tokenizer = PreTokenizer::named(pre)?;
            let kind = format!("byte-level BPE (gpt2, pre-tokenizer {pre})");
            let adds_bos = add_bos.unwrap_or(pre_tokenizer.adds_bos);
            let bytes = byte_level_bytes(&vocabulary);
            let model = ByteLevel::new(&vocabulary, metadata, pre_tokenizer)?;
            (
                Model::ByteLevel(Box::new(model)),
                kind,
                bytes,
                adds_bos,
                false,
            )
        }
        "llama" => {
            let kind = "score-ordered BPE with byte fallback (llama)".to_owned();
            let bytes = scored_bytes(&vocabulary);
            let model = ScoredMerges::new(&vocabulary, unknown)?;
            let (adds_bos, adds_space) = (add_bos.unwrap_or(true), add_space.unwrap_or(true));
            (Model::Scored(model), kind, bytes, adds_bos, adds_space)
        }
        other => {
            let shown = other.chars().take(64).collect();
            return Err(TokenizerError::UnknownModel(shown));
        }
    };
    let control = |class: Class| class.is_control();
    let adds_bos = adds_bos && bos.is_some();
    Ok(Tokenizer {
        around: around(&vocabulary, metadata, bos.filter(|_| adds_bos), eos)?,
        model,
        kind,
        bytes,
        hidden: vocabulary
            .classes
            .iter()
            .map(|&class| control(class))
            .collect(),
        end_tokens,
        bos,
        eos,
        adds_bos,
        adds_space,
        user_defined: special(&vocabulary, |class| class == Class::UserDefined)?,
        all_special: special(&vocabulary, |class| {
            class == Class::UserDefined || control(class)
        })?,
        guard: Arc::new(ControlGuard::new(
            matchable(&vocabulary, control).map(|(_, text)| text),
        )?),
    })
}

/// What stands around texts that are computed as a whole.
fn around(
    vocabulary: &Vocabulary<'_>,
    metadata: &Metadata,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
) -> Result<Around, TokenizerError> {
    let adds =
        |key| -> Result<bool, TokenizerError> { Ok(metadata.boolean(key)?.unwrap_or(false)) };
    let adds_eos = adds(ADD_EOS)?;
    let after: Vec<TokenId> = eos.filter(|_| adds_eos).into_iter().collect();
    let pairs = adds(ADD_SEP)? && !after.is_empty();
    let sep = vocabulary.special(metadata, SEP)?.or(eos);
    Ok(Around {
        before: bos.into_iter().collect(),
        // The first text's own end, and what separates it from the second.
        between: pairs.then(|| eos.into_iter().chain(sep).collect()),
        after_pair: after.clone(),
        after,
        two_types: false,
    })
}

fn special(
    vocabulary: &Vocabulary<'_>,
    wanted: impl Fn(Class) -> bool,
) -> Result<SpecialTokens, TokenizerError> {
    SpecialTokens::new(matchable(vocabulary, wanted))
}

/// Tokens of a class that are looked for in text. A control text of one character is not: it could
/// not be told from the same character in a user's text.
fn matchable<'m>(
    vocabulary: &Vocabulary<'m>,
    wanted: impl Fn(Class) -> bool,
) -> impl Iterator<Item = (TokenId, &'m str)> {
    vocabulary.entries().filter_map(move |(id, text, class)| {
        let long_enough = !class.is_control() || text.chars().nth(1).is_some();
        (wanted(class) && long_enough).then_some((id, text))
    })
}

fn byte_level_bytes(vocabulary: &Vocabulary<'_>) -> TokenBytes {
    let alphabet = Alphabet::new();
    let mut bytes = TokenBytes::default();
    for (text, class) in vocabulary.texts.iter().zip(&vocabulary.classes) {
        match std::str::from_utf8(text) {
            Ok(text) if matches!(class, Class::Normal | Class::Unused) => {
                bytes.push(alphabet.decode(text));
            }
            _ => bytes.push(text.iter().copied()),
        }
    }
    bytes
}

fn scored_bytes(vocabulary: &Vocabulary<'_>) -> TokenBytes {
    let mut bytes = TokenBytes::default();
    for (text, class) in vocabulary.texts.iter().zip(&vocabulary.classes) {
        let byte = (*class == Class::Byte).then(|| named_byte(text)).flatten();
        match (byte, std::str::from_utf8(text)) {
            (Some(byte), _) => bytes.push([byte]),
            (None, Ok(text)) if matches!(class, Class::Normal | Class::Unused) => {
                bytes.push(text.replace(SPACE, " ").into_bytes());
            }
            _ => bytes.push(text.iter().copied()),
        }
    }
    bytes
}
