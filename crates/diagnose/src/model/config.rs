//! A config.json, whose numbers are anybody's: every access names its key and fails with it.

use super::{Family, ModelError};
use serde_json::{Map, Value};

/// One config, with the text part of a model that has several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config<'a> {
    outer: &'a Map<String, Value>,
    inner: Option<&'a Map<String, Value>>,
}

/// A key that is missing, or a contradiction; the caller knows the file and the family.
#[derive(Debug)]
pub(crate) enum Wrong {
    Key(String),
    Contradiction(String),
}

impl Wrong {
    pub(crate) fn of(self, path: &str, family: &Family) -> ModelError {
        match self {
            Self::Key(key) => {
                ModelError::MissingKey { path: path.to_owned(), key, family: family.name }
            }
            Self::Contradiction(what) => ModelError::Contradiction { path: path.to_owned(), what },
        }
    }
}

impl<'a> Config<'a> {
    pub(crate) fn new(value: &'a Value) -> Option<Self> {
        let outer = value.as_object()?;
        // Models with vision have their language part's shapes one level down.
        let inner = ["text_config", "llm_config", "language_config"]
            .iter()
            .find_map(|key| outer.get(*key)?.as_object());
        Some(Self { outer, inner })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        let found = self.inner.and_then(|inner| inner.get(key)).or_else(|| self.outer.get(key));
        found.filter(|value| !value.is_null())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key)?.as_str()
    }

    pub(crate) fn flag(&self, key: &str, otherwise: bool) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(otherwise)
    }

    /// A whole number under the first of several names.
    pub(crate) fn optional(&self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| self.get(key)?.as_u64())
    }

    /// A whole number that the family cannot do without.
    pub(crate) fn number(&self, keys: &[&str]) -> Result<u64, Wrong> {
        self.optional(keys)
            .ok_or_else(|| Wrong::Key(keys.first().copied().unwrap_or("").to_owned()))
    }

    /// A number of layers, which a hostile file could make a list of any length.
    pub(crate) fn layer_count(&self) -> Result<usize, Wrong> {
        let count = self.number(&["num_hidden_layers", "n_layer", "num_layers"])?;
        match usize::try_from(count) {
            Ok(count) if (1..=4096).contains(&count) => Ok(count),
            _ => Err(Wrong::Contradiction(format!("`num_hidden_layers` is {count}"))),
        }
    }

    /// The numbers of a list.
    pub(crate) fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        self.get(key)?.as_array()?.iter().map(Value::as_u64).collect()
    }

    /// The words of a list.
    pub(crate) fn words(&self, key: &str) -> Option<Vec<&'a str>> {
        self.get(key)?.as_array()?.iter().map(Value::as_str).collect()
    }

    /// An object inside, as a config of its own.
    pub(crate) fn part(&self, key: &str) -> Option<Self> {
        Some(Self { outer: self.get(key)?.as_object()?, inner: None })
    }

    /// `model_type` and `architectures`, of the whole and of its text part.
    pub(crate) fn names(&self) -> Vec<String> {
        let of = |map: &Map<String, Value>| {
            let kind = map.get("model_type").and_then(Value::as_str).map(str::to_owned);
            let classes = map.get("architectures").and_then(Value::as_array);
            let classes: Vec<String> = classes
                .into_iter()
                .flatten()
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect();
            kind.into_iter().chain(classes).collect::<Vec<_>>()
        };
        let mut names = of(self.outer);
        names.extend(self.inner.map(of).unwrap_or_default());
        if names.is_empty() {
            names.push("without model_type and architectures".into());
        }
        names
    }

    /// What to call the model.
    pub(crate) fn architecture(&self) -> String {
        let classes = self.outer.get("architectures").and_then(Value::as_array);
        let class = classes.and_then(|names| names.first()?.as_str());
        class.or_else(|| self.text("model_type")).unwrap_or("model").to_owned()
    }

    /// Bytes of one weight: by the quantisation where there is one, else by the dtype, else bfloat16's.
    pub(crate) fn weight_bits(&self) -> (u64, &'static str) {
        if let Some(quantised) = self.part("quantization_config") {
            let bits = quantised.optional(&["bits", "num_bits"]);
            let four = quantised.flag("load_in_4bit", false)
                || quantised.text("quant_method") == Some("mxfp4");
            let bits = bits.or_else(|| four.then_some(4)).unwrap_or(8);
            return (bits.clamp(1, 32), "quantization_config");
        }
        match self.text("dtype").or_else(|| self.text("torch_dtype")) {
            Some("float32") => (32, "dtype float32"),
            Some("float16") => (16, "dtype float16"),
            Some(name) if name.contains("float8") => (8, "dtype float8"),
            Some("bfloat16") => (16, "dtype bfloat16"),
            _ => (16, "no dtype, taken for bfloat16"),
        }
    }

    /// Bytes of one element of activations and of the cache.
    pub(crate) fn activation_bytes(&self) -> u64 {
        match self.text("dtype").or_else(|| self.text("torch_dtype")) {
            Some("float32") => 4,
            _ => 2,
        }
    }
}
