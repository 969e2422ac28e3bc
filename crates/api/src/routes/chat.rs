//! `POST /v1/chat/completions`.

use super::{Answer, Answered, Route, Verb, aside};
use crate::answers::{Answers, Work};
use crate::app::{App, Line, Refused};
use crate::error::ApiError;
use crate::events::{self, Form, Head};
use crate::fields::Fields;
use crate::form;
use crate::messages;
use crate::sampling::Asked;
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: Verb::Post,
    path: "/v1/chat/completions",
    open: false,
    answer: Answer::Asked(answer),
};

fn answer(app: Arc<App>, fields: Fields, line: Line) -> Answered {
    Box::pin(async move {
        let own = Arc::clone(&app);
        let work = match aside(move || work(&own, fields)).await {
            Ok(work) => work,
            Err(error) => return Err(Refused::new(error, line)),
        };
        let (stream, include_usage) = (work.asked.stream, work.asked.include_usage);
        let count = work.asked.choices;
        let head = Head::new(Form::Chat, &app, work.logprobs.is_some());
        let answers = Answers::new(&app, work, &head.id, line)?;
        Ok(match stream {
            true => events::stream(head, answers, count, include_usage),
            false => events::whole(&head, answers, count).await,
        })
    })
}

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
    let text = messages::text(&mut fields, app)?;
    let guide = form::read(&mut fields, app)?;
    fields.end()?;
    let prompt = app.texts.tokenizer.encode(&text);
    let prompt = prompt.map_err(|error| ApiError::field("messages", error.to_string()))?;
    // Without a limit an answer may be as long as there is room for.
    let room = app.service.limits().tokens.saturating_sub(prompt.len()).max(1);
    let limits = vec![limit.unwrap_or(room)];
    let logprobs = logprobs.then_some(top.unwrap_or(0));
    Ok(Work { prompts: vec![prompt], asked, limits, logprobs, guide })
}
