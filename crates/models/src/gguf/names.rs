//! Maps parameters to the GGUF tensors they are made of, given the checkpoint's names and llama.cpp's.

use super::blocks::Kind;
use super::file::{Header, Tensor};
use super::rows::{GgufParam, RowLayout};
use crate::ModelError;
use crate::params::Param;
use architectures::Architecture;
use std::collections::BTreeSet;

/// Tensors outside of layers.
const AROUND: &[(&str, &str)] = &[
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("backbone.embeddings.weight", "token_embd.weight"),
    ("backbone.norm_f.weight", "output_norm.weight"),
    ("model.final_layernorm.weight", "output_norm.weight"),
    ("model.embedding_norm.weight", "token_embd_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Tensors of a layer that correspond one to one, by name suffix.
const ALIKE: &[(&str, &str)] = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("norm.weight", "attn_norm.weight"),
    ("operator_norm.weight", "attn_norm.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("pre_ff_layernorm.weight", "ffn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.o_proj.bias", "attn_output.bias"),
    ("self_attn.out_proj.weight", "attn_output.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.q_layernorm.weight", "attn_q_norm.weight"),
    ("self_attn.k_layernorm.weight", "attn_k_norm.weight"),
    ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"),
    ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
    ("self_attn.q_conv1d.weight", "ssm_conv1d_q.weight"),
    ("self_attn.k_conv1d.weight", "ssm_conv1d_k.weight"),
    ("self_attn.v_conv1d.weight", "ssm_conv1d_v.weight"),
    ("self_attn.f_a_proj.weight", "ssm_f_a.weight"),
    ("self_attn.f_b_proj.weight", "ssm_f_b.weight"),
    ("self_attn.g_a_proj.weight", "ssm_g_a.weight"),
    ("self_attn.g_b_proj.weight", "ssm_g_b.weight"),
    ("self_attn.b_proj.weight", "ssm_beta.weight"),
    ("self_attn.A_log", "ssm_a"),
    ("self_attn.dt_bias", "ssm_dt.bias"),
    ("self_attn.o_norm.weight", "ssm_norm.weight"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mamba.in_proj.weight", "ssm_in.weight"),
    ("mamba.in_proj.bias", "ssm_in.bias"),
    ("mamba.conv1d.weight", "ssm_conv1d.weight"),
    ("mamba.conv1d.bias", "ssm_conv1d.bias"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.norm.weight", "ssm_norm.weight"),
    ("mamba.out_proj.weight", "ssm_out.weight"),
    ("mamba.out_proj.bias", "ssm_out.bias"),
    ("mamba.x_proj.weight", "ssm_x.weight"),
    ("mamba.dt_proj.weight", "ssm_dt.weight"),
    ("mamba.dt_proj.bias", "ssm_dt.bias"),
    ("mamba.dt_layernorm.weight", "ssm_dt_norm.weight"),
    ("mamba.b_layernorm.weight", "ssm_b_norm.weight"),
    ("mamba.c_layernorm.weight", "ssm_c_norm.weight"),
    ("conv.in_proj.weight", "shortconv.in_proj.weight"),
    ("conv.conv.weight", "shortconv.conv.weight"),
    ("conv.out_proj.weight", "shortconv.out_proj.weight"),
    // Nemotron-H's mixers, which all have one name.
    ("mamba.q_proj.weight", "attn_q.weight"),
    ("mamba.k_proj.weight", "attn_k.weight"),
    ("mamba.v_proj.weight", "attn_v.weight"),
    ("mamba.o_proj.weight", "attn_output.weight"),
    ("mamba.up_proj.weight", "ffn_up.weight"),
    ("mamba.down_proj.weight", "ffn_down.weight"),
    ("mamba.gate.weight", "ffn_gate_inp.weight"),
    ("mamba.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mamba.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mamba.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ("mamba.fc1_latent_proj.weight", "ffn_latent_down.weight"),
    ("mamba.fc2_latent_proj.weight", "ffn_latent_up.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.w1.weight", "ffn_gate.weight"),
    ("mlp.w3.weight", "ffn_up.weight"),
    ("mlp.w2.weight", "ffn_down.weight"),
    ("mlp.expert_bias", "exp_probs_b.bias"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.router.weight", "ffn_gate_inp.weight"),
    ("mlp.router.bias", "ffn_gate_inp.bias"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ("block_sparse_moe.gate.weight", "ffn_gate_inp.weight"),
    ("block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight"),
    ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("block_sparse_moe.output_linear.weight", "ffn_down_exps.weight"),
    ("block_sparse_moe.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("block_sparse_moe.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("block_sparse_moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
];

/// The three stacked matrices of experts.
const EXPERTS: &[([&str; 2], &str)] = &[
    (["gate_proj", "w1"], "ffn_gate_exps.weight"),
    (["up_proj", "w3"], "ffn_up_exps.weight"),
    (["down_proj", "w2"], "ffn_down_exps.weight"),
];

/// A tensor that is not a parameter: frequency divisors, which the config contains.
pub(super) const BESIDE: &str = "rope_freqs.weight";

/// Finds all parameters of an architecture.
///
/// # Errors
/// [`ModelError::Weights`] naming the tensors that are missing, unknown or of the wrong shape.
pub(super) fn place(
    header: &Header,
    architecture: &Architecture,
) -> Result<Vec<(String, GgufParam)>, ModelError> {
    let interleaved = is_interleaved(header).then(|| heads(header)).flatten();
    let mut used = BTreeSet::from([BESIDE.to_owned()]);
    let mut all = Vec::new();
    for param in architecture.params.iter() {
        let mut finder = Finder { header, param, interleaved, used: &mut used };
        all.push((param.name.clone(), finder.place()?));
    }
    let unknown: Vec<_> = header
        .tensors
        .keys()
        .filter(|name| !used.contains(*name) && !predicts(header, name))
        .collect();
    match unknown.first() {
        None => Ok(all),
        Some(first) => {
            let count = unknown.len();
            let what = format!("holds {count} tensors that the model does not know: `{first}`, ..");
            Err(ModelError::weights(&header.path, what))
        }
    }
}

/// Whether the converter interleaves the halves of rotated heads: for architectures for which llama.cpp rotates
/// adjacent pairs.
pub(super) fn is_interleaved(header: &Header) -> bool {
    let of = header.text("general.architecture");
    matches!(of, Some("llama" | "granite" | "granitemoe" | "granitehybrid"))
}

/// Whether a tensor is one of the last layers, which predict further tokens and do not run.
fn predicts(header: &Header, name: &str) -> bool {
    let of = header.text("general.architecture").unwrap_or_default();
    let key = |key: &str| super::config::count(header, &format!("{of}.{key}")).unwrap_or(0);
    let layer = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
    let layer = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
    let last = key("nextn_predict_layers");
    last > 0 && layer.is_some_and(|layer| layer + last >= key("block_count"))
}

/// Number of query heads and of key heads.
fn heads(header: &Header) -> Option<[usize; 2]> {
    let of = header.text("general.architecture")?;
    let key = |key: &str| super::config::count(header, &format!("{of}.attention.{key}"));
    let heads = key("head_count")?;
    Some([heads, key("head_count_kv").unwrap_or(heads)])
}

struct Finder<'a> {
    header: &'a Header,
    param: &'a Param,
    interleaved: Option<[usize; 2]>,
    used: &'a mut BTreeSet<String>,
}

impl Finder<'_> {
    fn place(&mut self) -> Result<GgufParam, ModelError> {
        let name = self.param.name.as_str();
        if let Some((_, tensor)) = AROUND.iter().find(|(param, _)| *param == name) {
            return self.whole(tensor);
        }
        let inside = name.strip_prefix("model.layers.").or(name.strip_prefix("backbone.layers."));
        let Some((layer, part)) = inside.and_then(|inside| inside.split_once('.')) else {
            return Err(self.unknown());
        };
        // Other names of mixers and of MLPs.
        let part = part.replace("mixer.", "mamba.").replace("feed_forward.", "mlp.");
        let of_layer = |tensor: &str| format!("blk.{layer}.{tensor}");
        // Only gpt-oss has another name for the norm before its experts.
        let post = of_layer("post_attention_norm.weight");
        if part == "post_attention_layernorm.weight" && self.has(&post) {
            return self.whole(&post);
        }
        // llama.cpp names this norm of Falcon-H1 without a suffix, and Jamba's with one.
        let bare = of_layer("ffn_norm");
        if part == "pre_ff_layernorm.weight" && self.has(&bare) {
            return self.whole(&bare);
        }
        if let Some((_, tensor)) = ALIKE.iter().find(|(end, _)| *end == part) {
            return self.whole(&of_layer(tensor));
        }
        match part.as_str() {
            "block_sparse_moe.input_linear.weight" => {
                let names = ["ffn_gate_exps.weight", "ffn_up_exps.weight"];
                return self.turns(names.map(of_layer));
            }
            "mlp.experts.gate_up_proj" => {
                return self.turns(["ffn_gate_exps.weight", "ffn_up_exps.weight"].map(of_layer));
            }
            "mlp.experts.gate_up_proj_bias" => {
                return self.biases(["ffn_gate_exps.bias", "ffn_up_exps.bias"].map(of_layer));
            }
            // Without routed experts, the shared ones are an ordinary MLP.
            "shared_mlp.input_linear.weight" => {
                let names = match self.has(&of_layer("ffn_gate_shexp.weight")) {
                    true => ["ffn_gate_shexp.weight", "ffn_up_shexp.weight"],
                    false => ["ffn_gate.weight", "ffn_up.weight"],
                };
                return self.turns(names.map(of_layer));
            }
            "shared_mlp.output_linear.weight" => {
                let shared = of_layer("ffn_down_shexp.weight");
                let name = if self.has(&shared) { shared } else { of_layer("ffn_down.weight") };
                return self.whole(&name);
            }
            "self_attn.kv_b_proj.weight" => {
                return self.latent(["attn_k_b.weight", "attn_v_b.weight"].map(of_layer));
            }
            _ => {}
        }
        // `mlp.experts.3.up_proj.weight`
        let expert = part.split_once(".experts.").and_then(|(_, inside)| {
            let (expert, matrix) = inside.strip_suffix(".weight")?.split_once('.')?;
            let (_, tensor) = EXPERTS.iter().find(|(names, _)| names.contains(&matrix))?;
            Some((expert.parse::<usize>().ok()?, tensor))
        });
        match expert {
            Some((expert, tensor)) => self.expert(&of_layer(tensor), expert),
            None => Err(self.unknown()),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    fn take(&mut self, name: &str) -> Result<Tensor, ModelError> {
        let Some(tensor) = self.header.tensors.get(name) else {
            let what = format!("lacks `{name}`, of which `{}` is made", self.param.name);
            return Err(ModelError::weights(&self.header.path, what));
        };
        let mut tensor = tensor.clone();
        self.used.insert(name.to_owned());
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(tensor) };
        if matches!(tensor.kind, Kind::Blocks(_)) {
            // For activations in 4 bits only.
            self.used.insert(format!("{stem}.input_scale"));
        }
        let scale = format!("{stem}.scale");
        if let (Some(scales), Kind::Blocks(_)) = (self.header.tensors.get(&scale), tensor.kind) {
            let mut values = vec![0f32; scales.len()];
            super::fill(self.header, scales, &mut values)?;
            if values.is_empty() || !tensor.len().is_multiple_of(values.len()) {
                return Err(self.unknown());
            }
            tensor.scales = values;
            self.used.insert(scale);
        }
        Ok(tensor)
    }

    /// Values per row.
    fn columns(&self) -> usize {
        match self.param.shape.as_slice() {
            [] | [_] => 1,
            [.., columns] => *columns,
        }
    }

    fn placed(&self, layout: RowLayout) -> GgufParam {
        let exponential = self.param.name.ends_with("A_log");
        GgufParam { layout, columns: self.columns(), exponential }
    }

    /// Checks that a tensor has the expected number of values and row width.
    fn hold(&self, name: &str, tensor: &Tensor, values: usize) -> Result<(), ModelError> {
        let columns = self.columns();
        if tensor.len() == values && (columns == 1 || tensor.columns() == columns) {
            return Ok(());
        }
        let what = format!(
            "tensor `{name}` has shape {:?}, of which `{}` {:?} cannot be made",
            tensor.shape, self.param.name, self.param.shape
        );
        Err(ModelError::weights(&self.header.path, what))
    }

    /// A parameter that is one whole tensor.
    fn whole(&mut self, name: &str) -> Result<GgufParam, ModelError> {
        let tensor = self.take(name)?;
        self.hold(name, &tensor, self.param.len())?;
        let rows = self.param.len() / self.columns();
        let heads = self.interleaved.and_then(|[queries, keys]| {
            let is = |part: &str| self.param.name.contains(&format!("self_attn.{part}_proj."));
            if is("q") { Some(queries) } else { is("k").then_some(keys) }
        });
        match heads {
            Some(heads) if rows.is_multiple_of(2 * heads) => {
                Ok(self.placed(RowLayout::Interleaved(tensor, rows / heads)))
            }
            Some(_) => Err(self.unknown()),
            None => Ok(self.placed(RowLayout::Rows(tensor, 0))),
        }
    }

    /// Alternating rows of two tensors.
    fn turns(&mut self, names: [String; 2]) -> Result<GgufParam, ModelError> {
        let parts = names.map(|name| self.take(&name).map(|tensor| (name, tensor)));
        let mut tensors = Vec::new();
        for part in parts {
            let (name, tensor) = part?;
            self.hold(&name, &tensor, self.param.len() / 2)?;
            tensors.push(tensor);
        }
        // Per matrix.
        let rows = self.param.shape[self.param.shape.len() - 2] / 2;
        Ok(self.placed(RowLayout::Turns(tensors, rows)))
    }

    /// The biases of all experts, alternating between two tensors.
    fn biases(&mut self, names: [String; 2]) -> Result<GgufParam, ModelError> {
        let [gates, ups] = names;
        let tensors = [self.take(&gates)?, self.take(&ups)?];
        let [experts, width] = self.param.shape[..] else { return Err(self.unknown()) };
        if tensors.iter().any(|tensor| tensor.shape != [experts, width / 2]) {
            return Err(self.unknown());
        }
        Ok(GgufParam { columns: 1, ..self.placed(RowLayout::Turns(tensors.to_vec(), width / 2)) })
    }

    /// One expert's part of a tensor.
    fn expert(&mut self, name: &str, expert: usize) -> Result<GgufParam, ModelError> {
        let tensor = self.take(name)?;
        let experts = tensor.shape.first().copied().unwrap_or(0);
        self.hold(name, &tensor, self.param.len() * experts)?;
        if expert >= experts {
            return Err(self.unknown());
        }
        let rows = self.param.len() / self.columns();
        Ok(self.placed(RowLayout::Rows(tensor, expert * rows)))
    }

    /// The up projection of latent attention: keys `[heads, latent, nope]`, values `[heads, dim, latent]`.
    fn latent(&mut self, names: [String; 2]) -> Result<GgufParam, ModelError> {
        let [keys, values] = names;
        let (of_keys, of_values) = (self.take(&keys)?, self.take(&values)?);
        let latent = self.columns();
        match (&of_keys.shape[..], &of_values.shape[..]) {
            ([heads, rank, nope], [also, dim, width])
                if heads == also
                    && [*rank, *width] == [latent; 2]
                    && self.param.len() == heads * (nope + dim) * latent =>
            {
                Ok(self.placed(RowLayout::Latent { keys: of_keys, values: of_values }))
            }
            _ => {
                self.hold(&keys, &of_keys, 0)?;
                Err(self.unknown())
            }
        }
    }

    fn unknown(&self) -> ModelError {
        let what = format!("has no tensor that is known to be `{}`", self.param.name);
        ModelError::weights(&self.header.path, what)
    }
}
