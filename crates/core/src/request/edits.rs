//! What a request changes about the logits themselves.

use super::{Limits, RequestError, StopRules, check_tokens, out_of_range};
use crate::units::TokenId;

/// The most tokens that a request may name for each of these.
pub const MAX_EDITS: usize = 1024;

/// Changes of the logits, made after the penalties and before the temperature.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitEdits {
    /// Added to the logit of a token, which is named once; `-100..=100`.
    pub bias: Vec<(TokenId, f32)>,
    /// The only tokens that are possible, if given.
    pub allowed: Option<Vec<TokenId>>,
    /// Tokens of the answer before one may come that ends it.
    pub min_tokens: u64,
    /// Runs of tokens that the answer may not hold, none of them empty.
    pub forbidden: Vec<Vec<TokenId>>,
    /// So many tokens in a row may occur once in prompt and answer; 0 for any number of times.
    pub no_repeat_ngram_size: u32,
}

impl LogitEdits {
    /// Whether there is anything to change after `generated` tokens of the answer.
    pub fn apply_after(&self, generated: usize) -> bool {
        !self.bias.is_empty()
            || self.allowed.is_some()
            || self.forbids_end(generated)
            || !self.forbidden.is_empty()
            || self.no_repeat_ngram_size > 0
    }

    /// Whether no token may come that ends the answer.
    pub fn forbids_end(&self, generated: usize) -> bool {
        (generated as u64) < self.min_tokens
    }

    pub(super) fn check(
        &self,
        stop: &StopRules,
        (most, limits): (u64, Limits),
    ) -> Result<(), RequestError> {
        let ids: Vec<TokenId> = self.bias.iter().map(|&(id, _)| id).collect();
        for (field, ids) in [
            ("logit_bias", Some(&ids)),
            ("allowed_token_ids", self.allowed.as_ref()),
        ] {
            let ids = ids.map_or(&[][..], Vec::as_slice);
            check_tokens(field, ids, limits)?;
            if ids.len() > MAX_EDITS {
                let count = format!("{} tokens", ids.len());
                return Err(out_of_range(field, &count, "up to 1024 tokens"));
            }
        }
        if let Some((_, bias)) = self
            .bias
            .iter()
            .find(|(_, bias)| !(-100.0..=100.0).contains(bias))
        {
            return Err(out_of_range("logit_bias", bias, "-100 to 100"));
        }
        for run in &self.forbidden {
            check_tokens("bad_words", run, limits)?;
        }
        if self.forbidden.len() > 2 * MAX_EDITS || self.forbidden.iter().any(Vec::is_empty) {
            let count = format!("{} runs of tokens", self.forbidden.len());
            return Err(out_of_range(
                "bad_words",
                &count,
                "up to 2048, each of a token at least",
            ));
        }
        if self.min_tokens > most {
            let allowed = "up to max_tokens";
            return Err(out_of_range("min_tokens", &self.min_tokens, allowed));
        }
        let Some(allowed) = &self.allowed else {
            return Ok(());
        };
        let goes_on = |id: &&TokenId| self.min_tokens == 0 || !stop.ends(**id);
        if !allowed.iter().any(|id| goes_on(&id)) {
            let what = if allowed.is_empty() {
                "an empty list"
            } else {
                "a list of tokens that end the answer, with min_tokens"
            };
            let field = "allowed_token_ids";
            return Err(out_of_range(field, &what, "tokens that can be chosen"));
        }
        Ok(())
    }
}

impl StopRules {
    /// Whether an answer ends with this token.
    pub fn ends(&self, token: TokenId) -> bool {
        let ends = !self.ignore_end && self.end_tokens.contains(&token);
        ends || self.stop_token_ids.contains(&token)
    }

    /// The tokens that end an answer.
    pub fn ending(&self) -> impl Iterator<Item = TokenId> {
        let ends = self.end_tokens.iter().filter(|_| !self.ignore_end);
        ends.chain(&self.stop_token_ids).copied()
    }
}
