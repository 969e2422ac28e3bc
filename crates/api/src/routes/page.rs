//! `GET /`: the state in a browser. One file that asks `/health` each second; it needs no key, as that needs none.

use super::{Answer, Route, Verb};
use crate::app::App;
use crate::error::ErrorShape;
use crate::reply;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;

pub(super) const ROUTE: Route = Route {
    method: Verb::Get,
    path: "/",
    open: true,
    errors: ErrorShape::OpenAi,
    answer: Answer::Now(answer),
};

/// Nothing but this server, and nothing but what the page itself has.
const POLICY: &str = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'";

fn answer(_: &App) -> Response {
    let mut response =
        reply::of(StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html"));
    let policy = HeaderValue::from_static(POLICY);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}
