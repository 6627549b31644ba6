//! What can go wrong when a tokenizer is built or used.

use forthwith_core::metadata::MetadataError;

/// A tokenizer cannot be built from what a file says.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or has the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A file of a model folder is missing or wrong.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: &'static str,
        /// What is wrong, with the field.
        problem: String,
    },
    /// The file's tokenizer is of a kind that is not supported.
    #[error("tokenizer.ggml.model is `{0}`; supported are gpt2, llama and bert")]
    UnknownModel(String),
    /// The file names an unknown way to cut text into words.
    #[error("tokenizer.ggml.pre is `{pre}`; supported are {known}")]
    UnknownPreTokenizer {
        /// What the file says.
        pre: String,
        /// The supported names.
        known: String,
    },
    /// There is no vocabulary, or one too large to be true.
    #[error("the vocabulary has {0} tokens; allowed are 1 to {max}", max = super::MAX_TOKENS)]
    VocabularySize(usize),
    /// An array has another length than the vocabulary.
    #[error("{key} has {found} entries for {tokens} tokens")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The length of the vocabulary.
        tokens: usize,
    },
    /// A token of the vocabulary is invalid.
    #[error("token {id} of the vocabulary: {problem}")]
    Token {
        /// The token's id.
        id: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A special token's id is outside the vocabulary.
    #[error("{key} is {id}, the vocabulary has {tokens} tokens")]
    SpecialId {
        /// The metadata key.
        key: &'static str,
        /// The id.
        id: u64,
        /// The length of the vocabulary.
        tokens: usize,
    },
    /// A merge rule is invalid.
    #[error("merge {index} of tokenizer.ggml.merges: {problem}")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The vocabulary was refused by a library.
    #[error("the vocabulary cannot be used: {0}")]
    Library(String),
}

/// A text cannot be tokenized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizeError {
    /// The vocabulary has no token for a character and no bytes to spell it with.
    #[error("the vocabulary has no token for the character {0:?}")]
    NoToken(char),
    /// The text has 4 GiB or more.
    #[error("the text is too long; allowed are less than 4 GiB")]
    TooLong,
    /// The model computes single texts alone.
    #[error("the model has no way to write two texts together, which reranking pairs needs")]
    NoPairs,
    /// The tokenizer library failed.
    #[error("the text cannot be tokenized: {0}")]
    Library(String),
}
