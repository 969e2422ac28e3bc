//! `POST /detokenize`: the text of tokens, including special ones.

use super::{Handler, HttpMethod, ResponseFuture, Route};
use crate::app::{App, Line, RejectedRequest};
use crate::error::{ApiError, ErrorShape};
use crate::fields::Fields;
use crate::reply;
use crate::request_fields::DETOKENIZE;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/detokenize",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::FromBody(answer),
};

fn answer(app: Arc<App>, fields: Fields, mut line: Line) -> ResponseFuture {
    Box::pin(async move {
        match text(&app, fields) {
            Ok(document) => {
                line.done(StatusCode::OK);
                Ok(reply::good(&document))
            }
            Err(error) => Err(RejectedRequest::new(error, line)),
        }
    })
}

fn text(app: &App, fields: Fields) -> Result<Value, ApiError> {
    let mut fields = fields.screen(DETOKENIZE)?;
    app.check_model(fields.text("model")?)?;
    let ids = fields.ids("tokens")?.ok_or_else(|| fields.required("tokens"))?;
    fields.end()?;
    if let Some(unknown) = ids.iter().find(|id| app.texts.tokenizer.bytes(**id).is_none()) {
        let message = format!("token {unknown} is not in the vocabulary");
        return Err(ApiError::field("tokens", message));
    }
    let text = app.texts.tokenizer.decode_with(&ids, true);
    Ok(json!({ "prompt": text.map_err(|error| ApiError::invalid(error.to_string()))? }))
}
