//! `GET /metrics`, for Prometheus.

use super::{Handler, HttpMethod, Route};
use crate::app::App;
use crate::error::ErrorShape;
use crate::reply;
use axum::http::StatusCode;
use axum::response::Response;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Get,
    path: "/metrics",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::Immediate(answer),
};

const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn answer(app: &App) -> Response {
    reply::of(StatusCode::OK, FORMAT, app.service.metrics())
}
