//! Tokenizers of model folders: the library's own, as `tokenizer.json` describes them.
//!
//! The library runs normalizing, cutting and merging. It would find control tokens in any text;
//! so it is run with a vocabulary in which they are text, unless the text is trusted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forthwith_core::units::TokenId;
use tokenizers::{
    AddedVocabulary, Model as _, OffsetReferential, OffsetType, PreTokenizer as _, Tokenizer,
};

use super::error::{TokenizeError, TokenizerError};

/// A tokenizer of the library.
pub(super) struct Library {
    tokenizer: Tokenizer,
    /// Finds added tokens in text, but none that control the model.
    as_text: AddedVocabulary,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

/// What stands around the texts that a model computes as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) before: Vec<TokenId>,
    /// Between the two texts of a pair; none if pairs are not for this model.
    pub(super) between: Option<Vec<TokenId>>,
    pub(super) after: Vec<TokenId>,
    /// After the second text of a pair.
    pub(super) after_pair: Vec<TokenId>,
    /// Whether the second text of a pair is of another type.
    pub(super) two_types: bool,
}

impl Library {
    /// Builds it from `tokenizer.json`; what it says of truncation and padding is left out, as
    /// texts are neither cut nor filled here.
    pub(super) fn new(json: &[u8]) -> Result<Self, TokenizerError> {
        let built = guarded(|| {
            let mut tokenizer = Tokenizer::from_bytes(json)?;
            tokenizer.with_truncation(None)?;
            tokenizer.with_padding(None);
            Ok(tokenizer)
        });
        let tokenizer = built.map_err(|problem| TokenizerError::File {
            file: "tokenizer.json",
            problem,
        })?;
        let mut as_text = tokenizer.get_added_vocabulary().clone();
        as_text.set_encode_special_tokens(true);
        Ok(Self { tokenizer, as_text })
    }

    /// Every token's text, by id.
    pub(super) fn texts(&self) -> Vec<(u32, String)> {
        let vocabulary = self.tokenizer.get_vocab(true);
        let texts = vocabulary.into_iter().map(|(text, id)| (id, text));
        texts.collect()
    }

    pub(super) fn token_id(&self, text: &str) -> Option<TokenId> {
        self.tokenizer.token_to_id(text).map(TokenId::new)
    }

    /// Appends the tokens of a text; control tokens are found in it only if it is `trusted`.
    pub(super) fn encode(
        &self,
        text: &str,
        trusted: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<(), TokenizeError> {
        if u32::try_from(text.len()).is_err() {
            return Err(TokenizeError::TooLong);
        }
        let added = if trusted {
            self.tokenizer.get_added_vocabulary()
        } else {
            &self.as_text
        };
        let ids = guarded(|| {
            let normalizer = self.tokenizer.get_normalizer();
            let mut pieces = added.extract_and_normalize(normalizer, text);
            if let Some(cutter) = self.tokenizer.get_pre_tokenizer() {
                cutter.pre_tokenize(&mut pieces)?;
            }
            let model = self.tokenizer.get_model();
            pieces.tokenize(|piece| model.tokenize(piece.get()))?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let tokens = splits
                .iter()
                .flat_map(|(_, _, tokens)| tokens.iter().flatten());
            Ok(tokens
                .map(|token| TokenId::new(token.id))
                .collect::<Vec<_>>())
        });
        out.extend(ids.map_err(TokenizeError::Library)?);
        Ok(())
    }

    /// Finds out what the file's template puts around texts, from how it treats one and two.
    pub(super) fn around(&self) -> Result<Around, TokenizerError> {
        const PROBE: &str = "a";
        let broken = |problem: &str| TokenizerError::File {
            file: "tokenizer.json",
            problem: format!("post_processor: {problem}"),
        };
        let ids = |pair: bool, special: bool| {
            guarded(|| {
                if pair {
                    self.tokenizer.encode((PROBE, PROBE), special)
                } else {
                    self.tokenizer.encode(PROBE, special)
                }
            })
            .map_err(|problem| broken(&problem))
        };
        let plain = ids(false, false)?.get_ids().to_vec();
        let find = |within: &[u32], from: usize| {
            let mut windows = within[from..].windows(plain.len().max(1));
            windows
                .position(|window| window == plain)
                .map(|at| from + at)
        };
        let lost = "the probe text is not found between its tokens";
        let single = ids(false, true)?;
        let all = single.get_ids();
        if plain.is_empty() {
            return Err(broken("the text `a` has no tokens"));
        }
        let start = find(all, 0).ok_or_else(|| broken(lost))?;
        let tokens = |ids: &[u32]| ids.iter().map(|&id| TokenId::new(id)).collect::<Vec<_>>();
        let mut around = Around {
            before: tokens(&all[..start]),
            after: tokens(&all[start + plain.len()..]),
            ..Around::default()
        };
        let pair = ids(true, true)?;
        let all = pair.get_ids();
        let first = find(all, 0);
        let second = first.and_then(|first| find(all, first + plain.len()));
        if let (Some(first), Some(second)) = (first, second)
            && tokens(&all[..first]) == around.before
            && !around.after.is_empty()
        {
            around.between = Some(tokens(&all[first + plain.len()..second]));
            around.after_pair = tokens(&all[second + plain.len()..]);
            around.two_types = pair.get_type_ids()[second] == 1;
        }
        Ok(around)
    }
}

/// Runs the library, which has panicked on input before, and words its errors in one line.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let text = error.to_string();
            Err(text
                .chars()
                .take(200)
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect())
        }
        Err(_) => Err("the library failed".to_owned()),
    }
}
