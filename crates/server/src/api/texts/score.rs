//! `POST /v1/score`: how well texts belong together, pair by pair, in the shape of vLLM.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::input::{Prepared, Settings, Usage};
use super::pairs::PairCall;
use crate::access::Asked;
use crate::api::openai::body::Body;
use crate::api::openai::fields::{SCORE, TEXTS};
use crate::api::openai::wire::Strings;
use crate::error::ApiError;
use crate::extract::Payload;
use crate::state::AppState;

#[derive(Debug, Deserialize)]
struct Own {
    text_1: Strings,
    text_2: Strings,
}

#[derive(Debug, Serialize)]
struct Scores {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Entry>,
    usage: Usage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Entry {
    index: usize,
    object: &'static str,
    score: f64,
    /// The model's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    logit: Option<f32>,
}

/// Scores one text against each of a list, or two lists pair by pair.
pub(crate) async fn create(
    Asked(state): Asked,
    Payload(bytes): Payload<true>,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let call = state.work(move |state| prepare(state, &bytes)).await?;
    let model = call.prepared.model.id.clone();
    let (warnings, truncated) = (call.prepared.warnings.clone(), call.prepared.truncated());
    let (matches, spent) = call.run(&state, arrived).await?;
    let scores = matches.into_iter().enumerate().map(|(index, found)| Entry {
        index,
        object: "score",
        score: found.score,
        logit: found.logit,
    });
    let whole = Scores {
        id: format!("score-{:032x}", state.stamps().id()),
        object: "list",
        created: state.stamps().unix_time(),
        model,
        data: scores.collect(),
        usage: Prepared::usage(truncated, spent),
        warnings,
    };
    Ok(Json(whole).into_response())
}

fn prepare(state: &AppState, bytes: &Bytes) -> Result<PairCall, ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[TEXTS, SCORE], state)?;
    let own: Own = body.read()?;
    let settings = Settings::read(state, &body, "text_2")?;
    let (first, second) = (&own.text_1.0, &own.text_2.0);
    if first.len() != 1 && first.len() != second.len() {
        let message = format!(
            "text_1 has {} texts and text_2 {}; allowed are one, or as many as in text_2",
            first.len(),
            second.len()
        );
        return Err(ApiError::field("text_1", message));
    }
    let texts: Vec<&str> = first.iter().chain(second).map(String::as_str).collect();
    let place = |at: usize| if first.len() == 1 { 0 } else { at };
    let pairs = (0..second.len()).map(|at| (place(at), first.len() + at));
    PairCall::new(settings, &texts, pairs.collect())
}
