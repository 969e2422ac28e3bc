//! `POST /v1/chat/completions`.

use super::{Answer, Route, Verb, generated};
use crate::answers::Work;
use crate::app::App;
use crate::error::ApiError;
use crate::events::Form;
use crate::fields::Fields;
use crate::form;
use crate::messages;
use crate::sampling::Asked;

pub(super) const ROUTE: Route = Route {
    method: Verb::Post,
    path: "/v1/chat/completions",
    open: false,
    answer: Answer::Asked(|app, fields, line| generated(app, fields, line, Form::Chat, work)),
};

/// What is asked for.
fn work(app: &App, mut fields: Fields) -> Result<Work, ApiError> {
    app.check_model(fields.text("model")?)?;
    let asked = Asked::read(&mut fields, app)?;
    // The older name means the same.
    let [newer, older] =
        ["max_completion_tokens", "max_tokens"].map(|name| fields.count(name, 1..=i64::MAX));
    let limit = newer?.or(older?);
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let most = i64::try_from(app.service.limits().logprobs).unwrap_or(i64::MAX);
    let top = fields.count("top_logprobs", 0..=most)?;
    if top.is_some() && !logprobs {
        let message = "`top_logprobs` is for answers with `logprobs` alone";
        return Err(ApiError::field("top_logprobs", message));
    }
    let messages::Text { text, shared, tools } = messages::text(&mut fields, app)?;
    let called = tools.as_ref().map(|tools| tools.form(app)).transpose()?.flatten();
    let guide = form::read(&mut fields, app, called)?;
    fields.end()?;
    let prompt = app.encode(&text, false, "messages")?;
    // Without a limit an answer may be as long as there is room for.
    let room = app.service.limits().tokens.saturating_sub(prompt.len()).max(1);
    let limits = vec![limit.unwrap_or(room)];
    let logprobs = logprobs.then_some(top.unwrap_or(0));
    let shared = app.tokens_of(&text[..shared]);
    let calls = tools.and_then(|_| app.dialect());
    Ok(Work { prompts: vec![prompt], asked, limits, logprobs, shared, turn: true, calls, guide })
}
