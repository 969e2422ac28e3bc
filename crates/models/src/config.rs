//! A config.json, whose values are anybody's: every access names its key and fails with it.

use crate::ModelError;
use serde_json::{Map, Value};
use std::path::Path;

/// Larger counts than any model's are mistakes, and products of a few of these stay in 64 bits.
const LARGEST: u64 = 1 << 24;

/// One config, or an object inside one.
#[derive(Debug, Clone)]
pub struct Config {
    path: String,
    /// Where in the config this object lies: `linear_attn_config.`, or nothing.
    prefix: String,
    keys: Map<String, Value>,
}

impl Config {
    /// Reads the config.json of a model's folder.
    ///
    /// # Errors
    /// [`ModelError::File`] when it cannot be read, or is no JSON object.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let text =
            std::fs::read_to_string(&path).map_err(|error| ModelError::file(&path, error))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses a config; `path` is what errors call it.
    ///
    /// # Errors
    /// [`ModelError::File`] when it is no JSON object.
    pub fn parse(path: &str, text: &str) -> Result<Self, ModelError> {
        let wrong = |reason: String| ModelError::File { path: path.to_owned(), reason };
        match serde_json::from_str(text) {
            Ok(Value::Object(keys)) => {
                Ok(Self { path: path.to_owned(), prefix: String::new(), keys })
            }
            Ok(_) => Err(wrong("is no JSON object, as a config is".to_owned())),
            Err(error) => Err(wrong(format!("is not JSON: {error}"))),
        }
    }

    /// What errors call it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The config with a key replaced.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.keys.insert(key.to_owned(), value);
        self
    }

    /// The config of the first layers alone.
    ///
    /// # Errors
    /// [`ModelError`] when it has no number of layers, or not so many.
    pub fn first_layers(self, layers: usize) -> Result<Self, ModelError> {
        const KEY: &str = "num_hidden_layers";
        let all = self.count(KEY)?;
        if layers == 0 || layers > all {
            let wanted = format!("at least the {layers} layers asked for, and one");
            return Err(self.wrong(KEY, wanted));
        }
        let (kinds, lists) = (self.get("layer_types"), self.get("linear_attn_config"));
        let (kinds, lists) = (kinds.cloned(), lists.cloned());
        let mut cut = self.with(KEY, Value::from(layers));
        if let Some(Value::Array(mut kinds)) = kinds {
            kinds.truncate(layers);
            cut = cut.with("layer_types", Value::Array(kinds));
        }
        // These lists count from 1.
        if let Some(Value::Object(mut lists)) = lists {
            for list in lists.values_mut() {
                if let Value::Array(list) = list {
                    list.retain(|layer| layer.as_u64().is_some_and(|layer| layer <= layers as u64));
                }
            }
            cut = cut.with("linear_attn_config", Value::Object(lists));
        }
        Ok(cut)
    }

    /// The config as it is written to a file.
    pub fn to_text(&self) -> String {
        // Maps of strings and numbers always serialise.
        serde_json::to_string_pretty(&self.keys).unwrap_or_default() + "\n"
    }

    /// A value; null counts as absent, as it does in transformers.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn missing(&self, key: &str, wanted: &'static str) -> ModelError {
        let key = format!("{}{key}", self.prefix);
        ModelError::MissingKey { path: self.path.clone(), key, wanted }
    }

    pub(crate) fn wrong(&self, key: &str, wanted: impl Into<String>) -> ModelError {
        let value = self.get(key).map_or("null".to_owned(), Value::to_string);
        let value = match value.char_indices().nth(60) {
            Some((end, _)) => format!("{}..", &value[..end]),
            None => value,
        };
        let key = format!("{}{key}", self.prefix);
        ModelError::Key { path: self.path.clone(), key, value, wanted: wanted.into() }
    }

    /// The first of several names of a key that is there, or else the first.
    pub(crate) fn spelled<'a>(&self, keys: &[&'a str]) -> &'a str {
        let there = keys.iter().find(|key| self.get(key).is_some());
        there.or(keys.first()).copied().unwrap_or_default()
    }

    fn optional<T>(
        &self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, wanted)),
        }
    }

    /// A whole number above 0 that the family cannot do without.
    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        const WANTED: &str = "a whole number above 0";
        match self.count_or(key, 0)? {
            0 if self.get(key).is_none() => Err(self.missing(key, WANTED)),
            0 => Err(self.wrong(key, WANTED)),
            count => Ok(count),
        }
    }

    /// A whole number, 0 or more.
    pub(crate) fn count_or(&self, key: &str, otherwise: usize) -> Result<usize, ModelError> {
        let read = |value: &Value| {
            value.as_u64().filter(|count| *count <= LARGEST).map(|count| count as usize)
        };
        Ok(self.optional(key, "a whole number", read)?.unwrap_or(otherwise))
    }

    /// A finite number that the family cannot do without: a multiplier that a guess would make silently wrong.
    pub(crate) fn number(&self, key: &str) -> Result<f64, ModelError> {
        const WANTED: &str = "a finite number";
        self.optional(key, WANTED, |value| number(value).filter(|x| x.is_finite()))?
            .ok_or_else(|| self.missing(key, WANTED))
    }

    pub(crate) fn number_or(&self, key: &str, otherwise: f64) -> Result<f64, ModelError> {
        if self.get(key).is_none() { Ok(otherwise) } else { self.number(key) }
    }

    pub(crate) fn flag_or(&self, key: &str, otherwise: bool) -> Result<bool, ModelError> {
        Ok(self.optional(key, "true or false", Value::as_bool)?.unwrap_or(otherwise))
    }

    /// What transformers calls its kind: `granitemoehybrid`.
    pub fn model_type(&self) -> Option<&str> {
        self.get("model_type").and_then(Value::as_str)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string")),
        }
    }

    /// The words of a list, under the first of several keys, with that key.
    pub(crate) fn words<'a>(
        &self,
        keys: &[&'a str],
    ) -> Result<Option<(&'a str, Vec<String>)>, ModelError> {
        let Some(key) = keys.iter().find(|key| self.get(key).is_some()) else { return Ok(None) };
        let read = |value: &Value| {
            let words = value.as_array()?.iter().map(|word| Some(word.as_str()?.to_owned()));
            words.collect::<Option<Vec<_>>>()
        };
        Ok(self.optional(key, "a list of strings", read)?.map(|words| (*key, words)))
    }

    /// The whole numbers of a list.
    pub(crate) fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let read = |value: &Value| {
            let counts = value.as_array()?.iter();
            counts.map(|count| usize::try_from(count.as_u64()?).ok()).collect::<Option<Vec<_>>>()
        };
        self.optional(key, "a list of whole numbers", read)
    }

    /// The two ends of a range, the upper one infinite where it says so.
    pub(crate) fn limits(&self, key: &str, otherwise: [f64; 2]) -> Result<[f64; 2], ModelError> {
        let read = |value: &Value| {
            let ends = value.as_array()?.iter().map(number).collect::<Option<Vec<_>>>()?;
            <[f64; 2]>::try_from(ends).ok().filter(|[low, high]| 0.0 <= *low && low <= high)
        };
        Ok(self.optional(key, "two rising numbers", read)?.unwrap_or(otherwise))
    }

    /// An object inside, as a config of its own.
    pub(crate) fn part(&self, key: &str) -> Result<Option<Self>, ModelError> {
        let inside = |keys: &Map<String, Value>| Self {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            keys: keys.clone(),
        };
        self.optional(key, "an object", |value| value.as_object().map(inside))
    }

    /// `model_type` and `architectures`.
    pub(crate) fn names(&self) -> Vec<&str> {
        let kind = self.model_type();
        let classes = self.get("architectures").and_then(Value::as_array);
        kind.into_iter().chain(classes.into_iter().flatten().filter_map(Value::as_str)).collect()
    }
}

/// A number, or the spelling that transformers 5 gives infinity, which JSON has not: `{"__float__": "Infinity"}`.
fn number(value: &Value) -> Option<f64> {
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    // Python's own json writes the bare word Infinity, which is no JSON; some tools then quote it.
    let word = value.get("__float__").unwrap_or(value).as_str()?;
    match word {
        "Infinity" | "inf" => Some(f64::INFINITY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T>(
        text: &str,
        read: impl Fn(&Config) -> Result<T, ModelError>,
        expect: Result<T, &str>,
    ) where
        T: PartialEq + std::fmt::Debug,
    {
        let config = Config::parse("config.json", text).unwrap();
        match (read(&config), expect) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{text}"),
            (Err(got), Err(want)) => assert_eq!(got.to_string(), want, "{text}"),
            (got, want) => panic!("{text}: got {got:?}, wanted {want:?}"),
        }
    }

    #[test]
    fn errors_name_the_key() {
        let hidden = |config: &Config| config.count("hidden_size");
        check(r#"{"hidden_size": 64}"#, hidden, Ok(64));
        let missing = "config.json: `hidden_size` is missing, wanted a whole number above 0";
        check("{}", hidden, Err(missing));
        check(r#"{"hidden_size": null}"#, hidden, Err(missing));
        let zero = "config.json: `hidden_size` is 0, wanted a whole number above 0";
        check(r#"{"hidden_size": 0}"#, hidden, Err(zero));
        let word = "config.json: `hidden_size` is \"64\", wanted a whole number";
        check(r#"{"hidden_size": "64"}"#, hidden, Err(word));
        let inside = |config: &Config| match config.part("linear_attn_config")? {
            Some(part) => part.count("head_dim"),
            None => Ok(0),
        };
        check("{}", inside, Ok(0));
        check(
            r#"{"linear_attn_config": {"head_dim": -1}}"#,
            inside,
            Err("config.json: `linear_attn_config.head_dim` is -1, wanted a whole number"),
        );
    }

    #[test]
    fn infinity_is_read_as_transformers_5_writes_it() {
        let limits = |config: &Config| config.limits("time_step_limit", [0.0, f64::INFINITY]);
        let open = [0.0, f64::INFINITY];
        check("{}", limits, Ok(open));
        check(r#"{"time_step_limit": [0.0, {"__float__": "Infinity"}]}"#, limits, Ok(open));
        check(r#"{"time_step_limit": [0.001, 0.1]}"#, limits, Ok([0.001, 0.1]));
        check(
            r#"{"time_step_limit": [1, 0]}"#,
            limits,
            Err("config.json: `time_step_limit` is [1,0], wanted two rising numbers"),
        );
    }

    #[test]
    fn what_is_no_object_is_one_sentence() {
        for text in ["", "[]", "3", "{", "\"x\""] {
            let error = Config::parse("config.json", text).unwrap_err().to_string();
            assert!(error.starts_with("config.json: is no") && !error.contains('\n'), "{error}");
        }
    }
}
