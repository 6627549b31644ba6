//! The tokenizer: text to token ids, token ids to bytes.

use forthwith_core::metadata::{Metadata, MetadataError};
use forthwith_core::units::TokenId;

use crate::template::RenderedPrompt;

/// What the text of a control token in the input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlText {
    /// It is text like any other: input that a user wrote.
    AsText,
    /// It becomes the control token: input that is trusted.
    Parse,
}

/// A tokenizer cannot be built from what a file says.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or has the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// A text cannot be tokenized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizeError {
    /// The vocabulary has no token for a character and no bytes to spell it with.
    #[error("the vocabulary has no token for the character {0:?}")]
    NoToken(char),
}

/// Text to token ids and back; shared by all requests.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    pub fn from_gguf(_metadata: &Metadata) -> Result<Self, TokenizerError> {
        unimplemented!()
    }

    /// A tokenizer of whole words split at white space; decoding joins them with single spaces.
    pub fn words(
        _words: &[String],
        _unknown: TokenId,
        _end_tokens: Vec<TokenId>,
        _hidden: Vec<TokenId>,
    ) -> Result<Self, TokenizerError> {
        unimplemented!()
    }

    /// The tokens of a text; adds no beginning-of-sequence token.
    pub fn encode(
        &self,
        _text: &str,
        _control: ControlText,
    ) -> Result<Vec<TokenId>, TokenizeError> {
        unimplemented!()
    }

    /// The tokens of a raw prompt, after the beginning-of-sequence token if the model wants one.
    pub fn encode_prompt(&self, _text: &str) -> Result<Vec<TokenId>, TokenizeError> {
        unimplemented!()
    }

    /// The tokens of a rendered conversation; control tokens come from the template alone.
    pub fn encode_rendered(
        &self,
        _rendered: &RenderedPrompt,
    ) -> Result<Vec<TokenId>, TokenizeError> {
        unimplemented!()
    }

    /// How many tokens the vocabulary has.
    pub fn vocab_size(&self) -> usize {
        unimplemented!()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<TokenId> {
        unimplemented!()
    }

    /// Whether prompts begin with [`Self::bos`].
    pub fn adds_bos(&self) -> bool {
        unimplemented!()
    }

    /// The tokens that end an answer.
    pub fn end_tokens(&self) -> &[TokenId] {
        unimplemented!()
    }

    /// Whether a token is never shown in returned text.
    pub fn is_hidden(&self, _id: TokenId) -> bool {
        unimplemented!()
    }

    /// The bytes that a token stands for; none for an id outside the vocabulary.
    pub fn token_bytes(&self, _id: TokenId) -> &[u8] {
        unimplemented!()
    }

    /// The tokenizer in words, for people.
    pub fn kind(&self) -> &str {
        unimplemented!()
    }
}
