//! `GET /health` and `/ping`: 200 while requests are accepted, 503 otherwise.

use super::{Handler, HttpMethod, Route};
use crate::app::App;
use crate::error::ErrorShape;
use crate::reply;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use serving::{ServiceHealth, ServicePhase};

pub(super) const ROUTE: Route = at(HttpMethod::Get, "/health");
/// The same as `/health`, for SageMaker.
pub(super) const PING: Route = at(HttpMethod::Get, "/ping");
pub(super) const PING_BY_POST: Route = at(HttpMethod::Post, "/ping");

const fn at(method: HttpMethod, path: &'static str) -> Route {
    Route {
        method,
        path,
        without_key: true,
        errors: ErrorShape::OpenAi,
        handler: Handler::Immediate(answer),
    }
}

fn answer(app: &App) -> Response {
    let health = app.service.health();
    let ServiceHealth { phase, failed_steps, last_error, running, waiting, .. } = &health;
    let status = match phase {
        ServicePhase::Ready => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let failure = match phase {
        ServicePhase::Failed(reason) => Some(reason),
        _ => None,
    };
    let last_error = last_error
        .as_ref()
        .map(|(error, at)| json!({ "message": error, "seconds_ago": at.elapsed().as_secs() }));
    let document = json!({
        "status": phase.as_str(), "failure": failure, "failed_steps": failed_steps,
        "last_error": last_error, "running": running, "waiting": waiting,
        "free_slots": health.free_slots, "free_blocks": health.free_blocks,
        "blocks": health.blocks, "snapshots": health.snapshots,
        "most_snapshots": health.max_snapshots, "saved_snapshots": health.saved_snapshots,
        "swapped_bytes": health.swapped_bytes, "swap_space": health.swap_space, "cached_tokens": health.cached_tokens,
        "queue": app.service.limits().queued,
        "prompt_tokens": health.prompt_tokens, "generation_tokens": health.generation_tokens,
        "models": app.settings.names, "uptime_seconds": health.since.elapsed().as_secs(),
    });
    reply::json(status, &document)
}
