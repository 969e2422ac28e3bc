//! A JSON object, read field by field. What nobody asked for by the end is refused by name.

use crate::error::ApiError;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

/// The fields of an object that have not been read. A field that is null counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    values: Map<String, Value>,
    /// What goes before a field's name in messages: `stream_options.`.
    within: String,
    known: Vec<&'static str>,
    /// The permit of a large body, until its fields are read.
    _room: Option<OwnedSemaphorePermit>,
}

impl Fields {
    /// The fields of a request's body.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(values)) => Ok(Self::new(values, String::new())),
            Ok(_) => Err(ApiError::invalid("the body is no JSON object")),
            Err(error) => Err(ApiError::invalid(format!("the body is no JSON: {error}"))),
        }
    }

    pub(crate) fn new(values: Map<String, Value>, within: String) -> Self {
        Self { values, within, known: Vec::new(), _room: None }
    }

    /// Gives the room of a large body back when its fields are dropped.
    pub(crate) fn holding(self, room: Option<OwnedSemaphorePermit>) -> Self {
        Self { _room: room, ..self }
    }

    /// Takes a field as it is.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.values.remove(name).filter(|value| !value.is_null())
    }

    /// A value that is none of what was wanted.
    pub(crate) fn wrong(&self, name: &str, value: &Value, wanted: &str) -> ApiError {
        const SHOWN: usize = 60;
        let name = format!("{}{name}", self.within);
        let mut text = value.to_string();
        if let Some((at, _)) = text.char_indices().nth(SHOWN) {
            text.truncate(at);
            text.push_str("..");
        }
        ApiError::field(&name, format!("`{name}` is {text}, wanted {wanted}"))
    }

    /// A field that has to be there.
    pub(crate) fn required(&self, name: &str) -> ApiError {
        let name = format!("{}{name}", self.within);
        ApiError::field(&name, format!("`{name}` is missing"))
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
            None => Err(self.wrong(name, &value, wanted)),
        }
    }

    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<f64>, ApiError> {
        self.read(name, "a number", Value::as_f64)
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
        self.read(name, &wanted, |value| value.as_i64().filter(|whole| range.contains(whole)))
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
            Some(value) => Err(self.wrong(name, &value, "an object")),
        }
    }

    /// Fields that clients send with the one value that asks for nothing. Any other value asks for what the server cannot do.
    pub(crate) fn only(&mut self, name: &'static str, neutral: &Value) -> Result<(), ApiError> {
        let same = |value: &Value| match (value.as_f64(), neutral.as_f64()) {
            (Some(value), Some(neutral)) => value == neutral,
            _ => value == neutral,
        };
        match self.take(name) {
            Some(value) if !same(&value) => {
                let wanted = format!("{neutral}: the server can do nothing else");
                Err(self.wrong(name, &value, &wanted))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        let Some((name, _)) = self.values.iter().find(|(_, value)| !value.is_null()) else {
            return Ok(());
        };
        let name = format!("{}{name}", self.within);
        let known = self.known.join(", ");
        let message = format!("the server does not know the field `{name}`; it knows {known}");
        Err(ApiError::field(&name, message).with_code("unknown_field"))
    }
}

/// Token ids, where a value is a list of nothing else.
pub(crate) fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    type Read = (Option<f64>, Option<usize>, Vec<String>);

    fn read(body: &str) -> Result<Read, ApiError> {
        let mut fields = Fields::of_body(body.as_bytes())?;
        let all = (fields.number("temperature")?, fields.count("n", 1..=4)?, fields.texts("stop")?);
        fields.only("logit_bias", &json!({}))?;
        fields.only("presence_penalty", &json!(0))?;
        if let Some(mut within) = fields.object("stream_options")? {
            within.flag("include_usage")?;
            within.end()?;
        }
        fields.end()?;
        Ok(all)
    }

    #[test]
    fn fields_are_read_by_name_and_refused_by_name() {
        let all = read(
            r#"{"temperature": 1, "n": 2, "stop": "x", "logit_bias": {}, "presence_penalty": 0.0, "user": null}"#,
        );
        assert_eq!(all.unwrap(), (Some(1.0), Some(2), vec!["x".to_owned()]));
        for (body, param, words) in [
            (
                r#"{"temperature": "hot"}"#,
                "temperature",
                "`temperature` is \"hot\", wanted a number",
            ),
            (r#"{"n": 5}"#, "n", "`n` is 5, wanted a whole number from 1 to 4"),
            (r#"{"n": 1.5}"#, "n", "wanted a whole number from 1 to 4"),
            (r#"{"stop": [1]}"#, "stop", "wanted a string or a list of strings"),
            (
                r#"{"logit_bias": {"1": 2}}"#,
                "logit_bias",
                "wanted {}: the server can do nothing else",
            ),
            (r#"{"presence_penalty": 0.5}"#, "presence_penalty", "is 0.5, wanted 0"),
            (
                r#"{"user": "me"}"#,
                "user",
                "the server does not know the field `user`; it knows temperature, n,",
            ),
            (r#"{"stream_options": {"x": 1}}"#, "stream_options.x", "it knows include_usage"),
            (r#"{"stream_options": 1}"#, "stream_options", "wanted an object"),
        ] {
            let error = read(body).unwrap_err().json();
            assert_eq!(error["error"]["param"], param, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(words), "{error}");
        }
        for (body, words) in
            [("{", "the body is no JSON: EOF"), ("[]", "is no JSON object"), ("\u{0}", "no JSON")]
        {
            assert!(read(body).unwrap_err().message.contains(words), "{body}");
        }
    }
}
