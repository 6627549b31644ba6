//! The vocabulary as a file gives it: texts, classes, scores, checked.

use forthwith_core::metadata::{Metadata, require};
use forthwith_core::units::TokenId;

use super::error::TokenizerError;

/// More tokens than any vocabulary has.
pub(super) const MAX_TOKENS: usize = 1 << 22;
/// A longer token text is refused, so that the work per character stays bounded.
const MAX_TEXT: usize = 4096;

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Class {
    fn from_gguf(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether tokens of this class steer the model instead of standing for text.
    pub(super) fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// Whether text can turn into such a token by merging.
    pub(super) fn is_text(self) -> bool {
        !self.is_control() && self != Self::Byte
    }
}

/// Texts, classes and scores of equal length.
#[derive(Debug)]
pub(super) struct Vocabulary<'m> {
    pub(super) texts: &'m [Vec<u8>],
    pub(super) classes: Vec<Class>,
    pub(super) scores: Option<&'m [f32]>,
}

impl<'m> Vocabulary<'m> {
    pub(super) fn read(metadata: &'m Metadata) -> Result<Self, TokenizerError> {
        let texts = require(TOKENS, metadata.texts(TOKENS)?)?;
        if texts.is_empty() || texts.len() > MAX_TOKENS {
            return Err(TokenizerError::VocabularySize(texts.len()));
        }
        if let Some(id) = texts.iter().position(|text| text.len() > MAX_TEXT) {
            let problem = format!("its text has more than {MAX_TEXT} bytes");
            return Err(TokenizerError::Token { id, problem });
        }
        let classes = match metadata.integers(TYPES)? {
            None => vec![Class::Normal; texts.len()],
            Some(numbers) => {
                check_length(TYPES, numbers.len(), texts.len())?;
                numbers
                    .iter()
                    .enumerate()
                    .map(|(id, &number)| {
                        Class::from_gguf(number).ok_or_else(|| TokenizerError::Token {
                            id,
                            problem: format!("its type is {number}, known are 1 to 6"),
                        })
                    })
                    .collect::<Result<_, _>>()?
            }
        };
        let scores = metadata.floats(SCORES)?;
        if let Some(scores) = scores {
            check_length(SCORES, scores.len(), texts.len())?;
            if let Some(id) = scores.iter().position(|score| score.is_nan()) {
                let problem = "its score is not a number".to_owned();
                return Err(TokenizerError::Token { id, problem });
            }
        }
        Ok(Self {
            texts,
            classes,
            scores,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Tokens with a text in UTF-8; others cannot come from input and take no part in encoding.
    pub(super) fn entries(&self) -> impl Iterator<Item = (TokenId, &'m str, Class)> {
        let texts = self.texts;
        (0u32..)
            .zip(texts.iter().zip(&self.classes))
            .filter_map(|(id, (text, &class))| {
                let text = std::str::from_utf8(text).ok()?;
                (!text.is_empty()).then_some((TokenId::new(id), text, class))
            })
    }

    /// Two tokens with one text would make encoding a matter of chance.
    pub(super) fn duplicate(
        id: TokenId,
        text: &str,
        first: impl std::fmt::Display,
    ) -> TokenizerError {
        TokenizerError::Token {
            id: id.index(),
            problem: format!("its text {text:?} is also that of token {first}"),
        }
    }

    /// A special token's id, checked.
    pub(super) fn special(
        &self,
        metadata: &Metadata,
        key: &'static str,
    ) -> Result<Option<TokenId>, TokenizerError> {
        let Some(id) = metadata.unsigned(key)? else {
            return Ok(None);
        };
        match u32::try_from(id) {
            Ok(small) if (small as usize) < self.len() => Ok(Some(TokenId::new(small))),
            _ => Err(TokenizerError::SpecialId {
                key,
                id,
                tokens: self.len(),
            }),
        }
    }
}

fn check_length(key: &'static str, found: usize, tokens: usize) -> Result<(), TokenizerError> {
    if found == tokens {
        Ok(())
    } else {
        Err(TokenizerError::Length { key, found, tokens })
    }
}

/// The bytes that each token stands for, in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    pub(super) fn push(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.bytes.extend(bytes);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of one token; none for an id that does not exist.
    pub(super) fn get(&self, id: TokenId) -> &[u8] {
        let Some(&end) = self.ends.get(id.index()) else {
            return &[];
        };
        let start = id
            .index()
            .checked_sub(1)
            .map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}
