//! `POST /v1/completions`.

use super::{Answer, Route, Verb, generated};
use crate::answers::Work;
use crate::app::App;
use crate::error::ApiError;
use crate::events::Form;
use crate::fields::{Fields, ids};
use crate::form;
use crate::sampling::Asked;
use serde_json::{Value, json};

pub(super) const ROUTE: Route = Route {
    method: Verb::Post,
    path: "/v1/completions",
    open: false,
    answer: Answer::Asked(|app, fields, line| generated(app, fields, line, Form::Completion, work)),
};

/// Tokens of an answer where a request does not say: OpenAI's.
const TOKENS: usize = 16;

/// What is asked for.
fn work(app: &App, mut fields: Fields) -> Result<Work, ApiError> {
    app.check_model(fields.text("model")?)?;
    let asked = Asked::read(&mut fields, app)?;
    let limit = fields.count("max_tokens", 1..=i64::MAX)?.unwrap_or(TOKENS);
    let most = i64::try_from(app.service.limits().logprobs).unwrap_or(i64::MAX);
    let logprobs = fields.count("logprobs", 0..=most)?;
    let special = fields.flag("add_special_tokens")?.unwrap_or(false);
    for (name, value) in [("echo", json!(false)), ("best_of", json!(1)), ("suffix", json!(""))] {
        fields.only(name, &value)?;
    }
    let prompt = fields.take("prompt").ok_or_else(|| fields.required("prompt"))?;
    let prompts = prompts(app, &prompt, special, &fields)?;
    let guide = form::read(&mut fields, app, None)?;
    fields.end()?;
    let limits = vec![limit; prompts.len()];
    Ok(Work { prompts, asked, limits, logprobs, shared: 0, turn: false, calls: None, guide })
}

/// A text, token ids, or a list of either.
fn prompts(
    app: &App,
    prompt: &Value,
    special: bool,
    fields: &Fields,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Some(app.encode(text, special, "prompt")),
        list => ids(list).map(Ok),
    };
    const WANTED: &str = "a text, a list of token ids, or a list of texts or of such lists";
    if let Some(one) = one(prompt) {
        return Ok(vec![one?]);
    }
    let all = prompt.as_array().and_then(|all| all.iter().map(one).collect::<Option<Vec<_>>>());
    all.ok_or_else(|| fields.wrong("prompt", prompt, WANTED))?.into_iter().collect()
}
