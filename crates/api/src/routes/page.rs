//! `GET /`: the state in a browser. One file that polls `/health` each second; neither needs a key.

use super::{Handler, HttpMethod, Route};
use crate::app::App;
use crate::error::ErrorShape;
use crate::reply;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Get,
    path: "/",
    without_key: true,
    errors: ErrorShape::OpenAi,
    handler: Handler::Immediate(answer),
};

/// Allows only this server, and only inline content.
const POLICY: &str = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'";

fn answer(_: &App) -> Response {
    let mut response =
        reply::of(StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html"));
    let policy = HeaderValue::from_static(POLICY);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}
