//! What is wrong with a request, as OpenAI's clients read it.

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use serving::{Refusal, Why};
use std::time::Duration;

/// An answer that is none: `{"error": {"message", "type", "param", "code"}}`.
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

    /// A request that cannot be.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of it that cannot be.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self { param: Some(name.to_owned()), ..Self::invalid(message) }
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn no_route(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    pub(crate) fn no_model(name: &str, names: &[String]) -> Self {
        let message =
            format!("the model `{name}` does not exist here; this server has {}", names.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        Self { param: Some("model".to_owned()), code: Some("model_not_found"), ..error }
    }

    pub(crate) fn no_key() -> Self {
        let message = "wanted `Authorization: Bearer KEY` with a key of this server";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .with_code("invalid_api_key")
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let message = format!("the body is larger than {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    pub(crate) fn too_slow(within: Duration) -> Self {
        let message = format!("the body did not end within {} seconds", within.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// A fault of the server's.
    pub(crate) fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    fn unavailable(message: String, seconds: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { retry_after: Some(Duration::from_secs(seconds)), ..error }
    }

    pub(crate) fn json(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }

    pub(crate) fn response(&self) -> Response {
        let mut response = crate::reply::json(self.status, &self.json());
        if let Some(after) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(axum::http::header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Invalid { what } => Self::invalid(what),
            Refusal::Full { after } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let error = Self::new(status, "rate_limit_error", message).with_code("queue_full");
                Self { retry_after: Some(after), ..error }
            }
            Refusal::Loading => Self::unavailable(message, 1).with_code("model_loading"),
            Refusal::Draining => Self::unavailable(message, 5).with_code("shutting_down"),
            Refusal::Failed(_) => Self::unavailable(message, 5).with_code("engine_failed"),
        }
    }
}

impl From<Why> for ApiError {
    fn from(why: Why) -> Self {
        let message = why.to_string();
        match why {
            Why::Engine(_) => Self::server(message).with_code("engine_error"),
            Why::Form(_) => Self::invalid(message).with_code("form_error"),
            Why::Aborted => Self::unavailable(message, 5).with_code("shutting_down"),
        }
    }
}
