//! Immediate responses.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::Value;

/// A response with a content type.
pub(crate) fn of(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A JSON document.
pub(crate) fn json(status: StatusCode, document: &Value) -> Response {
    of(status, "application/json", document.to_string())
}

/// A JSON document with status 200.
pub(crate) fn good(document: &Value) -> Response {
    json(StatusCode::OK, document)
}
