//! Reads config.json, which is untrusted: every access names its key in errors.

use crate::ConfigError;
use crate::class_defaults::class_default;
use crate::python_json::{NonFinite, strict_json};
use serde_json::{Map, Value};

/// Larger counts are invalid; products of a few of these fit in 64 bits.
const LARGEST: u64 = 1 << 24;

/// A config, or an object inside one.
#[derive(Debug, Clone)]
pub struct Config {
    path: String,
    /// Path of this object in the config: `linear_attn_config.`, or empty.
    prefix: String,
    keys: Map<String, Value>,
    /// The key that contains the language model's config of a multimodal model.
    inner: Option<&'static str>,
    /// Whether missing keys have the default of their class in transformers.
    class_defaults: bool,
}

impl Config {
    /// Parses a config; `path` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError::NotAConfig`] when it is not a JSON object.
    pub fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        let wrong = |reason| ConfigError::NotAConfig { path: path.to_owned(), reason };
        match serde_json::from_str(&strict_json(text, NonFinite::Objects)) {
            Ok(Value::Object(keys)) => {
                let (path, prefix, inner) = (path.to_owned(), String::new(), inner(&keys));
                Ok(Self { path, prefix, keys, inner, class_defaults: true })
            }
            Ok(_) => Err(wrong("is not a JSON object".to_owned())),
            Err(error) => Err(wrong(format!("is not JSON: {error}"))),
        }
    }

    /// Disables class defaults, for GGUF, whose writers omit keys without meaning transformers' defaults.
    #[must_use]
    pub fn without_class_defaults(self) -> Self {
        Self { class_defaults: false, ..self }
    }

    /// Its name in errors.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The config with a key replaced at the level where it is read: in the language model's part if that has it.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        let inside = self.inner.and_then(|inner| self.keys.get_mut(inner)?.as_object_mut());
        match inside.filter(|inside| inside.contains_key(key)) {
            Some(inside) => inside.insert(key.to_owned(), value),
            None => self.keys.insert(key.to_owned(), value),
        };
        self.inner = inner(&self.keys);
        self
    }

    /// The config reduced to the first layers.
    ///
    /// # Errors
    /// [`ConfigError`] when the number of layers is missing or too small.
    pub fn first_layers(self, layers: usize) -> Result<Self, ConfigError> {
        const KEY: &str = "num_hidden_layers";
        let all = self.count(KEY)?;
        if layers == 0 || layers > all {
            return Err(ConfigError::Layers { all, asked: layers });
        }
        let lists = self.get("linear_attn_config").cloned();
        let mut cut = self.with(KEY, Value::from(layers));
        for key in ["layer_types", "mlp_layer_types", "layers_block_type"] {
            if let Some(Value::Array(kinds)) = cut.get(key).cloned() {
                cut = cut.with(key, kinds.into_iter().take(layers).collect());
            }
        }
        // One letter per layer.
        const LETTERS: &str = "hybrid_override_pattern";
        if let Some(Value::String(letters)) = cut.get(LETTERS) {
            let letters: String = letters.chars().take(layers).collect();
            cut = cut.with(LETTERS, Value::from(letters));
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

    /// The text of the config file.
    pub fn to_text(&self) -> String {
        // Maps of strings and numbers always serialize.
        serde_json::to_string_pretty(&self.keys).unwrap_or_default() + "\n"
    }

    /// A value. As in transformers null counts as missing, and a missing key has the default of its class. Multimodal
    /// models have the keys of their language model one level down.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let written = self.written(key);
        let left_out = self.class_defaults && written.is_none();
        let class = || left_out.then(|| class_default(self.kind()?, key)).flatten();
        written.or_else(class).filter(|value| !value.is_null())
    }

    /// A value in the file, including null.
    fn written(&self, key: &str) -> Option<&Value> {
        let inner = self.language_model().and_then(|inner| inner.get(key));
        inner.or_else(|| self.keys.get(key))
    }

    /// Whether the file contains a value.
    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.written(key).is_some_and(|value| !value.is_null())
    }

    /// A flag of the whole model, which overrides that of its language model.
    pub(crate) fn outer_flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let value = self.keys.get(key).filter(|value| !value.is_null());
        let read = |value: &Value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false"));
        value.map(read).transpose()
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The language model's part of a multimodal model.
    pub(crate) fn language_model(&self) -> Option<&Map<String, Value>> {
        self.keys.get(self.inner?)?.as_object()
    }

    pub(crate) fn missing(&self, key: &str, wanted: &'static str) -> ConfigError {
        let key = format!("{}{key}", self.prefix);
        ConfigError::MissingKey { path: self.path.clone(), key, wanted }
    }

    pub(crate) fn wrong(&self, key: &str, wanted: impl Into<String>) -> ConfigError {
        let value = self.get(key).map_or("null".to_owned(), Value::to_string);
        let value = match value.char_indices().nth(60) {
            Some((end, _)) => format!("{}..", &value[..end]),
            None => value,
        };
        let key = format!("{}{key}", self.prefix);
        ConfigError::Key { path: self.path.clone(), key, value, wanted: wanted.into() }
    }

    /// The first of several names of a key that exists, in the file before class defaults, or the first name.
    pub(crate) fn present_key<'a>(&self, keys: &[&'a str]) -> &'a str {
        let written = keys.iter().find(|key| self.is_written(key));
        let there = written.or_else(|| keys.iter().find(|key| self.has(key)));
        there.or(keys.first()).copied().unwrap_or_default()
    }

    fn optional<T>(
        &self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, wanted)),
        }
    }

    /// A required positive integer.
    pub(crate) fn count(&self, key: &str) -> Result<usize, ConfigError> {
        const WANTED: &str = "a whole number above 0";
        match self.count_or(key, 0)? {
            0 if self.get(key).is_none() => Err(self.missing(key, WANTED)),
            0 => Err(self.wrong(key, WANTED)),
            count => Ok(count),
        }
    }

    /// A non-negative integer.
    pub(crate) fn count_or(&self, key: &str, otherwise: usize) -> Result<usize, ConfigError> {
        let read = |value: &Value| {
            value.as_u64().filter(|count| *count <= LARGEST).map(|count| count as usize)
        };
        Ok(self.optional(key, "a whole number", read)?.unwrap_or(otherwise))
    }

    /// A positive integer, or the default.
    pub(crate) fn size_or(&self, key: &str, usual: usize) -> Result<usize, ConfigError> {
        if self.has(key) { self.count(key) } else { Ok(usual) }
    }

    /// A required finite number: a multiplier for which a default could be silently wrong.
    pub(crate) fn number(&self, key: &str) -> Result<f64, ConfigError> {
        const WANTED: &str = "a finite number";
        self.optional(key, WANTED, |value| number(value).filter(|x| x.is_finite()))?
            .ok_or_else(|| self.missing(key, WANTED))
    }

    pub(crate) fn number_or(&self, key: &str, otherwise: f64) -> Result<f64, ConfigError> {
        if self.get(key).is_none() { Ok(otherwise) } else { self.number(key) }
    }

    pub(crate) fn flag_or(&self, key: &str, otherwise: bool) -> Result<bool, ConfigError> {
        Ok(self.optional(key, "true or false", Value::as_bool)?.unwrap_or(otherwise))
    }

    /// The `model_type`, such as `granitemoehybrid`.
    pub fn model_type(&self) -> Option<&str> {
        self.keys.get("model_type").and_then(Value::as_str)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string")),
        }
    }

    /// A list of strings under the first existing key, with that key.
    pub(crate) fn words<'a>(
        &self,
        keys: &[&'a str],
    ) -> Result<Option<(&'a str, Vec<String>)>, ConfigError> {
        let Some(key) = keys.iter().find(|key| self.get(key).is_some()) else { return Ok(None) };
        let read = |value: &Value| {
            let words = value.as_array()?.iter().map(|word| Some(word.as_str()?.to_owned()));
            words.collect::<Option<Vec<_>>>()
        };
        Ok(self.optional(key, "a list of strings", read)?.map(|words| (*key, words)))
    }

    /// A list of integers.
    pub(crate) fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        let read = |value: &Value| {
            let counts = value.as_array()?.iter();
            counts.map(|count| usize::try_from(count.as_u64()?).ok()).collect::<Option<Vec<_>>>()
        };
        self.optional(key, "a list of whole numbers", read)
    }

    /// A list of `count` positive numbers.
    pub(crate) fn numbers(&self, key: &str, count: usize) -> Result<Vec<f64>, ConfigError> {
        let wanted = || format!("{count} numbers above 0");
        let read = |value: &Value| {
            let numbers = value.as_array()?.iter().map(number).collect::<Option<Vec<_>>>()?;
            let good = numbers.iter().all(|number| *number > 0.0 && number.is_finite());
            (numbers.len() == count && good).then_some(numbers)
        };
        self.get(key).and_then(read).ok_or_else(|| self.wrong(key, wanted()))
    }

    /// The two ends of a range; the upper one may be infinite.
    pub(crate) fn limits(&self, key: &str, otherwise: [f64; 2]) -> Result<[f64; 2], ConfigError> {
        let read = |value: &Value| {
            let ends = value.as_array()?.iter().map(number).collect::<Option<Vec<_>>>()?;
            <[f64; 2]>::try_from(ends).ok().filter(|[low, high]| 0.0 <= *low && low <= high)
        };
        Ok(self.optional(key, "two rising numbers", read)?.unwrap_or(otherwise))
    }

    /// A list of `N` finite numbers, all 1 if it is missing.
    pub(crate) fn multipliers<const N: usize>(&self, key: &str) -> Result<[f64; N], ConfigError> {
        let read = |value: &Value| {
            let multipliers = value.as_array()?.iter().map(number).collect::<Option<Vec<_>>>()?;
            <[f64; N]>::try_from(multipliers).ok().filter(|all| all.iter().all(|x| x.is_finite()))
        };
        let read = self.get(key).map(|value| read(value).ok_or(N));
        match read {
            None => Ok([1.0; N]),
            Some(Ok(multipliers)) => Ok(multipliers),
            Some(Err(count)) => Err(self.wrong(key, format!("{count} finite numbers"))),
        }
    }

    /// A nested object as a config.
    pub(crate) fn part(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        let inside = |keys: &Map<String, Value>| Self {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            keys: keys.clone(),
            inner: None,
            class_defaults: false,
        };
        self.optional(key, "an object", |value| value.as_object().map(inside))
    }

    /// The number of layers, limited because the file is untrusted.
    pub(crate) fn layer_count(&self) -> Result<usize, ConfigError> {
        let key = self.present_key(&["num_hidden_layers", "n_layer", "num_layers"]);
        match self.count(key)? {
            count @ 1..=4096 => Ok(count),
            _ => Err(self.wrong(key, "1 to 4096 layers")),
        }
    }

    /// The number of experts per layer, limited likewise.
    pub(crate) fn expert_count(
        &self,
        keys: &[&str],
        otherwise: usize,
    ) -> Result<usize, ConfigError> {
        self.expert_count_of(keys, otherwise, self.layer_count()?)
    }

    /// [`Self::expert_count`] for a model of `layers` layers.
    pub(crate) fn expert_count_of(
        &self,
        keys: &[&str],
        otherwise: usize,
        layers: usize,
    ) -> Result<usize, ConfigError> {
        const ALL: usize = 1 << 17;
        let key = self.present_key(keys);
        match self.count_or(key, otherwise)? {
            count if count.saturating_mul(layers) <= ALL => Ok(count),
            _ => {
                Err(self.wrong(key, format!("at most {} in each of {layers} layers", ALL / layers)))
            }
        }
    }

    /// A list with one string per layer under the first existing key, with that key.
    pub(crate) fn layer_words<'a>(
        &self,
        keys: &[&'a str],
    ) -> Result<Option<(&'a str, Vec<String>)>, ConfigError> {
        let count = self.layer_count()?;
        let words = self.words(keys)?;
        if let Some((key, words)) = words.as_ref().filter(|(_, words)| words.len() != count) {
            let wanted =
                format!("as many entries as there are layers: {count}, not {}", words.len());
            return Err(self.wrong(key, wanted));
        }
        Ok(words)
    }

    /// Taps of a convolution, 4 by default.
    pub(crate) fn taps(&self, key: &str) -> Result<usize, ConfigError> {
        self.size_or(key, 4)
    }

    /// `model_type` of the language model, if it is nested.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.written("model_type").and_then(Value::as_str)
    }

    /// A positive integer, or `None` if the key is missing or "auto".
    pub(crate) fn count_unless_auto(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        match self.get(key).map(|value| value.as_str()) {
            None | Some(Some("auto")) => Ok(None),
            Some(_) => self.count(key).map(Some),
        }
    }

    /// The keys of a nested object.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// `model_type` and `architectures` of the model and of its language model.
    pub(crate) fn names(&self) -> Vec<&str> {
        fn of(keys: &Map<String, Value>) -> impl Iterator<Item = &str> {
            let classes = keys.get("architectures").and_then(Value::as_array);
            let kind = keys.get("model_type").and_then(Value::as_str);
            kind.into_iter().chain(classes.into_iter().flatten().filter_map(Value::as_str))
        }
        [Some(&self.keys), self.language_model()].into_iter().flatten().flat_map(of).collect()
    }

    /// The model's class, or otherwise its `model_type`.
    pub fn name(&self) -> &str {
        let classes = self.keys.get("architectures").and_then(Value::as_array);
        let class = classes.and_then(|names| names.first()?.as_str());
        class.or_else(|| self.model_type()).unwrap_or("model")
    }

    /// Bits per weight, and the key that determines it: of the quantization if there is one, otherwise of the dtype.
    pub fn weight_bits(&self) -> (u64, &'static str) {
        if let Some(quantised) = self.get("quantization_config") {
            let bits = ["bits", "w_bit", "num_bits"].iter().find_map(|key| quantised.get(key));
            let four = quantised.get("load_in_4bit") == Some(&Value::Bool(true))
                || quantised.get("quant_method").and_then(Value::as_str) == Some("mxfp4")
                || quantised.get("quant_algo").and_then(Value::as_str) == Some("NVFP4");
            let bits = bits.and_then(Value::as_u64).unwrap_or(if four { 4 } else { 8 });
            return (bits.clamp(1, 32), "quantization_config");
        }
        match self.dtype() {
            Some("float32") => (32, "dtype float32"),
            Some("float16") => (16, "dtype float16"),
            Some(name) if name.contains("float8") => (8, "dtype float8"),
            Some("bfloat16") => (16, "dtype bfloat16"),
            _ => (16, "no dtype, taken for bfloat16"),
        }
    }

    /// Whether it has a quantization config.
    pub fn is_quantised(&self) -> bool {
        self.has("quantization_config")
    }

    /// Bytes per value of activations and of the cache.
    pub fn activation_bytes(&self) -> usize {
        if self.dtype() == Some("float32") { 4 } else { 2 }
    }

    fn dtype(&self) -> Option<&str> {
        self.get("dtype").or_else(|| self.get("torch_dtype"))?.as_str()
    }
}

fn inner(keys: &Map<String, Value>) -> Option<&'static str> {
    let parts = ["text_config", "llm_config", "language_config"];
    parts.into_iter().find(|part| keys.get(*part).is_some_and(Value::is_object))
}

/// A number, or transformers 5's spelling of infinity, which JSON lacks: `{"__float__": "Infinity"}`.
fn number(value: &Value) -> Option<f64> {
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    // Some tools quote the word that Python writes without quotes.
    let word = value.get("__float__").unwrap_or(value).as_str()?;
    match word {
        "Infinity" | "inf" => Some(f64::INFINITY),
        "-Infinity" | "-inf" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T>(
        text: &str,
        read: impl Fn(&Config) -> Result<T, ConfigError>,
        expect: Result<T, &str>,
    ) where
        T: PartialEq + std::fmt::Debug,
    {
        let config = Config::parse("config.json", text).unwrap();
        match (read(&config), expect) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{text}"),
            (Err(got), Err(want)) => assert_eq!(got.to_string(), want, "{text}"),
            (got, want) => panic!("{text}: got {got:?}, expected {want:?}"),
        }
    }

    #[test]
    fn errors_name_the_key() {
        let hidden = |config: &Config| config.count("hidden_size");
        check(r#"{"hidden_size": 64}"#, hidden, Ok(64));
        let missing = "config.json: `hidden_size` is missing, expected a whole number above 0";
        check("{}", hidden, Err(missing));
        check(r#"{"hidden_size": null}"#, hidden, Err(missing));
        let zero = "config.json: `hidden_size` is 0, expected a whole number above 0";
        check(r#"{"hidden_size": 0}"#, hidden, Err(zero));
        let word = "config.json: `hidden_size` is \"64\", expected a whole number";
        check(r#"{"hidden_size": "64"}"#, hidden, Err(word));
        let inside = |config: &Config| match config.part("linear_attn_config")? {
            Some(part) => part.count("head_dim"),
            None => Ok(0),
        };
        check("{}", inside, Ok(0));
        check(
            r#"{"linear_attn_config": {"head_dim": -1}}"#,
            inside,
            Err("config.json: `linear_attn_config.head_dim` is -1, expected a whole number"),
        );
    }

    #[test]
    fn infinity_is_read_as_transformers_5_writes_it() {
        let limits = |config: &Config| config.limits("time_step_limit", [0.0, f64::INFINITY]);
        let open = [0.0, f64::INFINITY];
        check("{}", limits, Ok(open));
        check(r#"{"time_step_limit": [0.0, {"__float__": "Infinity"}]}"#, limits, Ok(open));
        check(r#"{"time_step_limit": [0.0, Infinity], "x": NaN}"#, limits, Ok(open));
        check(r#"{"time_step_limit": [0.001, 0.1]}"#, limits, Ok([0.001, 0.1]));
        check(
            r#"{"time_step_limit": [1, 0]}"#,
            limits,
            Err("config.json: `time_step_limit` is [1,0], expected two rising numbers"),
        );
    }

    #[test]
    fn other_json_than_an_object_is_one_sentence() {
        for text in ["", "[]", "3", "{", "\"x\""] {
            let error = Config::parse("config.json", text).unwrap_err().to_string();
            assert!(error.starts_with("config.json: is no") && !error.contains('\n'), "{error}");
        }
    }
}
