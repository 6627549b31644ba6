//! The map of paths; every route is one line.

use std::any::Any;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::access;
use crate::api::native::{health, tokens};
use crate::api::openai::{chat, completions, embeddings, models, render};
use crate::api::texts::{classify, rerank, score};
use crate::cors;
use crate::error::ApiError;
use crate::metrics;
use crate::state::AppState;

/// All routes over one state.
pub fn router(state: AppState) -> Router {
    let cors = cors::layer(&state.access().origins);
    let router = Router::new()
        .route("/health", get(health::show))
        .route("/ready", get(health::show))
        .route("/live", get(health::live))
        .route("/metrics", get(metrics::show))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/v1/completions", post(completions::create))
        .route("/v1/completions/render", post(render::completions))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/chat/completions/render", post(render::chat))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/classify", post(classify::create))
        .route("/v1/score", post(score::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/v2/rerank", post(rerank::create))
        .route("/rerank", post(rerank::create))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        // Outside every route and fallback.
        .layer(from_fn_with_state(state.clone(), access::check))
        .layer(CatchPanicLayer::custom(after_panic))
        .with_state(state);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

async fn unknown_path(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is no route {method} {}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).coded("unknown_route")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not answer {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).coded("method_not_allowed")
}

/// The panic's own text goes to stderr by the panic hook and never to the client.
fn after_panic(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the server failed on this request").into_response()
}
