//! What an answer tells besides its text, and how it spells tokens.

use forthwith_core::units::TokenId;
use forthwith_text::Tokenizer;
use serde::Deserialize;

use super::logprobs::Names;
use super::truncation::Truncation;
use super::wire::{Integer, Whole};
use crate::answers::Spelling;
use crate::error::ApiError;
use crate::limits::RequestLimits;
use crate::loader::ServedModel;

/// What a client wrote.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WrittenReport {
    prompt_logprobs: Option<Whole>,
    return_token_ids: Option<bool>,
    return_tokens: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
    skip_special_tokens: Option<bool>,
    spaces_between_special_tokens: Option<bool>,
    truncate_prompt_tokens: Option<Integer>,
}

/// What it means.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// How many alternatives of each token of the prompt are listed, if any are.
    pub(crate) prompt_logprobs: Option<u32>,
    /// The same for a prompt that is repeated before its answer.
    pub(crate) echo_logprobs: Option<u32>,
    /// Whether the ids of prompt and answer are listed, as vLLM does.
    pub(crate) token_ids: bool,
    /// Whether the ids of the answer are listed, as llama.cpp does.
    pub(crate) tokens: bool,
    /// Whether tokens with log-probabilities are named by their ids.
    by_id: bool,
    /// How hidden tokens are spelled, if they are.
    pub(crate) spelling: Option<Spelling>,
    /// How much of a prompt is kept, if not all of it.
    pub(crate) truncation: Option<Truncation>,
}

impl WrittenReport {
    /// Checks what was written; `logprobs` tells whether log-probabilities of the answer are wanted.
    pub(crate) fn understood(
        self,
        model: &ServedModel,
        logprobs: bool,
        limits: &RequestLimits,
    ) -> Result<Report, ApiError> {
        let by_id = self.return_tokens_as_token_ids.unwrap_or(false);
        if by_id && !logprobs {
            let message = "return_tokens_as_token_ids names the tokens of log-probabilities; ask for \
                           `logprobs` or leave it out";
            return Err(ApiError::field("return_tokens_as_token_ids", message));
        }
        let context = model.limits.context.get();
        let spaced = self.spaces_between_special_tokens.unwrap_or(true);
        let spelling = Spelling { spaced };
        Ok(Report {
            prompt_logprobs: self.alternatives(limits)?,
            echo_logprobs: None,
            token_ids: self.return_token_ids.unwrap_or(false),
            tokens: self.return_tokens.unwrap_or(false),
            by_id,
            spelling: (self.skip_special_tokens == Some(false)).then_some(spelling),
            truncation: Truncation::read(self.truncate_prompt_tokens, context)?,
        })
    }

    fn alternatives(&self, limits: &RequestLimits) -> Result<Option<u32>, ApiError> {
        let wanted = self.prompt_logprobs.map(|wanted| wanted.0);
        wanted
            .map(|wanted| limits.alternatives("prompt_logprobs", wanted))
            .transpose()
    }
}

impl Report {
    /// What the engine is asked about each token of the prompt. An answer of no tokens needs a
    /// question.
    pub(crate) fn asked(&self, max_tokens: Option<u64>) -> Option<u32> {
        let nothing = (max_tokens == Some(0)).then_some(0);
        let counts = [self.prompt_logprobs, self.echo_logprobs, nothing];
        counts.into_iter().flatten().max()
    }

    /// Whether what is told of the prompt must be computed first.
    pub(crate) fn awaits_prompt(&self) -> bool {
        self.prompt_logprobs.is_some() || self.echo_logprobs.is_some()
    }

    /// Whether the answer tells of the prompt's tokens.
    pub(crate) fn tells_prompt(&self) -> bool {
        self.token_ids || self.awaits_prompt()
    }

    /// How tokens with log-probabilities are named.
    pub(crate) fn names<'a>(&self, tokenizer: &'a Tokenizer) -> Names<'a> {
        Names {
            tokenizer,
            by_id: self.by_id,
        }
    }
}

/// Token ids as the wire has them.
pub(crate) fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|id| id.get()).collect()
}
