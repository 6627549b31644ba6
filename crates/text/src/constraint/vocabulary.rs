//! The vocabulary as `llguidance` wants it: a prefix tree of bytes, and a way from bytes to tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forthwith_core::units::TokenId;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::form::FormError;
use crate::tokenizer::Tokenizer;

/// The tree knows no longer texts of tokens.
const MAX_TOKEN: usize = 1000;
/// Nor more tokens.
const MAX_TOKENS: usize = 1 << 21;

struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    tree: TokTrie,
}

/// The tree of a tokenizer's tokens.
pub(super) fn of(tokenizer: &Arc<Tokenizer>) -> Result<TokEnv, FormError> {
    let problem = |problem: &str| FormError::Vocabulary(problem.to_owned());
    let ends: Vec<u32> = tokenizer.end_tokens().iter().map(|id| id.get()).collect();
    let Some(&first) = ends.first() else {
        return Err(problem("it has no token that ends an answer"));
    };
    let size = tokenizer.vocab_size();
    let count = u32::try_from(size).ok().filter(|_| size <= MAX_TOKENS);
    let count = count.ok_or_else(|| problem("it has more than 2,097,152 tokens"))?;
    let words: Vec<Vec<u8>> = (0..count)
        .map(|id| word(tokenizer, TokenId::new(id)))
        .collect();
    let tree = catch_unwind(AssertUnwindSafe(|| {
        TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends)
    }));
    let tree = tree.map_err(|_| problem("its tokens make no prefix tree"))?;
    Ok(Arc::new(Vocabulary {
        tokenizer: Arc::clone(tokenizer),
        tree,
    }))
}

/// A token's bytes in a text; those of tokens that are no text begin with a mark.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if bytes.len() > MAX_TOKEN {
        return Vec::new();
    }
    let is_hidden = tokenizer.is_hidden(id) || tokenizer.end_tokens().contains(&id);
    if is_hidden {
        let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        if bytes.is_empty() {
            marked.extend(format!("[unnamed {}]", id.get()).bytes());
        }
        marked.extend(bytes);
        return marked;
    }
    let mut word = tokenizer.separator().as_bytes().to_vec();
    word.extend(bytes);
    word
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(tokens) = self.tokenizer.encode_within(text)
        {
            let tokens: Vec<u32> = tokens.into_iter().map(TokenId::get).collect();
            // A vocabulary may lack some characters, and a library may add or change some.
            if self.tree.decode_raw(&tokens) == bytes {
                return tokens;
            }
        }
        self.tree.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        // Words have no tokens for parts of them.
        self.tokenizer.separator().is_empty()
    }
}
