//! Reads a JSON object field by field. A field without an effect is refused by name.

use crate::error::ApiError;
use crate::request_fields::{self, Handling, Surface};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

/// The fields of an object that have not been read. A field that is null counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    values: Map<String, Value>,
    /// Prefix of field names in messages: `stream_options.`.
    within: String,
    /// The permit of a large body, held until its fields are read.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Fields {
    /// The fields of a request's body.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        let refuse = |message: String| Err(ApiError::invalid(message).with_code("invalid_json"));
        match serde_json::from_slice(body) {
            Ok(Value::Object(values)) => Ok(Self::new(values, String::new())),
            Ok(_) => refuse("the body is not a JSON object".to_owned()),
            Err(error) => refuse(format!("the body is not JSON: {error}")),
        }
    }

    pub(crate) fn new(values: Map<String, Value>, within: String) -> Self {
        Self { values, within, _permit: None }
    }

    /// Applies the table: drops ignored fields, and refuses unknown fields and unsupported values.
    pub(crate) fn screen(mut self, surface: Surface) -> Result<Self, ApiError> {
        for (name, value) in &self.values {
            let full = || format!("{}{name}", self.within);
            let Some(field) = request_fields::find(name, surface) else {
                if value.is_null() {
                    continue;
                }
                let known: Vec<&str> = request_fields::read_on(surface).collect();
                let (name, known) = (full(), known.join(", "));
                let message =
                    format!("the server does not know the field `{name}`; it knows {known}");
                return Err(ApiError::field(&name, message).with_code("unknown_parameter"));
            };
            match field.handling {
                _ if value.is_null() => {}
                Handling::Read | Handling::Ignored => {}
                Handling::Neutral(accepted, why) => {
                    if !accepted.iter().any(|accepted| is_same(value, accepted)) {
                        let wanted = format!("{}: {why}", accepted.join(" or "));
                        let error = self.wrong(name, value, &wanted);
                        return Err(error.with_code("unsupported_value"));
                    }
                }
                Handling::Refused(why) => {
                    let name = full();
                    let error = ApiError::field(&name, format!("`{name}` is not supported: {why}"));
                    return Err(error.with_code("unsupported_parameter"));
                }
            }
        }
        self.values.retain(|name, value| {
            let field = request_fields::find(name, surface);
            !value.is_null() && field.is_some_and(|field| field.handling == Handling::Read)
        });
        Ok(self)
    }

    /// Frees the permit of a large body when its fields are dropped.
    pub(crate) fn with_permit(self, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { _permit: permit, ..self }
    }

    /// Takes a field as it is.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.values.remove(name).filter(|value| !value.is_null())
    }

    /// The error for a value of the wrong type.
    pub(crate) fn wrong(&self, name: &str, value: &Value, wanted: &str) -> ApiError {
        const SHOWN: usize = 60;
        let name = format!("{}{name}", self.within);
        let mut text = value.to_string();
        if let Some((at, _)) = text.char_indices().nth(SHOWN) {
            text.truncate(at);
            text.push_str("..");
        }
        ApiError::field(&name, format!("`{name}` is {text}, expected {wanted}"))
    }

    /// The error for a number outside its range.
    fn out_of_range(&self, name: &str, value: &Value, wanted: &str, below: bool) -> ApiError {
        let code = match (value.is_f64(), below) {
            (false, true) => "integer_below_min_value",
            (false, false) => "integer_above_max_value",
            (true, true) => "decimal_below_min_value",
            (true, false) => "decimal_above_max_value",
        };
        self.wrong(name, value, wanted).with_code(code)
    }

    /// The error for a missing field.
    pub(crate) fn required(&self, name: &str) -> ApiError {
        let name = format!("{}{name}", self.within);
        ApiError::field(&name, format!("`{name}` is missing"))
            .with_code("missing_required_parameter")
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.wrong(name, &value, wanted).with_code("invalid_type")),
        }
    }

    /// A number in a range, which `wanted` describes.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<f64>,
        wanted: &str,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            None => Err(self.wrong(name, &value, "a number").with_code("invalid_type")),
            Some(number) if range.contains(&number) => Ok(Some(number)),
            Some(number) => Err(self.out_of_range(name, &value, wanted, number < *range.start())),
        }
    }

    /// A whole number in a range.
    pub(crate) fn whole(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let (least, most) = (*range.start(), *range.end());
        let wanted = match (least, most) {
            (i64::MIN, i64::MAX) => "a whole number".to_owned(),
            (_, i64::MAX) => format!("a whole number, {least} or more"),
            _ => format!("a whole number from {least} to {most}"),
        };
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_i64() {
            Some(whole) if range.contains(&whole) => Ok(Some(whole)),
            Some(whole) => Err(self.out_of_range(name, &value, &wanted, whole < least)),
            None => Err(self.wrong(name, &value, &wanted).with_code("invalid_type")),
        }
    }

    pub(crate) fn count(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<usize>, ApiError> {
        Ok(self.whole(name, range)?.and_then(|whole| usize::try_from(whole).ok()))
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.read(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// One string or a list of them.
    pub(crate) fn texts(&mut self, name: &'static str) -> Result<Vec<String>, ApiError> {
        let texts = self.read(name, "a string or a list of strings", |value| match value {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// A list of token ids.
    pub(crate) fn ids(&mut self, name: &'static str) -> Result<Option<Vec<u32>>, ApiError> {
        self.read(name, "a list of token ids", ids)
    }

    /// An object within this one.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Self>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(values)) => {
                Ok(Some(Self::new(values, format!("{}{name}.", self.within))))
            }
            Some(value) => Err(self.wrong(name, &value, "an object").with_code("invalid_type")),
        }
    }

    /// A field that has not been taken.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// The remaining fields, as a value.
    pub(crate) fn into_value(self) -> Value {
        Value::Object(self.values)
    }

    /// Refuses remaining fields.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        let Some((name, _)) = self.values.iter().find(|(_, value)| !value.is_null()) else {
            return Ok(());
        };
        let name = format!("{}{name}", self.within);
        let message = format!("the server does not know the field `{name}`");
        Err(ApiError::field(&name, message).with_code("unknown_parameter"))
    }
}

/// Whether a value equals a JSON text. Numbers are compared by value: 0 is 0.0.
fn is_same(value: &Value, text: &str) -> bool {
    let Ok(other) = serde_json::from_str::<Value>(text) else { return false };
    match (value.as_f64(), other.as_f64()) {
        (Some(value), Some(other)) => value == other,
        _ => *value == other,
    }
}

/// Token ids, if a value is a list of only those.
pub(crate) fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_fields::{CHAT, STREAM};

    type Read = (Option<f64>, Option<usize>, Vec<String>);

    fn read(body: &str) -> Result<Read, ApiError> {
        let mut fields = Fields::of_body(body.as_bytes())?.screen(CHAT)?;
        let temperature = fields.number("temperature", 0.0..=f64::MAX, "0 or more")?;
        let all = (temperature, fields.count("n", 1..=4)?, fields.texts("stop")?);
        if let Some(within) = fields.object("stream_options")? {
            let mut within = within.screen(STREAM)?;
            within.flag("include_usage")?;
            within.end()?;
        }
        fields.end()?;
        Ok(all)
    }

    #[test]
    fn fields_are_read_ignored_or_refused_by_name() {
        let all = read(
            r#"{"temperature": 1, "n": 2, "stop": "x", "length_penalty": 1.0, "user": "me", "foo": null, "audio": null,
                "metadata": {"a": "b"}, "store": true, "modalities": ["text"], "stream_options": {"include_obfuscation": true}}"#,
        );
        assert_eq!(all.unwrap(), (Some(1.0), Some(2), vec!["x".to_owned()]));
        for (body, param, code, words) in [
            (
                r#"{"temperature": "hot"}"#,
                "temperature",
                "invalid_type",
                "is \"hot\", expected a number",
            ),
            (
                r#"{"temperature": -0.5}"#,
                "temperature",
                "decimal_below_min_value",
                "expected 0 or more",
            ),
            (
                r#"{"n": 5}"#,
                "n",
                "integer_above_max_value",
                "`n` is 5, expected a whole number from 1 to 4",
            ),
            (r#"{"n": 1.5}"#, "n", "invalid_type", "expected a whole number from 1 to 4"),
            (r#"{"stop": [1]}"#, "stop", "invalid_type", "expected a string or a list of strings"),
            (
                r#"{"length_penalty": 2}"#,
                "length_penalty",
                "unsupported_value",
                "is 2, expected 1: ",
            ),
            (
                r#"{"modalities": ["text", "audio"]}"#,
                "modalities",
                "unsupported_value",
                "the server gives text only",
            ),
            (
                r#"{"web_search_options": {}}"#,
                "web_search_options",
                "unsupported_parameter",
                "not supported",
            ),
            (
                r#"{"foo": "me"}"#,
                "foo",
                "unknown_parameter",
                "does not know the field `foo`; it knows model, ",
            ),
            (
                r#"{"stream_options": {"x": 1}}"#,
                "stream_options.x",
                "unknown_parameter",
                "it knows include_usage",
            ),
            (r#"{"stream_options": 1}"#, "stream_options", "invalid_type", "expected an object"),
            (r#"{"min_p": 1}"#, "min_p", "unknown_parameter", "`min_p`"),
        ] {
            let error = read(body).unwrap_err().json(crate::error::ErrorShape::OpenAi);
            let error = &error["error"];
            assert_eq!(
                (&error["param"], &error["code"]),
                (&Value::from(param), &Value::from(code)),
                "{error}"
            );
            assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        }
        for (body, words) in [
            ("{", "the body is not JSON: EOF"),
            ("[]", "is not a JSON object"),
            ("\u{0}", "not JSON"),
        ] {
            assert!(read(body).unwrap_err().message.contains(words), "{body}");
        }
    }
}
