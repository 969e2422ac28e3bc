//! Translates GGUF metadata to a config with transformers' keys.

mod hybrid;

use super::blocks::Kind;
use super::file::{Header, Value};
use super::names;
use crate::{Architecture, Config, ModelError};
use serde_json::{Map, Value as Json, json};

/// Supported architectures: ggml's name, `model_type` and class.
const READ: &[(&str, &str, &str)] = &[
    ("granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    ("granitemoe", "granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    ("granite", "granite", "GraniteForCausalLM"),
    ("llama", "llama", "LlamaForCausalLM"),
    ("qwen2", "qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "qwen3", "Qwen3ForCausalLM"),
    ("qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"),
    ("kimi-linear", "kimi_linear", "KimiLinearForCausalLM"),
    ("mamba2", "mamba2", "Mamba2ForCausalLM"),
    ("gpt-oss", "gpt_oss", "GptOssForCausalLM"),
    // FalconMamba too.
    ("mamba", "mamba", "MambaForCausalLM"),
    ("jamba", "jamba", "JambaForCausalLM"),
    ("falcon-h1", "falcon_h1", "FalconH1ForCausalLM"),
    ("lfm2", "lfm2", "Lfm2ForCausalLM"),
    ("lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM"),
    ("nemotron_h", "nemotron_h", "NemotronHForCausalLM"),
    ("nemotron_h_moe", "nemotron_h", "NemotronHForCausalLM"),
];

/// An integer under a key; for a list with one value per layer, the maximum.
pub(super) fn count(header: &Header, key: &str) -> Option<usize> {
    let one = |value: &Value| match value {
        Value::Whole(whole) => usize::try_from(*whole).ok(),
        _ => None,
    };
    match header.get(key)? {
        Value::List(_) => {
            header.list(key)?.iter().map(one).collect::<Option<Vec<_>>>()?.into_iter().max()
        }
        value => one(value),
    }
}

/// The config of a file, with the types of quantized parameters.
///
/// # Errors
/// [`ModelError`] naming what is missing or unsupported.
pub(super) fn read(header: &Header) -> Result<Config, ModelError> {
    let mut of = Reader::new(header)?;
    of.model()?;
    let path = header.path.display().to_string();
    let text = Json::Object(of.keys).to_string();
    let config = Config::parse(&path, &text)?.without_class_defaults();
    // Parameter names determine their types, whether or not an engine can run the model.
    let architecture = Architecture::describe(&config)?;
    let placed = names::place(header, &architecture)?;
    let types: Map<String, Json> = placed
        .iter()
        .filter_map(|(name, placed)| Some((name.clone(), json!(placed.block()?.name()))))
        .collect();
    match types.is_empty() {
        true => Ok(config),
        false => {
            Ok(config
                .with("quantization_config", json!({ "quant_method": "gguf", "types": types })))
        }
    }
}

struct Reader<'a> {
    header: &'a Header,
    arch: &'a str,
    keys: Map<String, Json>,
}

impl<'a> Reader<'a> {
    fn new(header: &'a Header) -> Result<Self, ModelError> {
        let arch = header.text("general.architecture").unwrap_or_default();
        let Some((.., kind, class)) = READ.iter().find(|(name, ..)| *name == arch) else {
            let read = READ.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
            let what = format!("is of the architecture `{arch}`; those that are read are {read}");
            let hint = "take the model's safetensors files; `firstlight doctor --model` knows more families";
            return Err(ModelError::file(&header.path, what).hinted(hint));
        };
        // Mixtral is Llama with experts.
        let [kind, class] = match count(header, &format!("{arch}.expert_count")) {
            Some(1..) if arch == "llama" => ["mixtral", "MixtralForCausalLM"],
            _ => [*kind, *class],
        };
        let keys = json!({ "model_type": kind, "architectures": [class] });
        let keys = keys.as_object().cloned().unwrap_or_default();
        Ok(Self { header, arch, keys })
    }

    fn put(&mut self, key: &str, value: impl Into<Json>) {
        self.keys.insert(key.to_owned(), value.into());
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn refused(&self, key: &str, wanted: &str) -> ModelError {
        let (key, found) = (self.key(key), self.header.get(&self.key(key)));
        let what = match found {
            None => format!("`{key}` is missing, expected {wanted}"),
            Some(Value::List(_)) => format!("`{key}` is a list, expected {wanted}"),
            Some(found) => format!("`{key}` is {found:?}, expected {wanted}"),
        };
        ModelError::file(&self.header.path, what)
    }

    fn optional(&self, key: &str) -> Option<usize> {
        count(self.header, &self.key(key))
    }

    /// Layers that run: the last ones of some files only predict further tokens.
    fn layers(&self) -> Result<usize, ModelError> {
        let predicting = self.optional("nextn_predict_layers").unwrap_or(0);
        Ok(self.count("block_count")?.saturating_sub(predicting))
    }

    fn count(&self, key: &str) -> Result<usize, ModelError> {
        self.optional(key).ok_or_else(|| self.refused(key, "a whole number"))
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.header.get(&self.key(key))? {
            Value::Number(number) => Some(*number),
            Value::Whole(whole) => Some(*whole as f64),
            _ => None,
        }
    }

    fn shape(&self, tensor: &str) -> Option<&[usize]> {
        self.header.tensors.get(tensor).map(|tensor| &*tensor.shape)
    }

    /// Whether a layer has a tensor; without a layer, whether any has it.
    fn has(&self, layer: Option<usize>, tensor: &str) -> bool {
        match layer {
            Some(layer) => self.header.tensors.contains_key(&format!("blk.{layer}.{tensor}")),
            None => self.header.tensors.keys().any(|name| {
                name.strip_prefix("blk.")
                    .and_then(|name| name.split_once('.'))
                    .map(|(_, name)| name)
                    == Some(tensor)
            }),
        }
    }

    /// Rows of a matrix in the first layer that has it.
    fn rows(&self, tensor: &str) -> Option<usize> {
        let layers = self.layers().ok()?;
        let shape = (0..layers).find_map(|layer| self.shape(&format!("blk.{layer}.{tensor}")))?;
        shape.iter().rev().nth(1).copied()
    }

    fn model(&mut self) -> Result<(), ModelError> {
        let lacks =
            |name: &str| ModelError::weights(&self.header.path, format!("lacks tensor `{name}`"));
        const TABLE: &str = "token_embd.weight";
        let Some(&[vocabulary, hidden]) = self.shape(TABLE) else {
            return Err(lacks(TABLE));
        };
        self.put("vocab_size", vocabulary);
        self.put("hidden_size", hidden);
        self.put("num_hidden_layers", self.layers()?);
        self.put("tie_word_embeddings", !self.header.tensors.contains_key("output.weight"));
        let eps = "attention.layer_norm_rms_epsilon";
        let eps = self.number(eps).ok_or_else(|| self.refused(eps, "a number"))?;
        self.put("rms_norm_eps", eps);
        let ends = super::text::stop_ids(self.header);
        self.put("eos_token_id", ends);
        let plain = self.header.tensors.get(TABLE).map(|table| table.kind);
        self.put(
            "dtype",
            match plain {
                Some(Kind::F32) => "float32",
                Some(Kind::F16) => "float16",
                _ => "bfloat16",
            },
        );
        match self.arch {
            "mamba2" => return self.mamba2(hidden),
            "mamba" => return self.mamba(),
            _ => {}
        }
        self.attention(hidden)?;
        match self.arch {
            "granite" | "granitemoe" | "granitehybrid" => self.granite()?,
            "kimi-linear" => return self.kimi(),
            "jamba" => return self.jamba(hidden),
            "falcon-h1" => return self.falcon(),
            "lfm2" | "lfm2moe" => return self.lfm2(),
            "nemotron_h" | "nemotron_h_moe" => return self.nemotron(),
            _ => {}
        }
        self.feed_forward()
    }

    fn attention(&mut self, hidden: usize) -> Result<(), ModelError> {
        let heads = self.count("attention.head_count")?;
        self.put("num_attention_heads", heads);
        self.put("num_key_value_heads", self.optional("attention.head_count_kv").unwrap_or(heads));
        self.put("max_position_embeddings", self.count("context_length")?);
        let head_dim = self.optional("attention.key_length").unwrap_or(hidden / heads.max(1));
        if self.arch == "kimi-linear" {
            return Ok(());
        }
        if self.optional("attention.value_length").is_some_and(|dim| dim != head_dim) {
            return Err(self.refused("attention.value_length", "as many channels as keys have"));
        }
        self.put("head_dim", head_dim);
        self.put(
            "attention_bias",
            self.has(None, "attn_q.bias") && self.has(None, "attn_output.bias"),
        );
        let rotated = self.optional("rope.dimension_count").unwrap_or(head_dim);
        if rotated != head_dim {
            if names::is_interleaved(self.header) {
                return Err(self.refused("rope.dimension_count", "all channels of a head"));
            }
            self.put("partial_rotary_factor", rotated as f64 / head_dim as f64);
        }
        self.put("rope_theta", self.number("rope.freq_base").unwrap_or(10_000.0));
        if let Some(scaling) = self.scaling(rotated)? {
            self.put("rope_scaling", scaling);
        }
        let window = self.optional("attention.sliding_window").filter(|window| *window > 0);
        if let (Some(window), "gpt-oss") = (window, self.arch) {
            self.put("sliding_window", window);
        } else if window.is_some() {
            return Err(self.refused("attention.sliding_window", "no window"));
        }
        Ok(())
    }

    /// The RoPE scaling; divisors of each frequency take precedence over the metadata.
    fn scaling(&self, rotated: usize) -> Result<Option<Json>, ModelError> {
        const DIVISORS: &str = names::BESIDE;
        if let Some(tensor) = self.header.tensors.get(DIVISORS) {
            let mut divisors = vec![0f32; tensor.len()];
            super::fill(self.header, tensor, &mut divisors)?;
            if divisors.len() != rotated / 2 {
                let what = format!("tensor `{DIVISORS}` has {} values", divisors.len());
                return Err(ModelError::weights(&self.header.path, what));
            }
            return Ok(Some(json!({ "rope_type": "divisors", "divisors": divisors })));
        }
        let factor = self.number("rope.scaling.factor").unwrap_or(1.0);
        match self.header.text(&self.key("rope.scaling.type")) {
            None | Some("none") => Ok(None),
            Some("linear") => Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
            Some("yarn") => {
                let context = "rope.scaling.original_context_length";
                let mut keys = json!({
                    "rope_type": "yarn", "factor": factor,
                    "original_max_position_embeddings": self.count(context)?,
                });
                if self.arch == "gpt-oss" {
                    // As in its published config; the metadata have no key for it.
                    keys["truncate"] = json!(false);
                }
                for (key, name) in [
                    ("yarn_attn_factor", "attention_factor"),
                    ("yarn_beta_fast", "beta_fast"),
                    ("yarn_beta_slow", "beta_slow"),
                ] {
                    if let Some(number) = self.number(&format!("rope.scaling.{key}")) {
                        keys[name] = json!(number);
                    }
                }
                Ok(Some(keys))
            }
            Some(_) => Err(self.refused("rope.scaling.type", "none, linear or yarn")),
        }
    }

    fn feed_forward(&mut self) -> Result<(), ModelError> {
        let experts = self.optional("expert_count").unwrap_or(0);
        let inner = match self.arch {
            "granitehybrid" | "granitemoe" => None,
            _ => self.rows("ffn_gate.weight"),
        };
        let of_experts = self.rows("ffn_gate_exps.weight");
        if let Some(inner) = inner.or(of_experts).or(self.optional("feed_forward_length")) {
            self.put("intermediate_size", inner);
        }
        if experts == 0 {
            return Ok(());
        }
        let key = if self.arch == "qwen3moe" { "num_experts" } else { "num_local_experts" };
        self.put(key, experts);
        self.put("num_experts_per_tok", self.count("expert_used_count")?);
        if let (Some(inner), "qwen3moe") = (of_experts, self.arch) {
            self.put("moe_intermediate_size", inner);
            // llama.cpp's behaviour for this architecture.
            self.put("norm_topk_prob", true);
            let layers = self.layers()?;
            let dense = (0..layers).filter(|layer| !self.has(Some(*layer), "ffn_gate_inp.weight"));
            let dense: Vec<usize> = dense.collect();
            self.put("mlp_only_layers", dense);
        }
        Ok(())
    }

    fn granite(&mut self) -> Result<(), ModelError> {
        let head_dim = self.keys["head_dim"].as_f64().unwrap_or(1.0);
        let scale = self.number("attention.scale").filter(|scale| *scale != 0.0);
        self.put("attention_multiplier", scale.unwrap_or(head_dim.powf(-0.5)));
        for (key, name) in [
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ] {
            self.put(name, self.number(key).unwrap_or(1.0));
        }
        // llama.cpp interprets this key as a switch for RoPE.
        let rotates = self.header.flag(&self.key("rope.scaling.finetuned")).unwrap_or(true);
        if self.arch == "granite" {
            return match rotates {
                true => Ok(()),
                false => Err(self.refused("rope.scaling.finetuned", "true")),
            };
        }
        self.put("position_embedding_type", if rotates { "rope" } else { "nope" });
        let shared = self.rows("ffn_gate_shexp.weight").or(self.rows("ffn_gate.weight"));
        if self.arch == "granitemoe" && shared.is_none() {
            // Granite 3.
            self.put("model_type", "granitemoe");
            self.put("architectures", vec!["GraniteMoeForCausalLM"]);
            return match rotates {
                true => Ok(()),
                false => Err(self.refused("rope.scaling.finetuned", "true")),
            };
        }
        let Some(shared) = shared else {
            return Err(self.refused("expert_shared_feed_forward_length", "a shared expert"));
        };
        self.put("shared_intermediate_size", shared);
        let layers = self.layers()?;
        let kinds = (0..layers).map(|layer| match self.has(Some(layer), "ssm_in.weight") {
            true => "mamba",
            false => "attention",
        });
        let kinds: Vec<&str> = kinds.collect();
        self.put("layer_types", kinds.clone());
        if kinds.contains(&"mamba") {
            self.mamba_keys()?;
        }
        Ok(())
    }

    fn mamba2(&mut self, hidden: usize) -> Result<(), ModelError> {
        let (inner, heads) = (self.count("ssm.inner_size")?, self.count("ssm.time_step_rank")?);
        if hidden == 0 || !inner.is_multiple_of(hidden) || heads == 0 {
            return Err(self.refused("ssm.inner_size", "a multiple of the hidden size"));
        }
        self.put("expand", inner / hidden);
        self.put("num_heads", heads);
        self.put("head_dim", inner / heads);
        self.put("n_groups", self.count("ssm.group_count")?);
        self.put("state_size", self.count("ssm.state_size")?);
        self.put("conv_kernel", self.count("ssm.conv_kernel")?);
        self.put("use_conv_bias", self.has(None, "ssm_conv1d.bias"));
        self.put("use_bias", self.has(None, "ssm_in.bias"));
        Ok(())
    }

    fn kimi(&mut self) -> Result<(), ModelError> {
        let layers = self.layers()?;
        let of = |latent: bool| -> Vec<usize> {
            let is = |layer: &usize| self.has(Some(layer - 1), "attn_kv_a_mqa.weight") == latent;
            (1..=layers).filter(is).collect()
        };
        let linear = json!({
            "full_attn_layers": of(true), "kda_layers": of(false),
            "num_heads": self.count("attention.head_count")?, "head_dim": self.count("kda.head_dim")?,
            "short_conv_kernel_size": self.count("ssm.conv_kernel")?,
        });
        self.put("linear_attn_config", linear);
        let heads = self.count("attention.head_count")?;
        // Its latent vector is the file's only key head.
        self.put("num_key_value_heads", heads);
        let rotated = self.count("rope.dimension_count")?;
        let key = self.count("attention.key_length_mla")?;
        self.put("kv_lora_rank", self.count("attention.kv_lora_rank")?);
        self.put("qk_rope_head_dim", rotated);
        self.put("qk_nope_head_dim", key.saturating_sub(rotated));
        self.put("v_head_dim", self.count("attention.value_length_mla")?);
        self.put("mla_use_nope", true);
        if let Some(inner) = self.rows("ffn_gate.weight").or(self.optional("feed_forward_length")) {
            self.put("intermediate_size", inner);
        }
        self.put("num_experts", self.count("expert_count")?);
        self.put("num_experts_per_token", self.count("expert_used_count")?);
        self.put("moe_intermediate_size", self.count("expert_feed_forward_length")?);
        self.put("first_k_dense_replace", self.optional("leading_dense_block_count").unwrap_or(0));
        self.put("num_shared_experts", self.optional("expert_shared_count").unwrap_or(0));
        self.put("num_expert_group", self.optional("expert_group_count").unwrap_or(1));
        if let Some(groups) = self.optional("expert_group_used_count") {
            // The converter omits the number of groups of which several are chosen.
            if groups > 1 && self.optional("expert_group_count").is_none() {
                return Err(self.refused("expert_group_count", "a whole number"));
            }
            self.put("topk_group", groups);
        }
        let scale = "expert_weights_scale";
        let scale = self.number(scale).ok_or_else(|| self.refused(scale, "a number"))?;
        self.put("routed_scaling_factor", scale);
        match self.optional("expert_gating_func") {
            None | Some(2) => Ok(()),
            Some(_) => Err(self.refused("expert_gating_func", "2, a sigmoid")),
        }
    }
}
