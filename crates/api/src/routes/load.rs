//! `GET /load`: open sequences, running or waiting.

use super::{Handler, HttpMethod, Route};
use crate::app::App;
use crate::error::ErrorShape;
use crate::reply;
use axum::response::Response;
use serde_json::json;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Get,
    path: "/load",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::Immediate(answer),
};

fn answer(app: &App) -> Response {
    reply::good(&json!({ "server_load": app.service.open() }))
}
