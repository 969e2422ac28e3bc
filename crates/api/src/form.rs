//! What an answer has to be: OpenAI's `response_format`, or vLLM's `structured_outputs`.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request_fields::SCHEMA;
use serde_json::{Value, json};
use serving::{Bound, Form};

/// The form that a request asks for, if any: beside that of the calls that it wants.
pub(crate) fn read(
    fields: &mut Fields,
    app: &App,
    calls: Option<Form>,
) -> Result<Option<Bound>, ApiError> {
    let format = fields.object("response_format")?.map(of_format).transpose()?.flatten();
    let structured = fields.object("structured_outputs")?.map(of_structured).transpose()?;
    let structured = structured.or(guided(fields)?);
    let (name, form) = match (format, structured) {
        (Some(_), Some(_)) => {
            let message = "`response_format` and `structured_outputs` are both there, wanted one";
            return Err(ApiError::field("structured_outputs", message));
        }
        (Some(form), None) => ("response_format", form),
        (None, Some(form)) => ("structured_outputs", form),
        (None, None) => match calls {
            Some(form) => return bind("tools", &form, app).map(Some),
            None => return Ok(None),
        },
    };
    if calls.is_some() {
        let message = "`tool_choice` wants a call, which has a form of its own";
        return Err(ApiError::field(name, message));
    }
    bind(name, &form, app).map(Some)
}

fn bind(name: &str, form: &Form, app: &App) -> Result<Bound, ApiError> {
    let guide = app.grammars()?.guide(form);
    guide.map_err(|error| ApiError::field(name, format!("`{name}` cannot be kept to: {error}")))
}

fn of_format(mut fields: Fields) -> Result<Option<Form>, ApiError> {
    let kind = fields.text("type")?.ok_or_else(|| fields.required("type"))?;
    let form = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Form::Json(json!({ "type": "object" }))),
        "json_schema" => {
            let named =
                fields.object("json_schema")?.ok_or_else(|| fields.required("json_schema"))?;
            let mut named = named.screen(SCHEMA)?;
            let schema = named.take("schema").ok_or_else(|| named.required("schema"))?;
            named.end()?;
            Some(Form::Json(schema))
        }
        _ => {
            let wanted = "`text`, `json_object` or `json_schema`";
            return Err(fields.wrong("type", &Value::from(kind), wanted));
        }
    };
    fields.end()?;
    Ok(form)
}

/// The older names of vLLM's `structured_outputs`. A schema may be the text of one.
fn guided(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let json = match fields.take("guided_json") {
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema) => Some(Form::Json(schema)),
            Err(_) => return Err(fields.wrong("guided_json", &Value::from(text), "a JSON schema")),
        },
        schema => schema.map(Form::Json),
    };
    let regex = fields.text("guided_regex")?.map(Form::Regex);
    let grammar = fields.text("guided_grammar")?.map(Form::Lark);
    let choice = Some(fields.texts("guided_choice")?).filter(|texts| !texts.is_empty());
    let mut all = [json, regex, grammar, choice.map(Form::Choice)].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(_), Some(_)) => {
            let message = "several of `guided_json`, `guided_regex`, `guided_grammar` and `guided_choice` are there, wanted one";
            Err(ApiError::field("guided_json", message))
        }
        (one, _) => Ok(one),
    }
}

fn of_structured(mut fields: Fields) -> Result<Form, ApiError> {
    let json = fields.take("json").map(Form::Json);
    let regex = fields.text("regex")?.map(Form::Regex);
    let grammar = fields.text("grammar")?.map(Form::Lark);
    let choice = Some(fields.texts("choice")?).filter(|texts| !texts.is_empty()).map(Form::Choice);
    fields.end()?;
    let mut all = [json, regex, grammar, choice].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(form), None) => Ok(form),
        _ => {
            let message =
                "`structured_outputs` wants one of `json`, `regex`, `grammar` and `choice`";
            Err(ApiError::field("structured_outputs", message))
        }
    }
}
