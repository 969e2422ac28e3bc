//! `POST /v1/responses`, and `GET` and `DELETE` of stored responses.

use super::{Generation, Handler, HttpMethod, Route, chat, generated};
use crate::app::App;
use crate::error::{ApiError, ErrorShape};
use crate::fields::Fields;
use crate::render::responses::{ResponseRenderer, ResponseSaver};
use crate::reply;
use crate::request_fields::RESPONSES;
use crate::requests::responses::{self, items};
use crate::sampling::AnswerSettings;
use crate::stored_responses::StoredResponse;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/v1/responses",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::FromBody(|app, fields, line| generated(app, fields, line, read)),
};

pub(super) const GET: Route = by_id(HttpMethod::Get, "/v1/responses/{id}", get);
pub(super) const DELETE: Route = by_id(HttpMethod::Delete, "/v1/responses/{id}", delete);
pub(super) const INPUT: Route =
    by_id(HttpMethod::Get, "/v1/responses/{id}/input_items", input_items);

const fn by_id(
    method: HttpMethod,
    path: &'static str,
    answer: fn(&App, &str) -> Result<Response, ApiError>,
) -> Route {
    let errors = ErrorShape::OpenAi;
    Route { method, path, without_key: false, errors, handler: Handler::ById(answer) }
}

/// The value of `include` for log-probabilities. Other values concern tools that the server does not run.
const LOGPROBS: &str = "message.output_text.logprobs";

fn read(app: &Arc<App>, fields: Fields) -> Result<Generation, ApiError> {
    let mut fields = fields.screen(RESPONSES)?;
    app.check_model(fields.text("model")?)?;
    let asked = AnswerSettings::read(&mut fields, app)?;
    let limit = fields.count("max_output_tokens", 1..=i64::MAX)?;
    let include = fields.texts("include")?;
    let most = i64::try_from(app.service.limits().logprobs).unwrap_or(i64::MAX);
    let top = fields.count("top_logprobs", 0..=most)?;
    let wanted = include.iter().any(|name| name == LOGPROBS) || top.is_some_and(|top| top > 0);
    let store = fields.flag("store")?.unwrap_or(true);
    let metadata = fields.object("metadata")?.map_or_else(|| json!({}), Fields::into_value);
    let instructions = fields.text("instructions")?;
    let input = fields.take("input").ok_or_else(|| fields.required("input"))?;
    let input = with_ids(app, items(input)?);
    let previous = fields.text("previous_response_id")?;
    let stored = previous.as_deref().map(|id| find_previous(app, id)).transpose()?;
    let all: Vec<Value> =
        stored.iter().flat_map(StoredResponse::items).chain(&input).cloned().collect();
    if all.is_empty() {
        return Err(ApiError::field("input", "`input` has no items").with_code("empty_array"));
    }
    // The response repeats values of the request.
    let echo = |name: &str, fallback: Value| {
        let value = fields.get(name).cloned();
        (name.to_owned(), value.unwrap_or(fallback))
    };
    let mut response: Map<String, Value> = [
        echo("tools", json!([])),
        echo("tool_choice", json!("auto")),
        echo("parallel_tool_calls", json!(true)),
        echo("reasoning", json!({ "effort": null, "summary": null })),
        echo("text", json!({ "format": { "type": "text" } })),
    ]
    .into_iter()
    .collect();
    let more = json!({
        "background": false, "instructions": instructions, "max_output_tokens": limit,
        "metadata": metadata, "previous_response_id": previous, "store": store,
        "temperature": asked.sampling.temperature, "top_p": asked.sampling.top_p,
        "top_logprobs": top.unwrap_or(0), "truncation": "disabled",
    });
    if let Value::Object(more) = more {
        response.extend(more);
    }
    let (chat, names) = responses::to_chat(&mut fields, instructions.as_deref(), &all)?;
    fields.end()?;
    let logprobs = wanted.then_some(top.unwrap_or(0));
    let work = chat::work(app, chat, chat::Request { field: "input", asked, limit, logprobs })?;
    let turns = stored.map_or_else(Vec::new, |stored| stored.turns);
    let keep = store.then_some(ResponseSaver { turns, input });
    let renderer = ResponseRenderer::new(app, Value::Object(response), (names, wanted), keep);
    Ok(Generation { work, renderer: Box::new(renderer) })
}

/// Items with a type and an id, by which clients can list them.
fn with_ids(app: &App, mut items: Vec<Value>) -> Vec<Value> {
    for item in &mut items {
        if let Value::Object(item) = item {
            item.entry("type").or_insert_with(|| json!("message"));
            item.entry("id").or_insert_with(|| json!(app.id("item_")));
        }
    }
    items
}

fn find_previous(app: &App, id: &str) -> Result<StoredResponse, ApiError> {
    app.responses.get(id).ok_or_else(|| {
        let message =
            format!("there is no response `{id}`: it was not stored, or newer ones replaced it");
        ApiError::field("previous_response_id", message).with_code("previous_response_not_found")
    })
}

fn find(app: &App, id: &str) -> Result<StoredResponse, ApiError> {
    app.responses.get(id).ok_or_else(|| absent(id))
}

fn absent(id: &str) -> ApiError {
    ApiError::not_found("id", format!("there is no response `{id}`"))
        .with_code("response_not_found")
}

fn get(app: &App, id: &str) -> Result<Response, ApiError> {
    Ok(reply::good(&find(app, id)?.response))
}

fn delete(app: &App, id: &str) -> Result<Response, ApiError> {
    match app.responses.remove(id) {
        true => Ok(reply::good(&json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(absent(id)),
    }
}

/// The input items of a response, newest first as in OpenAI's API.
fn input_items(app: &App, id: &str) -> Result<Response, ApiError> {
    let stored = find(app, id)?;
    let items: Vec<&Value> = stored.input().iter().rev().collect();
    let id_of = |item: Option<&&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(reply::good(&json!({
        "object": "list", "data": items, "has_more": false,
        "first_id": id_of(items.first()), "last_id": id_of(items.last()),
    })))
}
