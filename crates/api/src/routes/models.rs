//! `GET /v1/models`.

use super::{Answer, Route, Verb};
use crate::app::App;
use crate::reply;
use axum::response::Response;
use serde_json::json;

pub(super) const ROUTE: Route =
    Route { method: Verb::Get, path: "/v1/models", open: false, answer: Answer::Now(answer) };

fn answer(app: &App) -> Response {
    let tokens = app.service.limits().tokens;
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": app.created, "owned_by": "firstlight",
            "root": app.settings.root, "max_model_len": tokens,
        })
    };
    let models: Vec<_> = app.settings.names.iter().map(model).collect();
    reply::good(&json!({ "object": "list", "data": models }))
}
