//! Errors in the format of each API.

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use serving::{SequenceError, SubmitError};
use std::time::Duration;

/// The JSON format of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
}

/// Why a request failed, with OpenAI's names for the type, the field and the code.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message, kind, param: None, code: None, retry_after: None }
    }

    /// A request that cannot be answered.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of a request whose value cannot be used.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self { param: Some(name.to_owned()), ..Self::invalid(message) }.with_code("invalid_value")
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same error under the client's name of the field.
    pub(crate) fn with_param(mut self, name: &str) -> Self {
        self.param = Some(name.to_owned());
        self
    }

    /// A prompt, or a prompt with the tokens to generate, that exceeds the context.
    pub(crate) fn context_length(name: &str, message: impl Into<String>) -> Self {
        Self::field(name, message).with_code("context_length_exceeded")
    }

    pub(crate) fn unknown_url(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_url")
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
            .with_code("method_not_supported")
    }

    pub(crate) fn unknown_model(name: &str, names: &[String]) -> Self {
        let message =
            format!("the model `{name}` does not exist; this server has {}", names.join(", "));
        Self::not_found("model", message).with_code("model_not_found")
    }

    /// A named object that does not exist.
    pub(crate) fn not_found(name: &str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        Self { param: Some(name.to_owned()), ..error }
    }

    pub(crate) fn invalid_key() -> Self {
        let message = "the API key is missing or wrong: send `Authorization: Bearer KEY` with a key of this server";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message)
            .with_code("invalid_api_key")
    }

    pub(crate) fn origin_not_allowed(origin: &str) -> Self {
        let message = format!(
            "the server refuses pages of {origin}: start it with --allowed-origins {origin}"
        );
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message)
            .with_code("origin_not_allowed")
    }

    pub(crate) fn unsupported_content_type(given: &str) -> Self {
        let message = format!(
            "the content type of the body is `{given}`, expected `application/json`: send `Content-Type: application/json`"
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
            .with_code("unsupported_content_type")
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let message = format!("the body is larger than {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
            .with_code("request_too_large")
    }

    pub(crate) fn too_slow(within: Duration) -> Self {
        let message = format!("the body did not arrive within {} seconds", within.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
            .with_code("request_timeout")
    }

    /// An internal error.
    pub(crate) fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
            .with_code("server_error")
    }

    fn unavailable(message: String, seconds: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { retry_after: Some(Duration::from_secs(seconds)), ..error }
    }

    /// Anthropic's name for the type.
    fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }

    pub(crate) fn json(&self, shape: ErrorShape) -> Value {
        let Self { message, kind, param, code, .. } = self;
        match shape {
            ErrorShape::OpenAi => {
                json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
            }
            ErrorShape::Anthropic => {
                json!({ "type": "error", "error": { "type": self.anthropic_kind(), "message": message } })
            }
        }
    }

    pub(crate) fn response(&self, shape: ErrorShape) -> Response {
        let mut response = crate::reply::json(self.status, &self.json(shape));
        if let Some(after) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(refusal: SubmitError) -> Self {
        let message = refusal.to_string();
        match refusal {
            SubmitError::Invalid { what } => Self::invalid(what).with_code("invalid_value"),
            SubmitError::TooLong { what } => Self::context_length("prompt", what),
            SubmitError::Full { after } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let error = Self::new(status, "rate_limit_error", message);
                Self { retry_after: Some(after), ..error }.with_code("rate_limit_exceeded")
            }
            SubmitError::Loading => Self::unavailable(message, 1).with_code("model_loading"),
            SubmitError::Draining => Self::unavailable(message, 5).with_code("shutting_down"),
            SubmitError::Failed(_) => Self::unavailable(message, 5).with_code("engine_failed"),
        }
    }
}

impl From<SequenceError> for ApiError {
    fn from(why: SequenceError) -> Self {
        let message = why.to_string();
        match why {
            SequenceError::Engine(_) => Self::server(message).with_code("engine_error"),
            SequenceError::StructuredOutput(_) => Self::invalid(message).with_code("form_error"),
            SequenceError::Aborted => Self::unavailable(message, 5).with_code("shutting_down"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_names_the_kind_of_the_error() {
        for (error, status, code, anthropic) in [
            (ApiError::invalid_key(), 401, "invalid_api_key", "authentication_error"),
            (ApiError::unknown_model("x", &[]), 404, "model_not_found", "not_found_error"),
            (
                ApiError::context_length("messages", "too long"),
                400,
                "context_length_exceeded",
                "invalid_request_error",
            ),
            (ApiError::too_large(1), 413, "request_too_large", "request_too_large"),
            (
                SubmitError::Full { after: Duration::from_secs(2) }.into(),
                429,
                "rate_limit_exceeded",
                "rate_limit_error",
            ),
            (SubmitError::Loading.into(), 503, "model_loading", "overloaded_error"),
            (SequenceError::Engine(String::new()).into(), 500, "engine_error", "api_error"),
        ] {
            assert_eq!(error.status, status);
            assert_eq!(error.json(ErrorShape::OpenAi)["error"]["code"], code);
            let shown = error.json(ErrorShape::Anthropic);
            assert_eq!(
                (&shown["type"], &shown["error"]["type"]),
                (&json!("error"), &json!(anthropic))
            );
            assert_eq!(error.response(ErrorShape::OpenAi).status(), status);
        }
    }
}
