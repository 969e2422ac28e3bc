//! Configs of published models, reduced to the keys that describe layers and sizes.

pub(super) const GRANITE_MICRO: &str = r#"{
    "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "torch_dtype": "bfloat16",
    "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
    "layer_types": ["mamba","mamba","mamba","mamba","mamba","attention","mamba","mamba","mamba","mamba",
        "mamba","mamba","mamba","mamba","mamba","attention","mamba","mamba","mamba","mamba",
        "mamba","mamba","mamba","mamba","mamba","attention","mamba","mamba","mamba","mamba",
        "mamba","mamba","mamba","mamba","mamba","attention","mamba","mamba","mamba","mamba"],
    "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false, "num_local_experts": 0,
    "intermediate_size": 8192, "shared_intermediate_size": 8192, "vocab_size": 100352,
    "tie_word_embeddings": true, "max_position_embeddings": 131072, "attention_bias": false}"#;

pub(super) const KIMI_LINEAR: &str = r#"{
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
    "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
    "linear_attn_config": {"full_attn_layers": [4,8,12,16,20,24,27], "head_dim": 128, "num_heads": 32,
        "kda_layers": [1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26], "short_conv_kernel_size": 4},
    "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 1, "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_experts": 256,
    "num_shared_experts": 1, "vocab_size": 163840, "tie_word_embeddings": false, "model_max_length": 1048576}"#;

pub(super) const LLAMA_8B: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 131072}"#;

pub(super) const MIXTRAL: &str = r#"{
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "vocab_size": 32000, "tie_word_embeddings": false}"#;

pub(super) const MAMBA_28B: &str = r#"{
    "architectures": ["MambaForCausalLM"], "model_type": "mamba", "torch_dtype": "float32",
    "hidden_size": 2560, "intermediate_size": 5120, "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4,
    "time_step_rank": 160, "use_bias": false, "use_conv_bias": true, "vocab_size": 50280}"#;

pub(super) const MAMBA2_27B: &str = r#"{
    "d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {"layer": "Mamba2"},
    "pad_vocab_size_multiple": 16, "tie_embeddings": true, "tie_word_embeddings": true}"#;

pub(super) const JAMBA: &str = r#"{
    "architectures": ["JambaForCausalLM"], "model_type": "jamba", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
    "expert_layer_offset": 1, "num_experts": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_dt_rank": 256, "vocab_size": 65536, "tie_word_embeddings": false}"#;

pub(super) const BAMBA_9B: &str = r#"{
    "architectures": ["BambaForCausalLM"], "model_type": "bamba", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": "auto",
    "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "vocab_size": 128256,
    "tie_word_embeddings": false}"#;

pub(super) const FALCON_H1_05B: &str = r#"{
    "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "torch_dtype": "bfloat16",
    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "vocab_size": 32784,
    "tie_word_embeddings": false}"#;

pub(super) const NEMOTRON_H_8B: &str = r#"{
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 52, "num_attention_heads": 32,
    "attention_head_dim": 128, "num_key_value_heads": 8, "mamba_num_heads": 128, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "vocab_size": 131072, "tie_word_embeddings": false,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"}"#;

pub(super) const GPT_OSS_20B: &str = r#"{
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999, "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088}"#;

pub(super) const QWEN3_NEXT: &str = r#"{
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "torch_dtype": "bfloat16",
    "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "num_experts": 512, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "mlp_only_layers": [], "vocab_size": 151936,
    "tie_word_embeddings": false, "max_position_embeddings": 262144}"#;
