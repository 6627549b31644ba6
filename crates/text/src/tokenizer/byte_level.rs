//! The GGUF `gpt2` kind: byte-pair merges over bytes, each byte written as a printable character.
//!
//! The merging itself is the library's. Around it: the cutting into words, the alphabet, and bytes
//! that have no token. Such bytes are dropped (as llama.cpp does), but nothing merges across them.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forthwith_core::metadata::{Metadata, require};
use forthwith_core::units::TokenId;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::error::{TokenizeError, TokenizerError};
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::Vocabulary;

const MERGES: &str = "tokenizer.ggml.merges";

/// Words, the byte alphabet and the library's merges.
#[derive(Debug)]
pub(super) struct ByteLevel {
    pre_tokenizer: PreTokenizer,
    merges: BPE,
    /// The character of each byte, and whether the vocabulary has it.
    alphabet: Vec<(char, bool)>,
}

/// The character that stands for a byte: itself where printable, else one from U+0100 on.
pub(super) fn character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count();
    u32::try_from(before)
        .ok()
        .and_then(|before| char::from_u32(0x100 + before))
        .expect("fewer than 256 characters are not printable")
}

/// The way back from characters to bytes.
pub(super) struct Alphabet(Vec<(char, u8)>);

impl Alphabet {
    pub(super) fn new() -> Self {
        let mut pairs: Vec<_> = (0..=255).map(|byte| (character(byte), byte)).collect();
        pairs.sort_unstable();
        Self(pairs)
    }

    /// The bytes that a token text stands for; characters outside the alphabet stand for themselves.
    pub(super) fn decode(&self, text: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(text.len());
        for character in text.chars() {
            match self.0.binary_search_by_key(&character, |&(key, _)| key) {
                Ok(index) => bytes.push(self.0[index].1),
                Err(_) => bytes.extend(character.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        bytes
    }
}

impl ByteLevel {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        metadata: &Metadata,
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let mut ids = Vocab::with_capacity(vocabulary.len());
        let mut control = Vocab::default();
        for (id, text, class) in vocabulary.entries() {
            let kind = if class.is_text() {
                &mut ids
            } else {
                &mut control
            };
            if let Some(first) = kind.insert(text.to_owned(), id.get()) {
                return Err(Vocabulary::duplicate(id, text, first));
            }
        }
        let rules = require(MERGES, metadata.texts(MERGES)?)?;
        let rules = read_merges(rules, &ids, &control)?;
        let alphabet = (0..=255)
            .map(|byte| {
                let character = character(byte);
                (
                    character,
                    ids.contains_key(character.encode_utf8(&mut [0; 4]) as &str),
                )
            })
            .collect();
        // The vocabulary is checked above; the library has panicked on bad ones before.
        let merges = catch_unwind(AssertUnwindSafe(|| {
            BPE::builder().vocab_and_merges(ids, rules).build()
        }))
        .map_err(|_| TokenizerError::Library("the library failed to build it".to_owned()))?
        .map_err(|error| TokenizerError::Library(error.to_string()))?;
        Ok(Self {
            pre_tokenizer,
            merges,
            alphabet,
        })
    }

    /// Appends the tokens of one fragment of text.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizeError> {
        let mut word = String::new();
        for piece in self.pre_tokenizer.split(text) {
            if self.pre_tokenizer.whole_words && self.whole_word(piece, out) {
                continue;
            }
            for part in piece
                .as_bytes()
                .split(|&byte| !self.alphabet[usize::from(byte)].1)
            {
                word.clear();
                word.extend(part.iter().map(|&byte| self.alphabet[usize::from(byte)].0));
                self.merge(&word, out)?;
            }
        }
        Ok(())
    }

    /// Takes a piece as one token if it is one.
    fn whole_word(&self, piece: &str, out: &mut Vec<TokenId>) -> bool {
        let word: String = piece
            .bytes()
            .map(|byte| self.alphabet[usize::from(byte)].0)
            .collect();
        let id = self.merges.token_to_id(&word);
        out.extend(id.map(TokenId::new));
        id.is_some()
    }

    fn merge(&self, word: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizeError> {
        if word.is_empty() {
            return Ok(());
        }
        let tokens = self
            .merges
            .tokenize(word)
            .map_err(|error| TokenizeError::Library(error.to_string()))?;
        out.extend(tokens.iter().map(|token| TokenId::new(token.id)));
        Ok(())
    }
}

/// The merge rules in order, each of known tokens; those that touch a control token cannot apply to
/// text and are left out.
fn read_merges(rules: &[Vec<u8>], ids: &Vocab, control: &Vocab) -> Result<Merges, TokenizerError> {
    let mut merges = Merges::with_capacity(rules.len());
    let mut seen = HashSet::with_capacity(rules.len());
    let mut joined = String::new();
    for (index, rule) in rules.iter().enumerate() {
        let wrong = |problem: &str| TokenizerError::Merge {
            index,
            problem: problem.to_owned(),
        };
        let rule = std::str::from_utf8(rule).map_err(|_| wrong("not UTF-8"))?;
        // The first character may be a space itself.
        let first = rule.chars().next().map_or(0, char::len_utf8);
        let space = rule[first..]
            .find(' ')
            .ok_or_else(|| wrong("no space between two tokens"))?;
        let (left, right) = (&rule[..first + space], &rule[first + space + 1..]);
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let parts = [left, right, joined.as_str()];
        let missing = |text: &&str| !ids.contains_key(*text) && !control.contains_key(*text);
        if let Some(text) = parts.into_iter().find(missing) {
            let shown: String = text.chars().take(64).collect();
            return Err(wrong(&format!("{shown:?} is not in the vocabulary")));
        }
        let applies = parts.iter().all(|&text| ids.contains_key(text));
        // The first of two equal rules counts.
        if applies && seen.insert((left, right)) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}

#[cfg(test)]
mod tests;
