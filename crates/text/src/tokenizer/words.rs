//! A vocabulary of whole words, split at white space.

use std::collections::HashMap;

use forthwith_core::units::TokenId;

/// Word to id; words that are not listed are the unknown token.
#[derive(Debug)]
pub(super) struct Words {
    ids: HashMap<String, TokenId>,
    unknown: TokenId,
}

impl Words {
    /// `hidden` words exist as tokens only: the same text in a prompt is an unknown word.
    pub(super) fn new(words: &[String], unknown: TokenId, hidden: &[TokenId]) -> Self {
        let ids = (0u32..)
            .map(TokenId::new)
            .zip(words)
            .filter(|(id, _)| !hidden.contains(id))
            .map(|(id, word)| (word.clone(), id))
            .collect();
        Self { ids, unknown }
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        out.extend(
            text.split_whitespace()
                .map(|word| self.ids.get(word).copied().unwrap_or(self.unknown)),
        );
    }
}
