//! `POST /v1/completions/render` and `/v1/chat/completions/render`: what a call would run, without
//! running it. The body is that of the endpoint itself.

use axum::Json;
use serde::Serialize;

use super::call::Call;
use super::filters::RenderedFilters;
use super::{chat, completions};
use crate::access::Asked;
use crate::error::ApiError;
use crate::extract::Payload;
use crate::state::AppState;

/// What a call would run.
#[derive(Debug, Serialize)]
pub(crate) struct Rendered {
    object: &'static str,
    model: String,
    prompts: Vec<RenderedPrompt>,
    /// Choices of each prompt.
    n: u32,
    sampling: Sampling,
    /// Strings that end an answer.
    stop: Vec<String>,
    /// Tokens that do: the model's own, and those that were asked for.
    stop_token_ids: Vec<u32>,
    /// Tokens of prompt and answer together.
    max_model_len: usize,
    /// What an answer would warn of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RenderedPrompt {
    /// The tokens as they are spelled, control tokens too.
    text: String,
    token_ids: Vec<u32>,
    /// The most tokens that an answer may have.
    max_tokens: usize,
}

/// How tokens would be drawn, the model's defaults filled in.
#[derive(Debug, Serialize)]
struct Sampling {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    #[serde(flatten)]
    filters: RenderedFilters,
    /// The seed that was sent; without one each call draws its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i128>,
}

pub(crate) async fn completions(
    Asked(state): Asked,
    Payload(bytes): Payload,
) -> Result<Json<Rendered>, ApiError> {
    let job = move |state: &AppState| Ok(Rendered::of(&completions::prepare(state, &bytes)?.0));
    state.work(job).await.map(Json)
}

pub(crate) async fn chat(
    Asked(state): Asked,
    Payload(bytes): Payload,
) -> Result<Json<Rendered>, ApiError> {
    let job = move |state: &AppState| Ok(Rendered::of(&chat::prepare(state, &bytes)?.0));
    state.work(job).await.map(Json)
}

impl Rendered {
    fn of(call: &Call) -> Self {
        let (model, options) = (call.model(), &call.options);
        let params = &options.sampling;
        let prompts = call.prompts().map(|request| RenderedPrompt {
            text: model.tokenizer.spell(request.prompt()),
            token_ids: request.prompt().iter().map(|id| id.get()).collect(),
            max_tokens: request.max_tokens().get(),
        });
        let ends = options.stop.end_tokens.iter();
        let ends = ends.filter(|_| !options.stop.ignore_end);
        let stops = ends.chain(&options.stop.stop_token_ids);
        Self {
            object: "render",
            model: model.id.clone(),
            prompts: prompts.collect(),
            n: options.choices,
            sampling: Sampling {
                temperature: params.temperature,
                top_k: params.top_k,
                top_p: params.top_p,
                min_p: params.min_p,
                repetition_penalty: params.repetition_penalty,
                frequency_penalty: params.frequency_penalty,
                presence_penalty: params.presence_penalty,
                filters: RenderedFilters::of(params),
                seed: options.sent_seed,
            },
            stop: options.stops.clone(),
            stop_token_ids: stops.map(|id| id.get()).collect(),
            max_model_len: model.limits.context.get(),
            warnings: call.warnings(),
        }
    }
}
