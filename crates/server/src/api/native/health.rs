//! `GET /health`: 200 once answers are really given, 503 before and while draining.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use crate::error::ApiError;
use crate::state::AppState;

#[derive(Serialize)]
pub(crate) struct Health {
    status: &'static str,
}

/// Looks at two atomics, so it answers at once whatever the engine does.
pub(crate) async fn show(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    state.ready().map(|_| Json(Health { status: "ok" }))
}
