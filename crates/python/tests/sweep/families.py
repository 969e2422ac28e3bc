"""Settings of tiny configurations that cannot be derived from the names of settings, by ``model_type``.

They replace those that ``tiny.settings`` derives; a dictionary is merged into the settings of a part of the model.
"""

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Sections of rotary positions over 8 and over 4 frequencies.
_HALF_ROTARY = {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
_WHOLE_ROTARY = {**_ROPE, "mrope_section": [2, 3, 3]}
_MUSIC = {
    "text_encoder": {"model_type": "t5", "vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    "audio_encoder": {"model_type": "encodec", "num_filters": 4, "hidden_size": 16, "codebook_size": 64, "upsampling_ratios": [2, 2]},
    "decoder": {
        "vocab_size": 200,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 96,
        "num_codebooks": 1,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
    },
}
_BERT = {"model_type": "bert", "vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
_BLT_PART = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}

FAMILIES = {
    "blt": {
        "vocab_size": 260,
        "encoder_hash_byte_group_vocab": 64,
        "encoder_hash_byte_group_size": [3, 4],
        "patcher_config": {"vocab_size": 260, **_BLT_PART},
        "encoder_config": {"vocab_size": 260, "hidden_size_global": 64, **_BLT_PART},
        "decoder_config": {"vocab_size": 260, "hidden_size_global": 64, **_BLT_PART},
        "global_config": _BLT_PART,
    },
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _WHOLE_ROTARY, "full_attention": _WHOLE_ROTARY},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}, "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_top_k": 2}},
    "gemma4_text": {
        "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "full_attention"],
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 48,
        "final_logit_softcapping": 3.0,
    },
    "deepseek_v3": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "q_lora_rank": 24},
    "deepseek_v2": {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "dia": {"delay_pattern": [0], "decoder_config": {"num_channels": 1, "cross_hidden_size": 64, "cross_num_attention_heads": 4, "cross_head_dim": 16}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "encoder-decoder": {"encoder": _BERT, "decoder": {**_BERT, "is_decoder": True, "add_cross_attention": True}},
    "esm": {"vocab_size": 200, "pad_token_id": 0, "mask_token_id": 4},
    "fastspeech2_conformer": {"vocab_size": 200},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": {"model_in_dim": 16}},
    "glm4v_moe_text": {"head_dim": 16, "rope_parameters": _HALF_ROTARY},
    "glm4v_text": {"rope_parameters": _HALF_ROTARY},
    "glm5_next_text": {"num_key_value_heads": 4, "qk_rope_head_dim": 0, "head_dim": 0, "index_topk": 16, "index_kpool": 8},
    "glm_image_text": {"rope_parameters": _HALF_ROTARY},
    "glm_ocr_text": {"rope_parameters": _HALF_ROTARY},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "jamba": {"use_mamba_kernels": False},
    "kosmos-2.5": {"text_config": {"embed_dim": 64, "layers": 2, "attention_heads": 4}, "latent_query_num": 4},
    "kyutai_speech_to_text": {"codec_config": {"model_type": "mimi"}, "codebook_vocab_size": 64, "num_codebooks": 2, "audio_pad_token_id": 3},
    "lilt": {"hidden_size": 96, "num_attention_heads": 4, "max_2d_position_embeddings": 64},
    "mobilebert": {"hidden_size": 96, "embedding_size": 32, "intra_bottleneck_size": 64, "true_hidden_size": 64},
    "musicgen": _MUSIC,
    "musicgen_melody": _MUSIC,
    "musicgen_decoder": _MUSIC["decoder"],
    "musicgen_melody_decoder": _MUSIC["decoder"],
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds": False,
        "is_decoder": True,
        "attention_head_size": 16,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 4,
        "hash_seed": 0,
    },
    "vits": {"vocab_size": 200},
    "zamba": {
        "use_mamba_kernels": False,
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba"],
        "num_key_value_heads": 4,
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
    },
    "zamba2": {
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba"],
        "n_mamba_heads": 8,
        "mamba_ngroups": 1,
        "num_key_value_heads": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
}


def merged(settings, changes):
    """Merges settings with those of a family."""
    found = dict(settings)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict) and name != "rope_parameters"
        found[name] = merged(found[name], value) if both else value
    return found
