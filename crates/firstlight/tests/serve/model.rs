//! Small models with a byte tokenizer.

use super::support::expect;
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// Writes `[role]content` lines, and raises an error for an unknown role.
const TEMPLATE: &str = "{%- for message in messages -%}\n\
    {%- if message.role not in ['system', 'user', 'assistant'] -%}{{ raise_exception('no role ' + message.role) }}{%- endif -%}\n\
    [{{ message.role }}]{{ message.content }}\n{%- endfor -%}\n[assistant]";

/// A random model in the folder `m`, with a chat template.
pub(crate) fn model(name: &str) -> TempDir {
    let folder = tempdir().unwrap();
    expect(folder.path(), &["synth", name, "m", "--seed", "3"], 0);
    std::fs::write(folder.path().join("m/chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

/// A model with an end token.
pub(crate) fn ending(name: &str) -> TempDir {
    let folder = model(name);
    let path = folder.path().join("m/generation_config.json");
    std::fs::write(path, r#"{"eos_token_id": 511}"#).unwrap();
    folder
}

/// Makes a token's embedding infinite, so that the model's logits after it are NaN.
pub(crate) fn overflow_on(folder: &Path, token: usize) {
    let path = folder.join("m/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let table = &json["model.embed_tokens.weight"];
    let number = |value: &serde_json::Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    assert_eq!(table["dtype"], "BF16");
    let at =
        8 + header + number(&table["data_offsets"][0]) + token * number(&table["shape"][1]) * 2;
    // Infinity in bfloat16.
    bytes[at..at + 2].copy_from_slice(&0x7f80u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
}
