//! Reads a request's body within its limits, before anything is parsed.

use axum::body::{self, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};

use crate::error::ApiError;
use crate::state::AppState;

/// The bytes of a JSON body: the content type was right, the size within the limit, which is another one for
/// calls with many texts.
pub(crate) struct Payload<const BATCH: bool = false>(pub(crate) Bytes);

impl<const BATCH: bool> FromRequest<AppState> for Payload<BATCH> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (limit, patience) = (state.max_body(BATCH), state.body_timeout());
        check_content_type(request.headers())?;
        if declared_length(request.headers()).is_some_and(|length| length > limit as u64) {
            return Err(too_large(limit));
        }
        let reading = body::to_bytes(request.into_body(), limit);
        match tokio::time::timeout(patience, reading).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(error)) if is_over_limit(&error) => Err(too_large(limit)),
            Ok(Err(_)) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "the body ended before it was complete",
            )),
            Err(_) => Err(ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not arrive within {} s", patience.as_secs()),
            )),
        }
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let essence = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.split(';').next().unwrap_or("").trim().to_lowercase());
    match essence.as_deref() {
        Some("application/json") => Ok(()),
        Some(other) if other.starts_with("application/") && other.ends_with("+json") => Ok(()),
        _ => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON; send the header `Content-Type: application/json`",
        )),
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is larger than the limit of {limit} bytes"),
    )
    .coded("body_too_large")
}

fn is_over_limit(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
