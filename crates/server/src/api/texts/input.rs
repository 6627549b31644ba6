//! What endpoints for texts do alike: fields, truncation, requests for the engine, the account.

use std::ops::Range;
use std::sync::Arc;

use forthwith_core::program::Output;
use forthwith_core::request::{GenerationRequest, RequestError, Scheduling, TextParts};
use forthwith_core::units::TokenId;
use forthwith_text::EncodedText;
use serde::{Deserialize, Serialize};

use crate::api::openai::body::Body;
use crate::api::openai::completions::Prompt;
use crate::api::openai::options::Written;
use crate::api::openai::wire::Integer;
use crate::error::ApiError;
use crate::loader::ServedModel;
use crate::state::AppState;
use crate::texts::Spent;

/// The fields that are read beside an endpoint's own.
#[derive(Debug, Deserialize)]
struct Own {
    truncate_prompt_tokens: Option<Integer>,
}

/// A call's model and what holds for all of its texts.
pub(crate) struct Settings {
    pub(crate) model: Arc<ServedModel>,
    /// The most tokens of a text, if longer ones are to be truncated.
    most: Option<usize>,
    scheduling: Scheduling,
    cache_salt: Option<Vec<u8>>,
    /// What the endpoint calls its texts.
    field: &'static str,
    truncated: Truncated,
    /// Where the own tokens of each text lie.
    inner: Vec<Range<usize>>,
    /// Which fields have no effect.
    warnings: Vec<String>,
    /// The most texts of the call.
    pub(crate) max_texts: usize,
}

/// What was left out because the call asked for it.
#[derive(Clone, Copy, Debug, Default)]
struct Truncated {
    texts: usize,
    tokens: usize,
}

/// A call whose texts are ready for the engine.
pub(crate) struct Prepared {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) requests: Vec<GenerationRequest>,
    pub(crate) warnings: Vec<String>,
    /// Where the own tokens of each text lie.
    pub(crate) inner: Vec<Range<usize>>,
    truncated: Option<usize>,
}

/// The account of a call without generated tokens.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: Details,
    /// Tokens that were left out; said where truncation was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_tokens: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
struct Details {
    cached_tokens: usize,
}

impl Settings {
    /// Reads what all text endpoints share.
    pub(crate) fn read(
        state: &AppState,
        body: &Body<'_>,
        field: &'static str,
    ) -> Result<Self, ApiError> {
        let written: Written = body.read()?;
        let own: Own = body.read()?;
        let model = state.model(written.model.as_deref())?;
        let context = model.limits.context.get();
        let most = match own.truncate_prompt_tokens {
            None => None,
            Some(Integer(-1)) => Some(context),
            Some(Integer(most)) => {
                let most = usize::try_from(most).ok();
                let most = most.filter(|most| (1..=context).contains(most));
                Some(most.ok_or_else(|| {
                    let message = format!("allowed are 1 to {context}, and -1 for {context}");
                    ApiError::field("truncate_prompt_tokens", message)
                })?)
            }
        };
        Ok(Self {
            model,
            most,
            scheduling: Scheduling {
                tenant: state.caller().tenant,
                ..written.scheduling()?
            },
            cache_salt: state
                .caller()
                .salt(written.cache_salt.map(String::into_bytes)),
            field,
            truncated: Truncated::default(),
            inner: Vec::new(),
            warnings: body.warnings.clone(),
            max_texts: state.limits().texts,
        })
    }

    /// Refuses a call with none or too many texts.
    pub(crate) fn check_count(&self, count: usize) -> Result<(), ApiError> {
        let most = self.max_texts;
        if (1..=most).contains(&count) {
            return Ok(());
        }
        let message = format!("{count} texts, allowed are 1 to {most}");
        Err(ApiError::field(self.field, message))
    }

    /// A text with the tokens around it that the model wants.
    pub(crate) fn text(&mut self, prompt: &Prompt) -> Result<GenerationRequest, ApiError> {
        let encoded = match prompt {
            Prompt::Text(text) => self.model.tokenizer.encode_text(text, self.most),
            Prompt::Tokens(ids) => {
                let kept = self.most.map_or(ids.len(), |most| most.min(ids.len()));
                Ok(EncodedText {
                    tokens: ids[..kept].to_vec(),
                    inner: 0..kept,
                    second_from: None,
                    truncated: ids.len() - kept,
                })
            }
        };
        self.request(encoded.map_err(|error| self.named(error.into()))?)
    }

    /// Two texts that are computed together.
    pub(crate) fn pair(
        &mut self,
        first: &str,
        second: &str,
    ) -> Result<GenerationRequest, ApiError> {
        let encoded = self.model.tokenizer.encode_pair(first, second, self.most);
        self.request(encoded.map_err(|error| self.named(error.into()))?)
    }

    fn request(&mut self, encoded: EncodedText) -> Result<GenerationRequest, ApiError> {
        self.truncated.texts += usize::from(encoded.truncated > 0);
        self.truncated.tokens += encoded.truncated;
        self.inner.push(encoded.inner);
        let limits = self.model.limits;
        let parts = self.parts(encoded.tokens);
        let request = GenerationRequest::vectors(parts, encoded.second_from, limits);
        request.map_err(|error| self.refused(error))
    }

    /// A request for how likely the tokens from `from` on are.
    pub(crate) fn scores(
        &self,
        tokens: Vec<TokenId>,
        from: usize,
    ) -> Result<GenerationRequest, ApiError> {
        let request = GenerationRequest::scores(self.parts(tokens), from, self.model.limits);
        request.map_err(|error| self.refused(error))
    }

    fn parts(&self, tokens: Vec<TokenId>) -> TextParts {
        let whole = matches!(
            self.model.engine.output(),
            Output::Vectors { whole: true, .. }
        );
        TextParts {
            cache_salt: self.cache_salt.clone(),
            // What stands later changes what stands before it, so nothing can be shared.
            bypass_cache: whole,
            scheduling: self.scheduling,
            ..TextParts::new(tokens)
        }
    }

    fn refused(&self, error: RequestError) -> ApiError {
        let error = ApiError::from(error);
        error
            .renamed("input", self.field)
            .renamed("prompt", self.field)
    }

    fn named(&self, error: ApiError) -> ApiError {
        error.renamed("prompt", self.field)
    }

    /// The call, ready for the engine.
    pub(crate) fn with(self, requests: Vec<GenerationRequest>) -> Prepared {
        let Truncated { texts, tokens } = self.truncated;
        let warning = (texts > 0).then(|| {
            let most = self.most.unwrap_or_default();
            format!("{texts} texts were truncated to {most} tokens; {tokens} tokens were left out")
        });
        Prepared {
            model: self.model,
            requests,
            warnings: self.warnings.into_iter().chain(warning).collect(),
            inner: self.inner,
            truncated: self.most.map(|_| tokens),
        }
    }
}

impl Prepared {
    /// The account of the call.
    pub(crate) fn usage(truncated: Option<usize>, spent: Spent) -> Usage {
        Usage {
            prompt_tokens: spent.prompt,
            total_tokens: spent.prompt,
            prompt_tokens_details: Details {
                cached_tokens: spent.cached,
            },
            truncated_tokens: truncated,
        }
    }

    /// What was left out, if anything was to be.
    pub(crate) fn truncated(&self) -> Option<usize> {
        self.truncated
    }
}
