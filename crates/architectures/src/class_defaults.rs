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
    fn defaults_are_of_families_that_run() {
        assert!(!DEFAULTS.is_empty());
        for kind in DEFAULTS.keys() {
            let runs = |family: &crate::ModelFamily| family.config_names.contains(&kind.as_str());
            assert!(FAMILIES.iter().any(runs), "{kind}");
        }
    }

    #[test]
    fn a_key_left_out_has_the_default_of_its_class_and_null_has_none() {
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
