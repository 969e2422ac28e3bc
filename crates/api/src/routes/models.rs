//! `GET /v1/models` and `/v1/models/{name}`.

use super::{Handler, HttpMethod, Route};
use crate::app::App;
use crate::error::{ApiError, ErrorShape};
use crate::reply;
use axum::response::Response;
use serde_json::{Value, json};

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Get,
    path: "/v1/models",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::Immediate(answer),
};

/// Names of models may have slashes.
pub(super) const ONE: Route = Route {
    method: HttpMethod::Get,
    path: "/v1/models/{*name}",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::ById(one),
};

fn model(app: &App, name: &str) -> Value {
    json!({
        "id": name, "object": "model", "created": app.created, "owned_by": "firstlight",
        "root": app.settings.root, "max_model_len": app.service.limits().tokens,
    })
}

fn answer(app: &App) -> Response {
    let models: Vec<_> = app.settings.names.iter().map(|name| model(app, name)).collect();
    reply::good(&json!({ "object": "list", "data": models }))
}

fn one(app: &App, name: &str) -> Result<Response, ApiError> {
    app.check_model(Some(name.to_owned()))?;
    Ok(reply::good(&model(app, name)))
}
