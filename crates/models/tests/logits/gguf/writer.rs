//! Writes a model's folder as the GGUF file that llama.cpp's converter makes of it, by its formulas.

use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

// By path, since other tests include this file.
#[path = "hybrids.rs"]
mod hybrids;
#[path = "stored.rs"]
mod stored;
pub(crate) use stored::Kind;

type Tensor = (Vec<usize>, Vec<f32>);

fn folder(path: &Path) -> (Value, BTreeMap<String, Tensor>) {
    let config = std::fs::read_to_string(path.join("config.json")).unwrap();
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let values = match view.dtype() {
                Dtype::F32 => {
                    view.data().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
                }
                _ => view
                    .data()
                    .as_chunks()
                    .0
                    .iter()
                    .map(|x| bf16::from_le_bytes(*x).to_f32())
                    .collect(),
            };
            tensors.insert(name, (view.shape().to_vec(), values));
        }
    }
    (serde_json::from_str(&config).unwrap(), tensors)
}

/// `weights.reshape(heads, 2, rows / heads / 2, ..).swapaxes(1, 2).reshape(weights.shape)`
fn permuted((shape, values): Tensor, heads: usize) -> Tensor {
    let rows = shape[0];
    let width = values.len() / rows;
    let half = rows / heads / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for pair in 0..half {
            for side in 0..2 {
                let row = (head * 2 + side) * half + pair;
                out.extend_from_slice(&values[row * width..(row + 1) * width]);
            }
        }
    }
    (shape, out)
}

/// `tensor[.., from..to, :]`
fn part((shape, values): &Tensor, from: usize, to: usize) -> Tensor {
    let [.., rows, width] = shape[..] else { panic!("{shape:?}") };
    let parts =
        values.chunks(rows * width).flat_map(|matrix| matrix[from * width..to * width].to_vec());
    let mut cut = shape.clone();
    let at = cut.len() - 2;
    cut[at] = to - from;
    (cut, parts.collect())
}

/// `tensor.transpose(1, 2)`
fn turned((shape, values): Tensor) -> Tensor {
    let [matrices, rows, columns] = shape[..] else { panic!("{shape:?}") };
    let matrix = |matrix: &[f32]| -> Vec<f32> {
        (0..rows * columns).map(|at| matrix[at % rows * columns + at / rows]).collect()
    };
    (vec![matrices, columns, rows], values.chunks(rows * columns).flat_map(matrix).collect())
}

/// `tensor[:, from::2, :]`
fn every_other((shape, values): &Tensor, from: usize) -> Tensor {
    let [matrices, rows, columns] = shape[..] else { panic!("{shape:?}") };
    let rows_of = values.chunks(columns).enumerate();
    let own = rows_of.filter(|(row, _)| row % rows % 2 == from).flat_map(|(_, row)| row.to_vec());
    (vec![matrices, rows / 2, columns], own.collect())
}

/// Writes the file; `kind` selects the type of a matrix.
pub(crate) fn write(from: &Path, path: &Path, kind: impl Fn(&str) -> Kind) {
    let (config, tensors) = folder(from);
    let number = |key: &str| config[key].as_u64().unwrap_or(0);
    let float = |key: &str| config[key].as_f64().unwrap();
    let kind_of_model = config["model_type"].as_str().unwrap();
    let layers = number("num_hidden_layers") as usize;
    let attends = |layer: usize| config["layer_types"][layer] == "attention";
    let arch = match kind_of_model {
        "granitemoehybrid" if (0..layers).all(attends) => "granitemoe",
        "granitemoehybrid" => "granitehybrid",
        "mixtral" => "llama",
        "qwen3_moe" => "qwen3moe",
        "kimi_linear" => "kimi-linear",
        "gpt_oss" => "gpt-oss",
        "falcon_mamba" => "mamba",
        "falcon_h1" => "falcon-h1",
        "lfm2_moe" => "lfm2moe",
        "nemotron_h" if number("n_routed_experts") > 0 => "nemotron_h_moe",
        other => other,
    };
    let [heads, kv_heads] = ["num_attention_heads", "num_key_value_heads"].map(number);
    let interleaved = matches!(arch, "llama" | "granite" | "granitemoe" | "granitehybrid");
    let mut out: BTreeMap<String, Tensor> = BTreeMap::new();
    let mut experts: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
    for (name, tensor) in tensors {
        let whole = [
            "model.embed_tokens",
            "backbone.embeddings",
            "model.norm",
            "backbone.norm_f",
            "lm_head",
            "model.final_layernorm",
            "model.embedding_norm",
        ];
        let own = [
            "token_embd",
            "token_embd",
            "output_norm",
            "output_norm",
            "output",
            "output_norm",
            "token_embd_norm",
        ];
        if let Some(at) = whole.iter().position(|whole| name == format!("{whole}.weight")) {
            let (name, (shape, mut values)) = (format!("{}.weight", own[at]), tensor);
            if arch == "falcon-h1" {
                let multiplier = hybrids::falcon_multiplier(&config, &name, 0) as f32;
                values.iter_mut().for_each(|value| *value *= multiplier);
            }
            out.insert(name, (shape, values));
            continue;
        }
        let words: Vec<&str> = name.split('.').collect();
        let layer = words[2].to_owned();
        if hybrids::ARCHITECTURES.contains(&arch) {
            let (end, expert, tensor) =
                hybrids::tensor(&config, arch, &words[3..].join("."), tensor);
            let name = format!("blk.{layer}.{end}");
            match expert {
                Some(expert) => {
                    experts.entry(name).or_default().insert(expert, tensor);
                }
                None => assert!(out.insert(name, tensor).is_none(), "{end}"),
            }
            continue;
        }
        let mut put = |end: &str, tensor: Tensor| {
            assert!(out.insert(format!("blk.{layer}.{end}"), tensor).is_none(), "{end}");
        };
        let last = words[words.len() - 1];
        match words[3] {
            "input_layernorm" | "norm" => put("attn_norm.weight", tensor),
            "post_attention_layernorm" if arch == "gpt-oss" => {
                put("post_attention_norm.weight", tensor)
            }
            "post_attention_layernorm" => put("ffn_norm.weight", tensor),
            "self_attn" => match words[4] {
                "q_proj" if interleaved => {
                    put(&format!("attn_q.{last}"), permuted(tensor, heads as usize))
                }
                "k_proj" if interleaved => {
                    put(&format!("attn_k.{last}"), permuted(tensor, kv_heads as usize))
                }
                "q_proj" | "k_proj" | "v_proj" => {
                    put(&format!("attn_{}.{last}", &words[4][..1]), tensor)
                }
                "o_proj" => put(&format!("attn_output.{last}"), tensor),
                "q_norm" | "k_norm" => put(&format!("attn_{}.weight", words[4]), tensor),
                "q_conv1d" | "k_conv1d" | "v_conv1d" => {
                    let shape = vec![1, tensor.0[0], 1, tensor.0[2]];
                    put(&format!("ssm_conv1d_{}.weight", &words[4][..1]), (shape, tensor.1));
                }
                "f_a_proj" | "f_b_proj" | "g_a_proj" | "g_b_proj" => {
                    put(&format!("ssm_{}.weight", &words[4][..3]), tensor);
                }
                "b_proj" => put("ssm_beta.weight", tensor),
                "A_log" => put(
                    "ssm_a",
                    (vec![tensor.1.len(), 1], tensor.1.iter().map(|x| -x.exp()).collect()),
                ),
                "dt_bias" => put("ssm_dt.bias", tensor),
                "o_norm" => put("ssm_norm.weight", tensor),
                "sinks" => put("attn_sinks.weight", tensor),
                "kv_a_proj_with_mqa" => put("attn_kv_a_mqa.weight", tensor),
                "kv_a_layernorm" => put("attn_kv_a_norm.weight", tensor),
                "kv_b_proj" => {
                    let (nope, dim) =
                        (number("qk_nope_head_dim") as usize, number("v_head_dim") as usize);
                    let (heads, rank) = (heads as usize, tensor.0[1]);
                    let split = (vec![heads, nope + dim, rank], tensor.1);
                    let keys = part(&split, 0, nope).1;
                    let keys: Vec<f32> = keys
                        .chunks(nope * rank)
                        .flat_map(|head| {
                            (0..rank * nope)
                                .map(|at| head[at % nope * rank + at / nope])
                                .collect::<Vec<_>>()
                        })
                        .collect();
                    put("attn_k_b.weight", (vec![heads, rank, nope], keys));
                    put("attn_v_b.weight", part(&split, nope, nope + dim));
                }
                other => panic!("{other}"),
            },
            "mamba" | "mixer" => {
                let groups =
                    number(if arch == "mamba2" { "n_groups" } else { "mamba_n_groups" }) as usize;
                let (shape, values) = tensor;
                let count = values.len();
                match words[4] {
                    "in_proj" => put("ssm_in.weight", (shape, values)),
                    "out_proj" => put("ssm_out.weight", (shape, values)),
                    "conv1d" if last == "weight" => {
                        put("ssm_conv1d.weight", (vec![shape[0], shape[2]], values))
                    }
                    "conv1d" => put("ssm_conv1d.bias", (shape, values)),
                    "A_log" => {
                        put("ssm_a", (vec![count, 1], values.iter().map(|x| -x.exp()).collect()))
                    }
                    "D" => put("ssm_d", (vec![count, 1], values)),
                    "dt_bias" => put("ssm_dt.bias", (shape, values)),
                    "norm" => put("ssm_norm.weight", (vec![groups, count / groups], values)),
                    other => panic!("{other}"),
                }
            }
            "shared_mlp" => {
                let end = if number("num_local_experts") > 0 { "_shexp" } else { "" };
                match words[4] {
                    "input_linear" => {
                        let half = tensor.0[0] / 2;
                        put(&format!("ffn_gate{end}.weight"), part(&tensor, 0, half));
                        put(&format!("ffn_up{end}.weight"), part(&tensor, half, 2 * half));
                    }
                    _ => put(&format!("ffn_down{end}.weight"), tensor),
                }
            }
            "mlp" | "block_sparse_moe" => match words[4] {
                "experts" if arch == "gpt-oss" => match words[5] {
                    "gate_up_proj" => {
                        let turned = turned(tensor);
                        put("ffn_gate_exps.weight", every_other(&turned, 0));
                        put("ffn_up_exps.weight", every_other(&turned, 1));
                    }
                    "gate_up_proj_bias" => {
                        let [experts, width] = tensor.0[..] else { panic!() };
                        let column = (vec![experts, width, 1], tensor.1);
                        for (at, name) in
                            ["ffn_gate_exps.bias", "ffn_up_exps.bias"].iter().enumerate()
                        {
                            put(name, (vec![experts, width / 2], every_other(&column, at).1));
                        }
                    }
                    "down_proj" => put("ffn_down_exps.weight", turned(tensor)),
                    _ => put("ffn_down_exps.bias", tensor),
                },
                "router" if last == "bias" => put("ffn_gate_inp.bias", tensor),
                "experts" => {
                    let matrix = match words[6] {
                        "gate_proj" | "w1" => "gate",
                        "up_proj" | "w3" => "up",
                        _ => "down",
                    };
                    let key = format!("blk.{layer}.ffn_{matrix}_exps.weight");
                    experts.entry(key).or_default().insert(words[5].parse().unwrap(), tensor);
                }
                "gate" if last == "e_score_correction_bias" => put("exp_probs_b.bias", tensor),
                "gate" | "router" => put("ffn_gate_inp.weight", tensor),
                "shared_experts" => {
                    put(&format!("ffn_{}_shexp.weight", words[5].replace("_proj", "")), tensor)
                }
                "input_linear" => {
                    let half = tensor.0[1] / 2;
                    put("ffn_gate_exps.weight", part(&tensor, 0, half));
                    put("ffn_up_exps.weight", part(&tensor, half, 2 * half));
                }
                "output_linear" => put("ffn_down_exps.weight", tensor),
                matrix => put(&format!("ffn_{}.weight", matrix.replace("_proj", "")), tensor),
            },
            other => panic!("{other}"),
        }
    }
    for (name, all) in experts {
        let shape = [vec![all.len()], all[&0].0.clone()].concat();
        out.insert(name, (shape, all.into_values().flat_map(|(_, values)| values).collect()));
    }
    let mut pairs = Pairs { arch, bytes: Vec::new(), count: 0 };
    pairs.text("general.architecture", arch);
    // The converter adds the layer that predicts a second token.
    let predicting = arch == "nemotron_h_moe";
    if predicting {
        let norm = out["blk.0.attn_norm.weight"].clone();
        out.insert(format!("blk.{layers}.attn_norm.weight"), norm);
    }
    pairs.whole("block_count", layers as u64 + u64::from(predicting));
    pairs.whole("embedding_length", number("hidden_size"));
    pairs
        .float("attention.layer_norm_rms_epsilon", config["rms_norm_eps"].as_f64().unwrap_or(1e-5));
    let context = ["max_position_embeddings", "model_max_length"].map(number).into_iter().max();
    pairs.whole("context_length", context.filter(|context| *context > 0).unwrap_or(1 << 20));
    if arch == "mamba2" {
        pairs.whole("ssm.conv_kernel", number("conv_kernel"));
        pairs.whole("ssm.inner_size", number("num_heads") * number("head_dim"));
        pairs.whole("ssm.state_size", number("state_size"));
        pairs.whole("ssm.time_step_rank", number("num_heads"));
        pairs.whole("ssm.group_count", number("n_groups"));
    } else if arch != "mamba" {
        pairs.whole("attention.head_count", heads);
        pairs.whole("feed_forward_length", number("intermediate_size"));
    }
    if let Some(dim) = config["head_dim"].as_u64().filter(|_| arch != "mamba2") {
        pairs.whole("attention.key_length", dim);
        pairs.whole("attention.value_length", dim);
    }
    if arch == "gpt-oss" {
        pairs.whole("attention.sliding_window", number("sliding_window"));
    }
    if let Some(theta) = config["rope_theta"].as_f64() {
        pairs.float("rope.freq_base", theta);
    }
    let scaling = &config["rope_scaling"];
    match scaling["rope_type"].as_str().or(scaling["type"].as_str()) {
        Some("yarn") => {
            pairs.text(&format!("{arch}.rope.scaling.type"), "yarn");
            pairs.float("rope.scaling.factor", scaling["factor"].as_f64().unwrap());
            let context = scaling["original_max_position_embeddings"].as_u64().unwrap();
            pairs.whole("rope.scaling.original_context_length", context);
        }
        Some("llama3") => {
            let of = |key: &str| scaling[key].as_f64().unwrap();
            let dim = number("hidden_size") / heads;
            let divisor = |at: u64| {
                let frequency = float("rope_theta").powf(-(2.0 * at as f64) / dim as f64);
                let (wave, context) =
                    (std::f64::consts::TAU / frequency, of("original_max_position_embeddings"));
                let (low, high) = (of("low_freq_factor"), of("high_freq_factor"));
                if wave < context / high {
                    1.0
                } else if wave > context / low {
                    of("factor") as f32
                } else {
                    let smooth = (context / wave - low) / (high - low);
                    (1.0 / ((1.0 - smooth) / of("factor") + smooth)) as f32
                }
            };
            out.insert(
                "rope_freqs.weight".to_owned(),
                (vec![dim as usize / 2], (0..dim / 2).map(divisor).collect()),
            );
        }
        _ => {}
    }
    let kv = |attends: bool| if attends { kv_heads as u32 } else { 0 };
    match arch {
        "granite" | "granitemoe" | "granitehybrid" => {
            for (key, name) in [
                ("attention.scale", "attention_multiplier"),
                ("embedding_scale", "embedding_multiplier"),
                ("residual_scale", "residual_multiplier"),
                ("logit_scale", "logits_scaling"),
            ] {
                pairs.float(key, float(name));
            }
            pairs.flag("rope.scaling.finetuned", arch != "granitehybrid");
            if arch == "granitehybrid" {
                let inner = number("mamba_expand") * number("hidden_size");
                pairs.whole("ssm.conv_kernel", number("mamba_d_conv"));
                pairs.whole("ssm.state_size", number("mamba_d_state"));
                pairs.whole("ssm.group_count", number("mamba_n_groups"));
                pairs.whole("ssm.inner_size", inner);
                pairs.whole("ssm.time_step_rank", number("mamba_n_heads"));
                pairs
                    .wholes("attention.head_count_kv", (0..layers).map(|layer| kv(attends(layer))));
            } else {
                pairs.whole("attention.head_count_kv", kv_heads);
            }
        }
        "kimi-linear" => {
            let linear = &config["linear_attn_config"];
            let full = linear["full_attn_layers"].as_array().unwrap();
            let attends = |layer: usize| full.contains(&Value::from(layer + 1));
            pairs.wholes(
                "attention.head_count_kv",
                (0..layers).map(|layer| u32::from(attends(layer))),
            );
            pairs.whole("ssm.conv_kernel", linear["short_conv_kernel_size"].as_u64().unwrap());
            pairs.whole("kda.head_dim", linear["head_dim"].as_u64().unwrap());
            pairs.whole("attention.kv_lora_rank", number("kv_lora_rank"));
            pairs.whole("rope.dimension_count", number("qk_rope_head_dim"));
            pairs
                .whole("attention.key_length", number("kv_lora_rank") + number("qk_rope_head_dim"));
            pairs.whole(
                "attention.key_length_mla",
                number("qk_nope_head_dim") + number("qk_rope_head_dim"),
            );
            pairs.whole("attention.value_length_mla", number("v_head_dim"));
            pairs.whole("expert_feed_forward_length", number("moe_intermediate_size"));
            pairs.whole("expert_shared_count", number("num_shared_experts"));
            pairs.whole("leading_dense_block_count", number("first_k_dense_replace"));
            pairs.float("expert_weights_scale", float("routed_scaling_factor"));
            pairs.whole("expert_gating_func", 2);
        }
        "mamba2" => {}
        arch if hybrids::ARCHITECTURES.contains(&arch) => hybrids::keys(&config, &mut pairs),
        _ => pairs.whole("attention.head_count_kv", kv_heads),
    }
    let counts = ["num_local_experts", "num_experts", "n_routed_experts"].map(number);
    let count = counts.into_iter().max().unwrap_or(0);
    if count > 0 {
        pairs.whole("expert_count", count);
        let used = number("num_experts_per_tok").max(number("num_experts_per_token"));
        pairs.whole("expert_used_count", used);
    }
    std::fs::write(path, file(&pairs, &out, kind)).unwrap();
}

/// Metadata in file format.
struct Pairs<'a> {
    arch: &'a str,
    bytes: Vec<u8>,
    count: u64,
}

impl Pairs<'_> {
    fn put(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        self.bytes.extend(text(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }
    fn text(&mut self, key: &str, value: &str) {
        self.put(key, 8, &text(value));
    }
    fn whole(&mut self, key: &str, value: u64) {
        self.put(&format!("{}.{key}", self.arch), 4, &(value as u32).to_le_bytes());
    }
    fn float(&mut self, key: &str, value: f64) {
        self.put(&format!("{}.{key}", self.arch), 6, &(value as f32).to_le_bytes());
    }
    fn flag(&mut self, key: &str, value: bool) {
        self.put(&format!("{}.{key}", self.arch), 7, &[u8::from(value)]);
    }
    fn wholes(&mut self, key: &str, values: impl Iterator<Item = u32>) {
        let values: Vec<u8> = values.flat_map(u32::to_le_bytes).collect();
        let count = values.len() as u64 / 4;
        let list = [&5u32.to_le_bytes()[..], &count.to_le_bytes(), &values].concat();
        self.put(&format!("{}.{key}", self.arch), 9, &list);
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn file(
    pairs: &Pairs<'_>,
    tensors: &BTreeMap<String, Tensor>,
    kind: impl Fn(&str) -> Kind,
) -> Vec<u8> {
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(pairs.count.to_le_bytes());
    head.extend(&pairs.bytes);
    let mut data = Vec::new();
    for (name, (shape, values)) in tensors {
        // Vectors, and rows that are not whole blocks, are not quantized.
        let small = shape.len() == 1
            || name.contains("ssm_conv1d")
            || name.contains("shortconv.conv")
            || name.ends_with("ssm_a")
            || name.contains("norm")
            || name.contains("gate_inp")
            || name.ends_with("bias");
        let (_, size, _) = kind(name).sizes();
        let kind = if small || shape[shape.len() - 1] % size != 0 { Kind::F32 } else { kind(name) };
        head.extend(text(name));
        head.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|side| head.extend((*side as u64).to_le_bytes()));
        head.extend(kind.sizes().0.to_le_bytes());
        head.extend((data.len() as u64).to_le_bytes());
        data.extend(stored::stored(kind, values));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    // No padding follows the last tensor.
    head.resize(head.len().next_multiple_of(32), 0);
    head.extend(data);
    head
}
