//! `POST /v1/completions`.

use super::{Generation, Handler, HttpMethod, Route, generated};
use crate::answers::{ScorePrompts, Work};
use crate::app::App;
use crate::error::{ApiError, ErrorShape};
use crate::fields::{Fields, ids};
use crate::form;
use crate::render::completion::CompletionRenderer;
use crate::request_fields::COMPLETIONS;
use crate::sampling::AnswerSettings;
use serde_json::Value;
use std::sync::Arc;

pub(super) const ROUTE: Route = Route {
    method: HttpMethod::Post,
    path: "/v1/completions",
    without_key: false,
    errors: ErrorShape::OpenAi,
    handler: Handler::FromBody(|app, fields, line| generated(app, fields, line, read)),
};

/// OpenAI's default number of generated tokens.
const TOKENS: usize = 16;

fn read(app: &Arc<App>, fields: Fields) -> Result<Generation, ApiError> {
    let mut fields = fields.screen(COMPLETIONS)?;
    app.check_model(fields.text("model")?)?;
    let asked = AnswerSettings::read(&mut fields, app)?;
    let most = i64::try_from(app.service.limits().logprobs).unwrap_or(i64::MAX);
    let logprobs = fields.count("logprobs", 0..=most)?;
    let special = fields.flag("add_special_tokens")?.unwrap_or(false);
    let echo = fields.flag("echo")?.unwrap_or(false);
    // With `echo` the answer may be only the prompt.
    let limit = fields.count("max_tokens", i64::from(!echo)..=i64::MAX)?.unwrap_or(TOKENS);
    let score = (echo && logprobs.is_some()).then_some(ScorePrompts { hides_special: special });
    let prompt = fields.take("prompt").ok_or_else(|| fields.required("prompt"))?;
    let prompts = prompts(app, &prompt, special, &fields)?;
    let echoed = if echo { echoed(app, &prompt, &prompts)? } else { Vec::new() };
    let guide = form::read(&mut fields, app, None)?;
    fields.end()?;
    let limits = vec![limit; prompts.len()];
    let renderer = CompletionRenderer::new(app, logprobs.is_some(), &asked, echoed);
    let field = "prompt";
    let work = Work {
        field,
        prompts,
        asked,
        limits,
        logprobs,
        score,
        shared: 0,
        turn: false,
        parser: None,
        guide,
    };
    Ok(Generation { work, renderer: Box::new(renderer) })
}

/// The text of each prompt, which precedes its answers.
fn echoed(app: &App, prompt: &Value, prompts: &[Vec<u32>]) -> Result<Vec<String>, ApiError> {
    let all = match prompt {
        Value::Array(all) if all.iter().any(|one| !one.is_number()) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |(given, ids): (&Value, &Vec<u32>)| match given {
        Value::String(text) => Ok(text.clone()),
        _ => {
            let text = app.texts.tokenizer.decode_with(ids, true);
            text.map_err(|error| ApiError::field("prompt", error.to_string()))
        }
    };
    all.iter().zip(prompts).map(text).collect()
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
