//! `POST /v1/chat/completions`.

use super::{Generation, Handler, HttpMethod, Route, generated};
use crate::answers::Work;
use crate::app::App;
use crate::error::{ApiError, ErrorShape};
use crate::fields::Fields;
use crate::form;
use crate::messages;
use crate::parsers::Plan;
use crate::render::chat::ChatRenderer;
use crate::request_fields::CHAT;
use crate::sampling::AnswerSettings;
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/v1/chat/completions",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::FromBody(|app, fields, line| generated(app, fields, line, read)),
};

fn read(app: &Arc<App>, fields: Fields) -> Result<Generation, ApiError> {
    let mut fields = fields.screen(CHAT)?;
    app.check_model(fields.text("model")?)?;
    let asked = AnswerSettings::read(&mut fields, app)?;
    // Both names mean the same.
    let [newer, older] =
        ["max_completion_tokens", "max_tokens"].map(|name| fields.count(name, 1..=i64::MAX));
    let limit = newer?.or(older?);
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let most = i64::try_from(app.service.limits().logprobs).unwrap_or(i64::MAX);
    let top = fields.count("top_logprobs", 0..=most)?;
    if top.is_some() && !logprobs {
        let message = "`top_logprobs` requires `logprobs`";
        return Err(ApiError::field("top_logprobs", message));
    }
    let renderer = ChatRenderer::new(app, logprobs, asked.usage, asked.choices);
    let logprobs = logprobs.then_some(top.unwrap_or(0));
    let work = work(app, fields, Request { field: "messages", asked, limit, logprobs })?;
    Ok(Generation { work, renderer: Box::new(renderer) })
}

/// A chat request except for the conversation and the structure of the answer.
pub(super) struct Request {
    /// The field with the conversation.
    pub(super) field: &'static str,
    pub(super) asked: AnswerSettings,
    /// Maximum number of generated tokens.
    pub(super) limit: Option<usize>,
    pub(super) logprobs: Option<usize>,
}

/// The work for the next message of a conversation, whose fields have the names of a chat completion.
pub(super) fn work(app: &Arc<App>, mut fields: Fields, request: Request) -> Result<Work, ApiError> {
    let Request { field, asked, limit, logprobs } = request;
    let messages::Text { text, shared, tools, plan } = messages::text(&mut fields, app)?;
    let called = tools.as_ref().map(|tools| tools.form(app, plan.as_ref()));
    let called = called.transpose()?.flatten();
    let calls = called.is_some();
    let guide = form::read(&mut fields, app, called)?;
    fields.end()?;
    let prompt = app.encode(&text, false, field)?;
    // Without a limit an answer may use the rest of the context.
    let room = app.service.limits().tokens.saturating_sub(prompt.len()).max(1);
    let limits = vec![limit.unwrap_or(room)];
    let shared = app.count_prefix_tokens(&text[..shared]);
    // A structured answer is all content.
    let parser = match guide.is_some() && !calls {
        true => plan.and_then(Plan::without_reasoning),
        false => plan,
    };
    let prompts = vec![prompt];
    Ok(Work {
        field,
        prompts,
        asked,
        limits,
        logprobs,
        score: None,
        shared,
        turn: true,
        parser,
        guide,
    })
}
