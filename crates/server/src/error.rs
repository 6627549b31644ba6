//! Every refusal and failure in the one form that clients know.
//!
//! Status 4xx or 5xx, `application/json`, and a body of
//! `{"error":{"message","type","param","code"}}`. Texts speak of the request alone and never of
//! the server's inside.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forthwith_core::request::RequestError;
use forthwith_engine::{Failure, Fault, SubmitError};
use forthwith_text::{TemplateError, TokenizeError};
use serde::Serialize;

/// The longest message that is sent; what a client wrote may be quoted in it.
const MAX_MESSAGE: usize = 280;

/// One refusal or failure, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u32>,
}

/// The body's outer object.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl ApiError {
    /// A refusal with this status; all of them but 429 are of type `invalid_request_error`.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Self {
            status,
            kind,
            message: shortened(message.into()),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// A 400 about one field of the request.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message).about(param)
    }

    /// A 400 about a field that is known and does nothing yet.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::field(param, message).coded("unsupported_parameter")
    }

    /// A 503 with the time after which to ask again.
    pub(crate) fn unavailable(code: &'static str, message: &str) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message).coded(code);
        error.retry_after = Some(1);
        error
    }

    /// A 500: the request was fine, the server was not.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).coded("internal_error")
    }

    /// Names the field.
    pub(crate) fn about(mut self, param: impl Into<String>) -> Self {
        self.param = Some(shortened(param.into()));
        self
    }

    /// Adds the stable word that programs compare.
    pub(crate) fn coded(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Calls the field `from` by the name `to` that this endpoint gives it.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
        }
        self
    }

    /// The body, for an event inside a stream.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::to_value(self.envelope()).expect("the error form has string keys only")
    }

    fn envelope(&self) -> Envelope<'_> {
        Envelope {
            error: Body {
                message: &self.message,
                r#type: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.envelope())).into_response();
        if let Some(seconds) = self.retry_after {
            let value = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        Self::field(error.field(), error.to_string()).coded(error.kind())
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        if let TemplateError::Variable { name, problem } = error {
            let field = format!("chat_template_kwargs.{name}");
            return Self::field(field, problem).coded("unknown_parameter");
        }
        // What a template says to its user is a whole sentence; it needs no frame.
        let message = match error {
            TemplateError::Raised(sentence) => sentence,
            other => other.to_string(),
        };
        Self::field("messages", message).coded("chat_template")
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure.fault {
            Fault::Engine => Self::internal(failure.message),
            Fault::Request => {
                Self::new(StatusCode::BAD_REQUEST, failure.message).coded("impossible_answer")
            }
        }
    }
}

impl From<TokenizeError> for ApiError {
    fn from(error: TokenizeError) -> Self {
        Self::field("prompt", error.to_string())
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Busy { retry_after, .. } => {
                let mut refusal =
                    Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).coded("queue_full");
                let seconds = u32::try_from(retry_after.as_secs()).unwrap_or(u32::MAX);
                refusal.retry_after = Some(seconds.max(1));
                refusal
            }
            SubmitError::TooSlow { .. } => Self::unavailable("too_slow", &error.to_string()),
            SubmitError::ShuttingDown => {
                Self::unavailable("shutting_down", "the server is shutting down")
            }
            SubmitError::TooLarge { .. } => {
                Self::field("prompt", error.to_string()).coded("context_length_exceeded")
            }
            SubmitError::WrongKind => {
                Self::field("model", error.to_string()).coded("wrong_model_kind")
            }
            // Stopped, and what later versions add: not the request's fault.
            _ => Self::internal(error.to_string()),
        }
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = ApiError::field("stop", "é".repeat(4000));
        assert!(error.message.chars().count() < 300);
        assert!(error.message.ends_with("é…"));
    }

    #[test]
    fn the_type_follows_from_the_status() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (404, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "server_error"),
            (503, "service_unavailable_error"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(ApiError::new(status, "x").kind, kind);
        }
    }
}
