//! `GET /v1/models` and `GET /v1/models/{id}`: what is served.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;

use crate::error::ApiError;
use crate::loader::{Purpose, ServedModel};
use crate::state::AppState;

#[derive(Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Serialize)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens of prompt and answer together; the name that vLLM gave it.
    max_model_len: usize,
    /// How tokens are drawn where a request says nothing; of models that draw.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_defaults: Option<SamplingDefaults>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct SamplingDefaults {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
}

impl SamplingDefaults {
    fn of(served: &ServedModel) -> Option<Self> {
        let params = &served.defaults;
        (served.purpose == Purpose::Generate).then_some(Self {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
        })
    }
}

impl Model {
    fn of(served: &ServedModel) -> Self {
        Self {
            id: served.id.clone(),
            object: "model",
            created: served.created,
            owned_by: "forthwith",
            sampling_defaults: SamplingDefaults::of(served),
            max_model_len: served.limits.context.get(),
            warnings: served.warnings.clone(),
        }
    }
}

pub(crate) async fn list(State(state): State<AppState>) -> Result<Json<ModelList>, ApiError> {
    let models = state.ready()?;
    Ok(Json(ModelList {
        object: "list",
        data: models.iter().map(|served| Model::of(served)).collect(),
    }))
}

pub(crate) async fn show(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<Model>, ApiError> {
    let served = state.model(Some(&id))?;
    Ok(Json(Model::of(&served)))
}
