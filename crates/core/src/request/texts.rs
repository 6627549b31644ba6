//! Requests for the vectors or scores of a text, valid by construction like those for answers.

use std::sync::Arc;

use super::{
    GenerationRequest, Limits, RequestError, SamplingParams, Scheduling, StopRules, check_salt,
    check_tokens, out_of_range,
};
use crate::units::{TokenId, Tokens};

/// What a request wants to be answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Tokens, one after the other.
    Tokens,
    /// The vector of a text, or of each of its tokens.
    Vectors {
        /// The position from which tokens belong to the second text of a pair.
        second_from: Option<usize>,
    },
    /// How likely the model takes these tokens to be, each after all that stands before it. The
    /// first of them comes after the prompt's tokens but as many as there are others here.
    Scores(Vec<TokenId>),
}

/// A text to be computed without an answer of tokens, unchecked.
#[derive(Clone, Debug)]
pub struct TextParts {
    /// The text's tokens, special tokens included.
    pub tokens: Vec<TokenId>,
    /// Only requests with the same salt share cached blocks; at most [`super::MAX_CACHE_SALT`] bytes.
    pub cache_salt: Option<Vec<u8>>,
    /// Compute the whole text, whatever the cache holds, and share nothing.
    pub bypass_cache: bool,
    /// Where the request stands among others.
    pub scheduling: Scheduling,
}

impl TextParts {
    /// A text alone, everything else as by default.
    pub fn new(tokens: Vec<TokenId>) -> Self {
        Self {
            tokens,
            cache_salt: None,
            bypass_cache: false,
            scheduling: Scheduling::default(),
        }
    }
}

impl GenerationRequest {
    /// A request for the vectors of a text. Tokens from `second_from` on are of the second text of a
    /// pair.
    pub fn vectors(
        parts: TextParts,
        second_from: Option<usize>,
        limits: Limits,
    ) -> Result<Self, RequestError> {
        Self::text(parts, Wanted::Vectors { second_from }, limits)
    }

    /// A request for how likely the last tokens of a text are, from `from` on: at least one, and not
    /// the first.
    pub fn scores(mut parts: TextParts, from: usize, limits: Limits) -> Result<Self, RequestError> {
        if from == 0 || from >= parts.tokens.len() {
            let allowed = "1 to the last token";
            return Err(out_of_range("from", &from, allowed));
        }
        check_tokens("input", &parts.tokens, limits)?;
        let scored = parts.tokens[from..].to_vec();
        // Nothing is asked about what follows the last one.
        parts.tokens.pop();
        Self::text(parts, Wanted::Scores(scored), limits)
    }

    fn text(parts: TextParts, wanted: Wanted, limits: Limits) -> Result<Self, RequestError> {
        let TextParts {
            tokens,
            cache_salt,
            bypass_cache,
            scheduling,
        } = parts;
        let length = Tokens::new(tokens.len());
        if tokens.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if length > limits.context {
            return Err(RequestError::TextTooLong {
                tokens: length,
                context: limits.context,
            });
        }
        check_tokens("input", &tokens, limits)?;
        check_salt(cache_salt.as_deref())?;
        Ok(Self {
            prompt: tokens,
            wanted,
            max_tokens: Tokens::ZERO,
            sampling: SamplingParams::greedy(),
            edits: Arc::default(),
            constraint: None,
            stop: StopRules::default(),
            logprobs: None,
            prompt_logprobs: None,
            cache_salt,
            bypass_cache,
            scheduling,
        })
    }

    /// What the answer is made of.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The tokens of the prompt whose rows nobody needs: a cache may stand in for them.
    pub fn skippable(&self) -> usize {
        match &self.wanted {
            Wanted::Scores(scored) => self.prompt.len() - scored.len(),
            Wanted::Tokens if self.prompt_logprobs.is_some() => 0,
            Wanted::Tokens | Wanted::Vectors { .. } => self.prompt.len() - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        vocab: 100,
        context: Tokens::new(16),
    };

    #[test]
    fn a_text_may_fill_the_context() {
        let text = |length| TextParts::new(vec![TokenId::new(7); length]);
        let request = GenerationRequest::vectors(text(16), Some(9), LIMITS).unwrap();
        assert_eq!(
            (request.prompt().len(), request.max_tokens()),
            (16, Tokens::ZERO)
        );
        let error = GenerationRequest::vectors(text(17), None, LIMITS).unwrap_err();
        assert_eq!(
            (error.kind(), error.field()),
            ("context_length_exceeded", "input")
        );
        assert!(GenerationRequest::vectors(text(0), None, LIMITS).is_err());
    }

    #[test]
    fn scores_are_of_the_last_tokens() {
        let tokens: Vec<TokenId> = (1..=6).map(TokenId::new).collect();
        let request = GenerationRequest::scores(TextParts::new(tokens.clone()), 4, LIMITS).unwrap();
        assert_eq!(request.prompt(), &tokens[..5]);
        assert_eq!(*request.wanted(), Wanted::Scores(tokens[4..].to_vec()));
        // The row of the fourth token tells about the fifth.
        assert_eq!(request.skippable(), 3);
        for from in [0, 6] {
            let error = GenerationRequest::scores(TextParts::new(tokens.clone()), from, LIMITS);
            assert_eq!(error.unwrap_err().field(), "from");
        }
        let unknown = TextParts::new(vec![TokenId::new(1), TokenId::new(100)]);
        assert!(GenerationRequest::scores(unknown, 1, LIMITS).is_err());
    }
}
