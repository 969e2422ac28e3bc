//! Pooling of hidden states to one embedding per text, configured by sentence-transformers' files or vLLM's pooler
//! settings.

use crate::{ModelError, read_json};
use serde_json::Value;
use std::path::Path;

/// How the hidden states of a text's tokens are reduced to one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingMode {
    /// Their mean.
    Mean,
    /// The last token's.
    Last,
    /// The first token's.
    First,
}

/// A model's pooling configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooler {
    /// The pooling of hidden states.
    pub pooling: PoolingMode,
    /// Whether vectors have length 1.
    pub normalize: bool,
}

impl Default for Pooler {
    /// vLLM's default for generative models.
    fn default() -> Self {
        Self { pooling: PoolingMode::Last, normalize: true }
    }
}

/// sentence-transformers' pooling keys, and the modes they select.
const MODES: &[(&str, Option<PoolingMode>)] = &[
    ("pooling_mode_mean_tokens", Some(PoolingMode::Mean)),
    ("pooling_mode_lasttoken", Some(PoolingMode::Last)),
    ("pooling_mode_cls_token", Some(PoolingMode::First)),
    ("pooling_mode_max_tokens", None),
    ("pooling_mode_mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", None),
];

impl Pooler {
    /// Reads `modules.json` and the pooling config of a model's folder; the default without them.
    ///
    /// # Errors
    /// [`ModelError::File`] naming a module or a pooling that is not supported.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let list = folder.join("modules.json");
        if !list.is_file() {
            return Ok(Self::default());
        }
        let modules = read_json(&list)?;
        let hint = "embed with sentence-transformers, or name another pooling with --pooler-config";
        let wrong = |path: &Path, what: String| ModelError::file(path, what).hinted(hint);
        let mut made = Self { pooling: PoolingMode::Mean, normalize: false };
        for module in modules.as_array().into_iter().flatten() {
            let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
            match text("type").rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Normalize" => made.normalize = true,
                "Pooling" if !text("path").contains("..") => {
                    let path = folder.join(text("path")).join("config.json");
                    let found = mode(&read_json(&path)?).map_err(|what| wrong(&path, what))?;
                    made.pooling = found;
                }
                other => {
                    let what =
                        format!("has the module `{other}`, which embeddings here do not have");
                    return Err(wrong(&list, what));
                }
            }
        }
        Ok(made)
    }

    /// Applies vLLM's `--pooler-config`: a JSON object with `pooling_type` (MEAN, LAST or CLS) and `normalize`. Missing
    /// keys are unchanged.
    ///
    /// # Errors
    /// A sentence that names the key and its value.
    pub fn with_settings(self, text: &str) -> Result<Self, String> {
        let settings: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let settings = settings.as_object().ok_or("it is not a JSON object")?;
        let mut made = self;
        for (key, value) in settings {
            match key.as_str() {
                "pooling_type" | "seq_pooling_type" => {
                    let word = value.as_str().map(str::to_ascii_uppercase);
                    made.pooling = match word.as_deref() {
                        Some("MEAN") => PoolingMode::Mean,
                        Some("LAST") => PoolingMode::Last,
                        Some("CLS") => PoolingMode::First,
                        _ => return Err(format!("`{key}` is {value}, expected MEAN, LAST or CLS")),
                    };
                }
                "normalize" | "use_activation" => {
                    made.normalize = value
                        .as_bool()
                        .ok_or_else(|| format!("`{key}` is {value}, expected true or false"))?;
                }
                _ => return Err(format!("`{key}` is unknown, expected pooling_type or normalize")),
            }
        }
        Ok(made)
    }

    /// The embedding of a text, from its pooled hidden states.
    pub fn finish(self, mut values: Vec<f32>) -> Vec<f32> {
        if self.normalize {
            let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            // torch's normalize clamps the length to this minimum.
            let length = squares.sqrt().max(1e-12);
            values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        }
        values
    }
}

/// The one pooling mode that a config enables.
fn mode(config: &Value) -> Result<PoolingMode, String> {
    if let Some(word) = config.get("pooling_mode").and_then(Value::as_str) {
        return match word {
            "mean" => Ok(PoolingMode::Mean),
            "lasttoken" => Ok(PoolingMode::Last),
            "cls" => Ok(PoolingMode::First),
            _ => Err(format!("`pooling_mode` is \"{word}\", expected mean, lasttoken or cls")),
        };
    }
    let on = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let found: Vec<_> = MODES.iter().filter(|(key, _)| on(key)).collect();
    match found[..] {
        [(_, Some(pooling))] => Ok(*pooling),
        [(key, None)] => Err(format!("`{key}` is true, expected mean, lasttoken or cls")),
        [] => Err("turns no pooling on".to_owned()),
        _ => Err("turns several poolings on, expected one".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder(modules: &str, pooling: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        fs::write(folder.path().join("modules.json"), modules).unwrap();
        fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
        folder
    }

    const MODULES: &str = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}"#;
    const NORMALIZED: &str =
        r#", {"path": "2", "type": "sentence_transformers.models.Normalize"}]"#;

    #[test]
    fn sentence_transformers_files_configure_pooling() {
        let read = |modules: &str, pooling: &str| Pooler::read(folder(modules, pooling).path());
        let last = r#"{"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}"#;
        let normalized = format!("{MODULES}{NORMALIZED}");
        let made = read(&normalized, last).unwrap();
        assert_eq!(made, Pooler { pooling: PoolingMode::Last, normalize: true });
        let mean = r#"{"pooling_mode_mean_tokens": true}"#;
        let made = read(&format!("{MODULES}]"), mean).unwrap();
        assert_eq!(made, Pooler { pooling: PoolingMode::Mean, normalize: false });
        let made = read(&normalized, r#"{"pooling_mode": "cls"}"#).unwrap();
        assert_eq!(made.pooling, PoolingMode::First);
        let error = |modules: &str, pooling| read(modules, pooling).unwrap_err().to_string();
        let max = error(&normalized, r#"{"pooling_mode_max_tokens": true}"#);
        assert!(max.contains("`pooling_mode_max_tokens` is true"), "{max}");
        let two = r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": true}"#;
        assert!(error(&normalized, two).contains("several poolings"));
        let dense = r#", {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]"#;
        assert!(error(&format!("{MODULES}{dense}"), mean).contains("the module `Dense`"));
        assert_eq!(Pooler::read(tempfile::tempdir().unwrap().path()).unwrap(), Pooler::default());
    }

    #[test]
    fn vllm_settings_override_the_files() {
        let with = |text| Pooler::default().with_settings(text);
        let mean = Pooler { pooling: PoolingMode::Mean, normalize: true };
        assert_eq!(with(r#"{"pooling_type": "MEAN"}"#), Ok(mean));
        let plain = Pooler { normalize: false, ..Pooler::default() };
        assert_eq!(with(r#"{"normalize": false}"#), Ok(plain));
        assert!(with(r#"{"pooling_type": "ALL"}"#).unwrap_err().contains("expected MEAN"));
        assert!(with(r#"{"step_tag_id": 1}"#).unwrap_err().contains("`step_tag_id` is unknown"));
        assert!(with("MEAN").unwrap_err().contains("not JSON"));
    }

    #[test]
    fn normalized_vectors_have_length_1_and_none_stays_none() {
        assert_eq!(Pooler::default().finish(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(Pooler::default().finish(vec![0.0, 0.0]), [0.0, 0.0]);
    }
}
