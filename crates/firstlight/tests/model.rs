//! `doctor --model`: layers, kernels and bytes from a config.json; missing kernels are named before anything runs.

mod support;

use support::{environment, expect, json, refuses};
use tempfile::tempdir;

const KIMI: &str = r#"{"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
    "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32, "vocab_size": 163840,
    "linear_attn_config": {"full_attn_layers": [4,8,12,16,20,24,27], "head_dim": 128, "num_heads": 32,
        "kda_layers": [1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26], "short_conv_kernel_size": 4},
    "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 1, "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_experts": 256,
    "num_shared_experts": 1, "tie_word_embeddings": false, "model_max_length": 1048576}"#;

#[test]
fn folder_and_config_give_equal_reports() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("kimi");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), KIMI).unwrap();
    let venv = environment(folder.path(), &[("torch", "2.9.1"), ("transformers", "4.57.1")]);
    let venv = venv.to_str().unwrap();
    let report = json(folder.path(), &["doctor", "--model", "kimi", "--venv", venv], 1);
    let by_file =
        json(folder.path(), &["doctor", "--model", "kimi/config.json", "--venv", venv], 1);
    // Free memory changes between runs; the other fields depend only on the config.
    for part in ["architecture", "layers", "kernels"] {
        assert_eq!(report["model"][part], by_file["model"][part]);
    }
    assert_eq!(
        report["model"]["memory"]["needed_bytes"],
        by_file["model"]["memory"]["needed_bytes"]
    );
    let wanted = &report["model"];
    assert_eq!(wanted["family"], "kimi-linear");
    assert_eq!(wanted["memory"]["parameters"]["value"], 49_122_681_728_u64);
    assert_eq!(wanted["memory"]["cache_bytes_per_token"], 8064);
    assert_eq!(wanted["layers"][1]["indices"], serde_json::json!([3, 7, 11, 15, 19, 23, 26]));
    assert_eq!(wanted["kernels"][0]["package"], "flash-linear-attention");
    assert_eq!(wanted["kernels"][0]["status"], "missing");
    let rules: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["rule"].as_str().unwrap())
        .collect();
    assert!(rules.contains(&"slow-hybrid-path"), "{rules:?}");
    let (shown, _) = expect(folder.path(), &["doctor", "--model", "kimi", "--venv", venv], 1);
    for words in
        ["20 layers: 0-2, 4-6", "flash-linear-attention", "49122681728", "98.25 GB = 91.50 GiB"]
    {
        let unbroken = support::unbroken(&shown);
        assert!(unbroken.contains(words), "no {words} in\n{shown}");
    }
    // Without --model the report has no model section. The environment's torch has no files.
    let plain = json(folder.path(), &["doctor", "--venv", venv], 1);
    assert!(plain.get("model").is_none());
}

#[test]
fn rejects_non_models() {
    let folder = tempdir().unwrap();
    refuses(folder.path(), &["doctor", "--model", "absent"], &["absent", "does not exist"]);
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    refuses(folder.path(), &["doctor", "--model", "empty"], &["empty", "no readable config"]);
    std::fs::write(folder.path().join("config.json"), "{\"model_type\": \"rwkv7\"}").unwrap();
    refuses(folder.path(), &["doctor", "--model", "config.json"], &["rwkv7 is no model family"]);
    expect(folder.path(), &["doctor", "--context", "8"], 2);
}
