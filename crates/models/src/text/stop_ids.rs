use super::tokenizer::read_json;
use crate::ModelError;
use crate::gguf::{self, is_gguf};
use serde_json::Value;
use std::path::Path;

/// The tokens that end a model's answers: `eos_token_id` of generation_config.json, or else of config.json, one or a list; those of
/// a GGUF file's metadata.
///
/// # Errors
/// [`ModelError::File`] when a file that is there is not JSON.
pub fn stop_ids(folder: &Path) -> Result<Vec<u32>, ModelError> {
    if is_gguf(folder) {
        return gguf::stop_ids(folder);
    }
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        if !path.exists() {
            continue;
        }
        let config = read_json(&path)?;
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Vec<u32> = match &config["eos_token_id"] {
            Value::Array(ids) => ids.iter().filter_map(id).collect(),
            one => id(one).into_iter().collect(),
        };
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_config_goes_before_config() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let check = |want: &[u32]| assert_eq!(stop_ids(folder.path()).unwrap(), want);
        check(&[]);
        write("config.json", r#"{"eos_token_id": 7}"#);
        check(&[7]);
        write("generation_config.json", r#"{"eos_token_id": null}"#);
        check(&[7]);
        write("generation_config.json", r#"{"eos_token_id": [3, 5]}"#);
        check(&[3, 5]);
    }
}
