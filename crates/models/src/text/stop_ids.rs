use super::Tokenizer;
use crate::gguf::{self, is_gguf};
use crate::{ModelError, read_json};
use serde_json::Value;
use std::path::Path;

/// Names of tokens that end an answer whatever a model's files say: llama.cpp's list.
const NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
    // File separators: a code model continues with another file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<reponame>",
    "<|file_sep|>",
];

/// Whether a token of this name ends answers whatever a model's files say.
pub(crate) fn ends_answers(token: &str) -> bool {
    NAMES.contains(&token)
}

/// The tokens that end a model's answers, from every file that names some: `eos_token_id` of generation_config.json and
/// of config.json (also of its language model), `eos_token` of tokenizer_config.json, the metadata of a GGUF file, and
/// added tokens with well-known names.
///
/// # Errors
/// [`ModelError::File`] when a file is not JSON.
pub fn stop_ids(folder: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    if is_gguf(folder) {
        ids = gguf::stop_ids(folder)?;
    } else {
        for name in ["generation_config.json", "config.json"] {
            if let Some(config) = optional(&folder.join(name))? {
                let parts = ["text_config", "llm_config", "language_config"];
                let all = [&config].into_iter().chain(parts.map(|part| &config[part]));
                ids.extend(all.flat_map(|config| listed(&config["eos_token_id"])));
            }
        }
        if let Some(config) = optional(&folder.join("tokenizer_config.json"))? {
            let token = &config["eos_token"];
            let token = token.as_str().or_else(|| token["content"].as_str());
            ids.extend(token.and_then(|token| tokenizer?.id(token)));
        }
    }
    ids.extend(tokenizer.into_iter().flat_map(named));
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

fn optional(path: &Path) -> Result<Option<Value>, ModelError> {
    if path.exists() { read_json(path).map(Some) } else { Ok(None) }
}

/// One id, or a list of them.
fn listed(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// The tokenizer's added tokens with names that end answers.
fn named(tokenizer: &Tokenizer) -> Vec<u32> {
    let has = |name: &str| tokenizer.added_id(name).is_some();
    // In these formats the token ends a message, and the answer continues with the next one.
    let harmony = has("<|return|>") && has("<|call|>");
    let solar = has("<|flush|>") && (has("<|call|>") || has("<|calls|>"));
    let turns = has("<|tool_response>");
    let ends = |name: &&&str| match **name {
        "<|end|>" => !harmony && !solar,
        "</s>" => !turns,
        _ => true,
    };
    NAMES.iter().filter(ends).filter_map(|name| tokenizer.added_id(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The stop tokens of a model with these added tokens and files.
    fn model(tokens: &[&str], files: &[(&str, Value)]) -> Vec<u32> {
        let folder = tempfile::tempdir().unwrap();
        let added = tokens.iter().enumerate().map(|(at, token)| {
            json!({
                "id": at + 1, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        });
        let tokenizer = json!({
            "version": "1.0", "added_tokens": added.collect::<Vec<_>>(),
            "model": { "type": "BPE", "vocab": { "a": 0 }, "merges": [] },
        });
        let write = |name: &str, json: &Value| {
            std::fs::write(folder.path().join(name), json.to_string()).unwrap();
        };
        write("tokenizer.json", &tokenizer);
        files.iter().for_each(|(name, json)| write(name, json));
        let tokenizer = Tokenizer::read(folder.path()).unwrap();
        stop_ids(folder.path(), Some(&tokenizer)).unwrap()
    }

    #[test]
    fn stop_ids_come_from_every_file() {
        let (generation, config, tokenizer) =
            ("generation_config.json", "config.json", "tokenizer_config.json");
        let id = |id: Value| json!({ "eos_token_id": id });
        let check = |tokens: &[&str], files: &[(&str, Value)], want: &[u32]| {
            assert_eq!(model(tokens, files), want, "{tokens:?} {files:?}");
        };
        check(&[], &[], &[]);
        check(&[], &[(config, id(json!(7)))], &[7]);
        check(&[], &[(generation, id(json!([3, 5]))), (config, id(json!(5)))], &[3, 5]);
        check(&[], &[(generation, id(Value::Null)), (config, id(json!([7, -1, "x"])))], &[7]);
        check(&[], &[(config, json!({ "text_config": { "eos_token_id": [9, 8] } }))], &[9, 8]);
        let stop = [(tokenizer, json!({ "eos_token": "<stop>" }))];
        check(&["<stop>"], &stop, &[1]);
        let stop = [(tokenizer, json!({ "eos_token": { "content": "<stop>" } }))];
        check(&["<x>", "<stop>"], &stop, &[2]);
        check(&["<stop>", "<|im_end|>", "<|endoftext|>"], &[], &[2, 3]);
        check(&["<|eot_id|>", "<|end|>"], &[(config, id(json!(2)))], &[2, 1]);
    }

    #[test]
    fn end_of_message_tokens_do_not_end_the_answer() {
        assert_eq!(model(&["<|end|>", "<|return|>", "<|call|>"], &[]), [2, 3]);
        assert_eq!(model(&["<|end|>", "<|calls|>", "<|flush|>"], &[]), [2, 3]);
        assert_eq!(model(&["</s>", "<turn|>", "<|tool_response>"], &[]), [2, 3]);
        assert_eq!(model(&["<|end|>", "</s>"], &[]), [1, 2]);
    }
}
