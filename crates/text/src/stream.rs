//! The out-path of one request: tokens in, text deltas out.

use std::sync::Arc;

use forthwith_core::units::TokenId;

use crate::tokenizer::Tokenizer;

/// What one token adds to the answer's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Whole characters, safe to send.
    pub text: String,
    /// Which stop string ended the answer; text after it is dropped.
    pub stop: Option<usize>,
}

/// Detokenizer and stop strings of one request.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    stops: Vec<String>,
}

impl TextStream {
    /// Starts the text of one answer; empty stop strings are ignored.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Self {
        Self { tokenizer, stops }
    }

    /// Tells which token came before the answer.
    #[must_use]
    pub fn with_prompt(self, _last_prompt_token: Option<TokenId>) -> Self {
        self
    }

    /// Takes the next token of the answer.
    pub fn push(&mut self, _token: TokenId) -> Delta {
        let _ = (&self.tokenizer, &self.stops);
        unimplemented!()
    }

    /// Ends the answer and hands out what was held back.
    pub fn finish(&mut self) -> Delta {
        unimplemented!()
    }
}
