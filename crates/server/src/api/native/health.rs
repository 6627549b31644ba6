//! `GET /live`: the process answers. `GET /health` and `/ready`: 200 once answers are really given, 503 before, while draining, and while an engine
//! is stuck.

use axum::Json;
use axum::extract::State;
use forthwith_engine::EngineHealth;
use serde::Serialize;

use crate::error::ApiError;
use crate::state::AppState;

#[derive(Serialize)]
pub(crate) struct Health {
    status: &'static str,
}

/// 200 as long as the process answers at all.
pub(crate) async fn live() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Waits for nothing, so it answers at once whatever the engine does.
pub(crate) async fn show(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    let models = state.ready()?;
    if models
        .iter()
        .any(|model| model.engine.health() != EngineHealth::Ready)
    {
        let message = "an engine has stopped or is stuck in a step";
        return Err(ApiError::unavailable("not_ready", message));
    }
    Ok(Json(Health { status: "ok" }))
}
