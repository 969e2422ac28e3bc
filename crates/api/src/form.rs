//! Structured output: OpenAI's `response_format`, or vLLM's `structured_outputs`.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request_fields::SCHEMA;
use serde_json::{Value, json};
use serving::{GrammarGuide, StructuredOutput};

/// The grammar of the requested structured output, if any. A required tool call (`calls`) excludes it.
pub(crate) fn read(
    fields: &mut Fields,
    app: &App,
    calls: Option<StructuredOutput>,
) -> Result<Option<GrammarGuide>, ApiError> {
    let format = fields.object("response_format")?.map(parse_format).transpose()?.flatten();
    let structured = fields.object("structured_outputs")?.map(parse_structured).transpose()?;
    let structured = structured.or(parse_guided(fields)?);
    let (name, output) = match (format, structured) {
        (Some(_), Some(_)) => {
            let message = "`response_format` and `structured_outputs` are both given, expected one";
            return Err(ApiError::field("structured_outputs", message));
        }
        (Some(output), None) => ("response_format", output),
        (None, Some(output)) => ("structured_outputs", output),
        (None, None) => match calls {
            Some(output) => return bind("tools", &output, app).map(Some),
            None => return Ok(None),
        },
    };
    if calls.is_some() {
        let message = "`tool_choice` requires a call, which has its own grammar";
        return Err(ApiError::field(name, message));
    }
    bind(name, &output, app).map(Some)
}

fn bind(name: &str, output: &StructuredOutput, app: &App) -> Result<GrammarGuide, ApiError> {
    let guide = app.grammars()?.guide(output);
    guide.map_err(|error| ApiError::field(name, format!("`{name}` cannot be enforced: {error}")))
}

fn parse_format(mut fields: Fields) -> Result<Option<StructuredOutput>, ApiError> {
    let kind = fields.text("type")?.ok_or_else(|| fields.required("type"))?;
    let output = match kind.as_str() {
        "text" => None,
        // llama.cpp's clients send a schema here, or without OpenAI's wrapper.
        "json_object" => {
            let schema = fields.take("schema").unwrap_or_else(|| json!({ "type": "object" }));
            Some(StructuredOutput::Json(schema))
        }
        "json_schema" => match (fields.object("json_schema")?, fields.take("schema")) {
            (None, Some(schema)) => Some(StructuredOutput::Json(schema)),
            (None, None) => return Err(fields.required("json_schema")),
            (Some(_), Some(schema)) => {
                return Err(fields.wrong("schema", &schema, "one schema, in `json_schema`"));
            }
            (Some(named), None) => {
                let mut named = named.screen(SCHEMA)?;
                let schema = named.take("schema").ok_or_else(|| named.required("schema"))?;
                named.end()?;
                Some(StructuredOutput::Json(schema))
            }
        },
        _ => {
            let wanted = "`text`, `json_object` or `json_schema`";
            return Err(fields.wrong("type", &Value::from(kind), wanted));
        }
    };
    fields.end()?;
    Ok(output)
}

/// The older names of vLLM's `structured_outputs`. A schema may be given as JSON text.
fn parse_guided(fields: &mut Fields) -> Result<Option<StructuredOutput>, ApiError> {
    let json = match fields.take("guided_json") {
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema) => Some(StructuredOutput::Json(schema)),
            Err(_) => return Err(fields.wrong("guided_json", &Value::from(text), "a JSON schema")),
        },
        schema => schema.map(StructuredOutput::Json),
    };
    let regex = fields.text("guided_regex")?.map(StructuredOutput::Regex);
    let grammar = fields.text("guided_grammar")?.map(StructuredOutput::Lark);
    let choice = Some(fields.texts("guided_choice")?).filter(|texts| !texts.is_empty());
    let mut all =
        [json, regex, grammar, choice.map(StructuredOutput::Choice)].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(_), Some(_)) => {
            let message = "several of `guided_json`, `guided_regex`, `guided_grammar` and `guided_choice` are given, expected one";
            Err(ApiError::field("guided_json", message))
        }
        (one, _) => Ok(one),
    }
}

fn parse_structured(mut fields: Fields) -> Result<StructuredOutput, ApiError> {
    let json = fields.take("json").map(StructuredOutput::Json);
    let regex = fields.text("regex")?.map(StructuredOutput::Regex);
    let grammar = fields.text("grammar")?.map(StructuredOutput::Lark);
    let choice = Some(fields.texts("choice")?)
        .filter(|texts| !texts.is_empty())
        .map(StructuredOutput::Choice);
    fields.end()?;
    let mut all = [json, regex, grammar, choice].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(output), None) => Ok(output),
        _ => {
            let message =
                "`structured_outputs` needs one of `json`, `regex`, `grammar` and `choice`";
            Err(ApiError::field("structured_outputs", message))
        }
    }
}
