//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages.

use super::{
    Generation, Handler, HttpMethod, ResponseFuture, Route, chat, generated, run_blocking,
};
use crate::app::{App, Line, RejectedRequest};
use crate::error::{ApiError, ErrorShape};
use crate::fields::Fields;
use crate::render::anthropic::AnthropicRenderer;
use crate::request_fields::ANTHROPIC;
use crate::requests::anthropic;
use crate::sampling::{self, AnswerSettings};
use crate::{messages, reply};
use axum::http::StatusCode;
use serde_json::json;
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/v1/messages",
    without_key: false,
    errors: ErrorShape::Anthropic,
    handler: Handler::FromBody(|app, fields, line| generated(app, fields, line, read)),
};

pub(super) const COUNT: Route = Route {
    method: HttpMethod::Post,
    path: "/v1/messages/count_tokens",
    without_key: false,
    errors: ErrorShape::Anthropic,
    handler: Handler::FromBody(count),
};

fn read(app: &Arc<App>, fields: Fields) -> Result<Generation, ApiError> {
    let mut fields = fields.screen(ANTHROPIC)?;
    app.check_model(fields.text("model")?)?;
    let mut asked = AnswerSettings::read(&mut fields, app)?;
    asked.stops = sampling::stops(&mut fields, "stop_sequences")?;
    let limit = fields.count("max_tokens", 1..=i64::MAX)?;
    let limit = Some(limit.ok_or_else(|| fields.required("max_tokens"))?);
    let chat = anthropic::to_chat(&mut fields)?;
    fields.end()?;
    let request = chat::Request { field: "messages", asked, limit, logprobs: None };
    let work = chat::work(app, chat, request)?;
    Ok(Generation { work, renderer: Box::new(AnthropicRenderer::new(app)) })
}

/// Counts the prompt tokens of a request.
fn count(app: Arc<App>, fields: Fields, mut line: Line) -> ResponseFuture {
    Box::pin(async move {
        let counted = run_blocking(move || {
            let mut fields = fields.screen(ANTHROPIC)?;
            app.check_model(fields.text("model")?)?;
            let mut chat = anthropic::to_chat(&mut fields)?;
            let text = messages::text(&mut chat, &app)?.text;
            app.encode(&text, false, "messages")
        });
        match counted.await {
            Ok(tokens) => {
                line.done(StatusCode::OK);
                Ok(reply::good(&json!({ "input_tokens": tokens.len() })))
            }
            Err(error) => Err(RejectedRequest::new(error, line)),
        }
    })
}
