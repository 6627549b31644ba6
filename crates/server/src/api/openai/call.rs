//! What the generating endpoints do alike: from prompts to the engine, and the answer's frame.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::request::{
    GenerationRequest, RequestError, RequestParts, SamplingParams, Scheduling,
};
use serde::Serialize;

use super::options::Options;
use super::truncation::Kept;
use crate::answers::{Answers, Ask, Context, Totals};
use crate::error::ApiError;
use crate::loader::ServedModel;
use crate::reader::Reader;
use crate::state::AppState;

/// A checked call: nothing that can be refused is left but the queue's length.
pub(crate) struct Call {
    pub(crate) frame: Frame,
    pub(crate) options: Options,
    pub(crate) logprobs: Option<u32>,
    model: Arc<ServedModel>,
    asks: Vec<Ask>,
}

/// The fields that all parts of one answer share.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Frame {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// The protocol's account of a call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
    prompt_tokens_details: PromptDetails,
    determinism: Determinism,
}

/// What an event of a stream with usage says of it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StreamUsage {
    /// Null: the count follows with the last event.
    Later(()),
    /// The count of the whole call.
    Now(Usage),
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

/// Whether the same request gets the same bytes again, and what must be equal for that.
#[derive(Clone, Debug, Serialize)]
struct Determinism {
    /// False if the clock decided where the answer ends.
    held: bool,
    seed: i128,
    version: String,
    weights: String,
    kv_format: String,
}

/// What ends an answer or, in a stream, each of its choices.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Closing {
    /// The seed that repeats this answer.
    pub(crate) seed: i128,
    /// What else must be equal for that, in one word.
    pub(crate) system_fingerprint: String,
    /// What the reader should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// How an endpoint names its answers.
pub(crate) struct Naming {
    /// The beginning of an answer's id.
    pub(crate) prefix: &'static str,
    /// The kind of a plain answer, and of a stream's chunk.
    pub(crate) objects: [&'static str; 2],
    /// What the endpoint calls its prompt.
    pub(crate) prompt: &'static str,
}

impl Call {
    /// Checks every choice of every prompt against the model's limits.
    pub(crate) fn new(
        state: &AppState,
        model: Arc<ServedModel>,
        naming: &Naming,
        (options, logprobs): (Options, Option<u32>),
        prompts: Vec<Kept>,
    ) -> Result<Self, ApiError> {
        let renamed = |error: RequestError| {
            ApiError::from(error)
                .renamed("prompt", naming.prompt)
                .renamed("max_tokens", options.length_field)
        };
        let mut asks = Vec::new();
        for (prompt, Kept { tokens, warning }) in prompts.into_iter().enumerate() {
            for choice in 0..options.choices {
                let parts = RequestParts {
                    max_tokens: options.max_tokens,
                    sampling: SamplingParams {
                        choice,
                        ..options.sampling.clone()
                    },
                    edits: Arc::clone(&options.edits),
                    constraint: options.constraint.clone(),
                    stop: options.stop.clone(),
                    logprobs,
                    prompt_logprobs: options.report.asked(options.max_tokens),
                    cache_salt: state.caller().salt(options.cache_salt.clone()),
                    scheduling: Scheduling {
                        tenant: state.caller().tenant,
                        ..options.scheduling
                    },
                    ..RequestParts::new(tokens.clone())
                };
                let request = GenerationRequest::new(parts, model.limits);
                asks.push(Ask {
                    request: request.map_err(renamed)?,
                    prompt,
                    warning: warning.clone(),
                });
            }
        }
        let [plain, chunk] = naming.objects;
        let frame = Frame {
            id: format!("{}-{:032x}", naming.prefix, state.stamps().id()),
            object: if options.stream { chunk } else { plain },
            created: state.stamps().unix_time(),
            model: model.id.clone(),
        };
        Ok(Self {
            frame,
            options,
            logprobs,
            model,
            asks,
        })
    }

    pub(crate) fn model(&self) -> &ServedModel {
        &self.model
    }

    /// What is to be said of the fields and the prompts.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let each = self.asks.iter();
        let each = each.step_by(self.options.choices.max(1) as usize);
        let of_prompts = each.filter_map(|ask| ask.warning.as_ref());
        let of_fields = self.options.warnings.iter();
        of_fields.chain(of_prompts).cloned().collect()
    }

    /// One request of each prompt.
    pub(crate) fn prompts(&self) -> impl Iterator<Item = &GenerationRequest> {
        let firsts = self
            .asks
            .iter()
            .step_by(self.options.choices.max(1) as usize);
        firsts.map(|ask| &ask.request)
    }

    /// Hands the call to the engine.
    pub(crate) fn submit(
        self,
        state: &AppState,
        (arrived, reader): (Duration, Reader),
    ) -> Result<(Frame, Options, Answers), ApiError> {
        let report = &self.options.report;
        let prompts = self.prompts().filter(|_| report.tells_prompt());
        let prompts = prompts.map(|request| request.prompt().to_vec()).collect();
        let context = Context {
            spelling: report.spelling,
            lists_all: report.echo_logprobs.is_some(),
            prompts,
            model: self.model,
            stops: self.options.stops.clone(),
            shows_stop: self.options.shows_stop,
            spelled: self.options.spelled.clone(),
            metrics: Arc::clone(state.metrics()),
            clock: Arc::clone(state.clock()),
            arrived,
            reader,
        };
        let answers = Answers::submit(context, self.asks)?;
        Ok((self.frame, self.options, answers))
    }
}

impl Closing {
    pub(crate) fn new(model: &ServedModel, options: &Options) -> Self {
        Self {
            seed: options.seed,
            system_fingerprint: model.identity.fingerprint(model.limits.context.get()),
            warnings: options.warnings.clone(),
        }
    }

    /// Takes over what a choice has to say, once for all choices.
    pub(crate) fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

impl Usage {
    /// The account of a call to this model.
    pub(crate) fn new(totals: Totals, model: &ServedModel, seed: i128) -> Self {
        let identity = &model.identity;
        Self {
            prompt_tokens: totals.prompt,
            completion_tokens: totals.completion,
            total_tokens: totals.prompt + totals.completion,
            completion_tokens_details: None,
            prompt_tokens_details: PromptDetails {
                cached_tokens: totals.cached,
            },
            determinism: Determinism {
                held: !totals.cut,
                seed,
                version: identity.version.clone(),
                weights: identity.weights.clone(),
                kv_format: identity.kv_format.clone(),
            },
        }
    }

    /// Tells how many of the answers' tokens were reasoning.
    pub(crate) fn with_reasoning(mut self, reasoning_tokens: usize) -> Self {
        self.completion_tokens_details = Some(CompletionDetails { reasoning_tokens });
        self
    }
}

/// Writes one event of a stream.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("wire types have string keys and finite numbers")
}
