//! Row 20: Granite 4.0-H asked about in an environment without causal-conv1d, and in one with it.

use super::kernels;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

/// The keys of ibm-granite/granite-4.0-h-micro's config.json that tell layers and sizes, ten layers of forty.
const GRANITE: &str = r#"{
    "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "torch_dtype": "bfloat16",
    "hidden_size": 2048, "num_hidden_layers": 10, "num_attention_heads": 32, "num_key_value_heads": 8,
    "layer_types": ["mamba","mamba","mamba","mamba","mamba","attention","mamba","mamba","mamba","mamba"],
    "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false, "num_local_experts": 0,
    "intermediate_size": 8192, "shared_intermediate_size": 8192, "vocab_size": 100352,
    "tie_word_embeddings": true, "max_position_embeddings": 131072, "attention_bias": false}"#;

pub(super) const PAIR: Pair = Pair {
    name: "row_20_slow_path",
    rule: "slow-hybrid-path",
    found: Detection::Files(Severity::Warning, "causal-conv1d"),
    says: "The fast path is not available because one of `(selective_state_update, causal_conv1d_fn, \
           causal_conv1d_update)` is None",
    build: |twin| {
        let world = World::on("a10").torch("2.9.1+cu128", &[], &["sm_80", "sm_86", "sm_90"]).dist(
            "transformers",
            "4.57.1",
            &[],
        );
        let world =
            kernels(world, "mamba_ssm", "2.2.6.post3", "selective_scan_cuda", &["sm_80", "sm_90"])
                .model(GRANITE);
        match twin.pick(true, false) {
            true => world,
            false => kernels(
                world,
                "causal_conv1d",
                "1.5.3.post1",
                "causal_conv1d_cuda",
                &["sm_80", "sm_90"],
            ),
        }
    },
    ..BLANK
};
