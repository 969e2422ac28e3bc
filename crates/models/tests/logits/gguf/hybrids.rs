//! Names, values and metadata of families with convolutions or scans, by the formulas of llama.cpp's converter.

use super::{Pairs, Tensor};
use serde_json::Value;

/// Their architectures by ggml's names.
pub(super) const ARCHITECTURES: &[&str] =
    &["falcon-h1", "jamba", "lfm2", "lfm2moe", "mamba", "nemotron_h", "nemotron_h_moe"];

/// Tensors of a layer: the checkpoint's name and ggml's.
const NAMES: &[(&str, &str)] = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("operator_norm.weight", "attn_norm.weight"),
    ("norm.weight", "attn_norm.weight"),
    ("pre_ff_layernorm.weight", "ffn_norm.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.out_proj.weight", "attn_output.weight"),
    ("self_attn.q_layernorm.weight", "attn_q_norm.weight"),
    ("self_attn.k_layernorm.weight", "attn_k_norm.weight"),
    ("mixer.q_proj.weight", "attn_q.weight"),
    ("mixer.k_proj.weight", "attn_k.weight"),
    ("mixer.v_proj.weight", "attn_v.weight"),
    ("mixer.o_proj.weight", "attn_output.weight"),
    ("mixer.up_proj.weight", "ffn_up.weight"),
    ("mixer.down_proj.weight", "ffn_down.weight"),
    ("mixer.gate.weight", "ffn_gate_inp.weight"),
    ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ("mixer.fc1_latent_proj.weight", "ffn_latent_down.weight"),
    ("mixer.fc2_latent_proj.weight", "ffn_latent_up.weight"),
    ("conv.in_proj.weight", "shortconv.in_proj.weight"),
    ("conv.conv.weight", "shortconv.conv.weight"),
    ("conv.out_proj.weight", "shortconv.out_proj.weight"),
    ("feed_forward.gate_proj.weight", "ffn_gate.weight"),
    ("feed_forward.up_proj.weight", "ffn_up.weight"),
    ("feed_forward.down_proj.weight", "ffn_down.weight"),
    ("feed_forward.w1.weight", "ffn_gate.weight"),
    ("feed_forward.w3.weight", "ffn_up.weight"),
    ("feed_forward.w2.weight", "ffn_down.weight"),
    ("feed_forward.router.weight", "ffn_gate_inp.weight"),
    ("feed_forward.gate.weight", "ffn_gate_inp.weight"),
    ("feed_forward.expert_bias", "exp_probs_b.bias"),
    ("mamba.in_proj.weight", "ssm_in.weight"),
    ("mamba.conv1d.weight", "ssm_conv1d.weight"),
    ("mamba.conv1d.bias", "ssm_conv1d.bias"),
    ("mamba.x_proj.weight", "ssm_x.weight"),
    ("mamba.dt_proj.weight", "ssm_dt.weight"),
    ("mamba.dt_proj.bias", "ssm_dt.bias"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.dt_layernorm.weight", "ssm_dt_norm.weight"),
    ("mamba.b_layernorm.weight", "ssm_b_norm.weight"),
    ("mamba.c_layernorm.weight", "ssm_c_norm.weight"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.norm.weight", "ssm_norm.weight"),
    ("mamba.out_proj.weight", "ssm_out.weight"),
];

fn number(config: &Value, key: &str) -> u64 {
    config[key].as_u64().unwrap_or(0)
}

/// A tensor of a layer as the file has it; an expert's has its number too.
pub(super) fn tensor(
    config: &Value,
    arch: &str,
    part: &str,
    tensor: Tensor,
) -> (String, Option<usize>, Tensor) {
    if let Some((_, inside)) = part.split_once(".experts.") {
        let (expert, matrix) = inside.split_once('.').unwrap();
        let matrix = match matrix.strip_suffix(".weight").unwrap() {
            "gate_proj" | "w1" => "gate",
            "up_proj" | "w3" => "up",
            _ => "down",
        };
        return (format!("ffn_{matrix}_exps.weight"), Some(expert.parse().unwrap()), tensor);
    }
    let found = NAMES.iter().find(|(name, _)| *name == part);
    let as_mamba = || part.replace("mixer.", "mamba.");
    let found = found.or_else(|| NAMES.iter().find(|(name, _)| *name == as_mamba()));
    let (_, name) = *found.unwrap_or_else(|| panic!("{part}"));
    let (shape, mut values) = tensor;
    let second = arch != "mamba" && arch != "jamba";
    let shape = match name {
        "ssm_a" | "ssm_d" if second => vec![values.len(), 1],
        "ssm_norm.weight" => {
            let groups =
                number(config, if arch == "falcon-h1" { "mamba_n_groups" } else { "n_groups" });
            vec![groups as usize, values.len() / groups as usize]
        }
        "ssm_conv1d.weight" | "shortconv.conv.weight" => vec![shape[0], shape[2]],
        _ => shape,
    };
    if name == "ssm_a" {
        values.iter_mut().for_each(|value| *value = -value.exp());
    }
    if arch == "falcon-h1" {
        let width = shape.last().copied().unwrap();
        for (row, values) in values.chunks_mut(width).enumerate() {
            let multiplier = falcon_multiplier(config, name, row);
            values.iter_mut().for_each(|value| *value = (f64::from(*value) * multiplier) as f32);
        }
    }
    // The converter drops the suffix of this one.
    let bare = arch == "falcon-h1" && name == "ffn_norm.weight";
    let name = if bare { "ffn_norm" } else { name };
    (name.to_owned(), None, (shape, values))
}

/// The product of Falcon-H1's multipliers that its converter applies to a row.
pub(super) fn falcon_multiplier(config: &Value, name: &str, row: usize) -> f64 {
    let of = |key: &str| config[key].as_f64().unwrap();
    let nth = |key: &str, at: usize| config[key][at].as_f64().unwrap();
    let [inner, groups, state] =
        ["mamba_d_ssm", "mamba_n_groups", "mamba_d_state"].map(|key| number(config, key) as usize);
    match name {
        "token_embd.weight" => of("embedding_multiplier"),
        "output.weight" => of("lm_head_multiplier"),
        "ffn_gate.weight" => nth("mlp_multipliers", 0),
        "ffn_down.weight" => nth("mlp_multipliers", 1),
        "attn_q.weight" | "attn_v.weight" => of("attention_in_multiplier"),
        "attn_k.weight" => of("attention_in_multiplier") * of("key_multiplier"),
        "attn_output.weight" => of("attention_out_multiplier"),
        "ssm_out.weight" => of("ssm_out_multiplier"),
        "ssm_in.weight" => {
            let ends =
                [inner, 2 * inner, 2 * inner + groups * state, 2 * inner + 2 * groups * state];
            let part = ends.iter().filter(|end| row >= **end).count();
            of("ssm_in_multiplier") * nth("ssm_multipliers", part)
        }
        _ => 1.0,
    }
}

/// Metadata of these families in addition to sizes and numbers of experts.
pub(super) fn keys(config: &Value, pairs: &mut Pairs<'_>) {
    let number = |key: &str| number(config, key);
    let arch = pairs.arch;
    let layers = number("num_hidden_layers") as usize;
    let kv = number("num_key_value_heads") as u32;
    let kv_of = |attends: bool| if attends { kv } else { 0 };
    let scan = |pairs: &mut Pairs<'_>, sizes: [u64; 4]| {
        let names = ["conv_kernel", "inner_size", "state_size", "time_step_rank"];
        for (name, size) in names.iter().zip(sizes) {
            pairs.whole(&format!("ssm.{name}"), size);
        }
    };
    match arch {
        "mamba" => {
            let hidden = number("hidden_size");
            let rank = config["time_step_rank"].as_u64().unwrap_or(hidden.div_ceil(16));
            scan(pairs, [number("conv_kernel"), 2 * hidden, number("state_size"), rank]);
            pairs.flag("ssm.dt_b_c_rms", config["model_type"] == "falcon_mamba");
        }
        "jamba" => {
            let inner = number("mamba_expand") * number("hidden_size");
            let rank = number("mamba_dt_rank");
            scan(pairs, [number("mamba_d_conv"), inner, number("mamba_d_state"), rank]);
            let [period, offset] = ["attn_layer_period", "attn_layer_offset"].map(number);
            let attends = |layer: usize| layer as u64 % period == offset;
            pairs.wholes("attention.head_count_kv", (0..layers).map(|layer| kv_of(attends(layer))));
        }
        "falcon-h1" => {
            let sizes = ["mamba_d_conv", "mamba_d_ssm", "mamba_d_state", "mamba_n_heads"];
            scan(pairs, sizes.map(number));
            pairs.whole("ssm.group_count", number("mamba_n_groups"));
            pairs.whole("attention.head_count_kv", kv.into());
        }
        "lfm2" | "lfm2moe" => {
            pairs.whole("shortconv.l_cache", number("conv_L_cache"));
            let attends = |layer: usize| config["layer_types"][layer] == "full_attention";
            pairs.wholes("attention.head_count_kv", (0..layers).map(|layer| kv_of(attends(layer))));
            if arch == "lfm2moe" {
                pairs.whole("leading_dense_block_count", number("num_dense_layers"));
                pairs.whole("expert_feed_forward_length", number("moe_intermediate_size"));
                pairs.whole("expert_gating_func", 2);
            }
        }
        _ => {
            let inner = number("mamba_num_heads") * number("mamba_head_dim");
            let heads = number("mamba_num_heads");
            scan(pairs, [number("conv_kernel"), inner, number("ssm_state_size"), heads]);
            pairs.whole("ssm.group_count", number("n_groups"));
            let pattern = config["hybrid_override_pattern"].as_str().unwrap().chars();
            pairs.wholes("attention.head_count_kv", pattern.map(|letter| kv_of(letter == '*')));
            if arch == "nemotron_h_moe" {
                pairs.whole("expert_feed_forward_length", number("moe_intermediate_size"));
                pairs.flag("expert_weights_norm", config["norm_topk_prob"] == true);
                pairs.float(
                    "expert_weights_scale",
                    config["routed_scaling_factor"].as_f64().unwrap(),
                );
                pairs.whole("expert_group_count", number("n_group"));
                pairs.whole("expert_group_used_count", number("topk_group"));
                pairs.whole("nextn_predict_layers", 1);
            }
        }
    }
}
