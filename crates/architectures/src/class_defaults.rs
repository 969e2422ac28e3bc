//! Values that transformers' config classes use for keys missing from config.json, where they differ between families.
//!
//! `cargo xtask sweep models --fields` removes every key of every class and compares the logits.

use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static DEFAULTS: LazyLock<BTreeMap<String, BTreeMap<String, Value>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("class_defaults.json")).unwrap_or_default());

/// The default of a key for a `model_type`.
pub(crate) fn class_default(model_type: &str, key: &str) -> Option<&'static Value> {
    DEFAULTS.get(model_type)?.get(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, FAMILIES};

    #[test]
    fn every_default_belongs_to_a_supported_model_type() {
        assert!(!DEFAULTS.is_empty());
        for kind in DEFAULTS.keys() {
            let names = |family: &crate::ModelFamily| family.config_names.contains(&kind.as_str());
            assert!(FAMILIES.iter().any(names), "{kind}");
        }
    }

    #[test]
    fn missing_key_has_the_class_default_and_null_has_none() {
        let window = |text: &str| {
            let config = Config::parse("config.json", text).unwrap();
            config.count_or("sliding_window", 0).unwrap()
        };
        assert_eq!(window(r#"{"model_type": "mistral"}"#), 4096);
        assert_eq!(window(r#"{"model_type": "mistral", "sliding_window": null}"#), 0);
        assert_eq!(window(r#"{"model_type": "mistral", "sliding_window": 8}"#), 8);
        assert_eq!(window(r#"{"model_type": "llama"}"#), 0);
        let inner = r#"{"text_config": {"model_type": "qwen3_5_text"}}"#;
        let config = Config::parse("config.json", inner).unwrap();
        assert_eq!(config.count("head_dim"), Ok(256));
    }
}
