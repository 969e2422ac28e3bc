//! `POST /tokenize`: the tokens of a text or of a conversation, as in vLLM.

use super::{Answer, HttpMethod, ResponseFuture, Route, run_blocking};
use crate::app::{App, Line, RejectedRequest};
use crate::error::{ApiError, ErrorShape};
use crate::fields::Fields;
use crate::request_fields::TOKENIZE;
use crate::{messages, reply};
use axum::http::StatusCode;
use models::Encoded;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/tokenize",
    open: false,
    errors: ErrorShape::OpenAi,
    answer: Answer::FromBody(answer),
};

fn answer(app: Arc<App>, fields: Fields, mut line: Line) -> ResponseFuture {
    Box::pin(async move {
        match run_blocking(move || tokens(&app, fields)).await {
            Ok(document) => {
                line.done(StatusCode::OK);
                Ok(reply::good(&document))
            }
            Err(error) => Err(RejectedRequest::new(error, line)),
        }
    })
}

/// Maximum number of tokens of a text, whatever the model's context: takes a moment and 100 MB.
const MOST: usize = 1 << 20;

fn tokens(app: &App, fields: Fields) -> Result<Value, ApiError> {
    let mut fields = fields.screen(TOKENIZE)?;
    app.check_model(fields.text("model")?)?;
    let strings = fields.flag("return_token_strs")?.unwrap_or(false);
    let special = fields.flag("add_special_tokens")?;
    let text = match fields.text("prompt")? {
        Some(text) => text,
        None => messages::text(&mut fields, app)?.text,
    };
    fields.end()?;
    let tokenizer = &app.texts.tokenizer;
    let encoded = app.encode_up_to(&text, special.unwrap_or(false), MOST);
    let ids = match encoded.map_err(|error| ApiError::invalid(error.to_string()))? {
        Encoded::Ids(ids) => ids,
        Encoded::AtLeast(count) => {
            let message = format!("the text has {count} tokens or more, expected at most {MOST}");
            return Err(ApiError::field("prompt", message));
        }
    };
    let spelled =
        |id: &u32| String::from_utf8_lossy(&tokenizer.bytes(*id).unwrap_or_default()).into_owned();
    let strings = strings.then(|| ids.iter().map(spelled).collect::<Vec<_>>());
    Ok(json!({
        "count": ids.len(), "max_model_len": app.service.limits().tokens,
        "tokens": ids, "token_strs": strings,
    }))
}
