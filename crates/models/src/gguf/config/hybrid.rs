//! Configs of families with convolutions or scans.

use super::Reader;
use crate::ModelError;

impl Reader<'_> {
    /// The kind of each layer, by whether it has a tensor.
    fn layer_types(&mut self, tensor: &str, [with, without]: [&str; 2]) -> Result<(), ModelError> {
        let layers = self.layers()?;
        let kind = |layer| if self.has(Some(layer), tensor) { with } else { without };
        let kinds: Vec<&str> = (0..layers).map(kind).collect();
        self.put("layer_types", kinds);
        Ok(())
    }

    /// Mamba-2 with the keys of Granite and Falcon-H1.
    pub(super) fn mamba_keys(&mut self) -> Result<(), ModelError> {
        let inner = self.count("ssm.inner_size")?;
        let heads = self.count("ssm.time_step_rank")?;
        self.put("mamba_d_ssm", inner);
        self.put("mamba_n_heads", heads);
        self.put("mamba_d_head", inner.checked_div(heads).unwrap_or(0));
        self.put("mamba_d_state", self.count("ssm.state_size")?);
        self.put("mamba_n_groups", self.count("ssm.group_count")?);
        self.put("mamba_d_conv", self.count("ssm.conv_kernel")?);
        self.put("mamba_conv_bias", self.has(None, "ssm_conv1d.bias"));
        self.put("mamba_proj_bias", self.has(None, "ssm_in.bias"));
        Ok(())
    }

    /// Mamba, and FalconMamba, whose file does not have its mixer's epsilon: published models have the default.
    pub(super) fn mamba(&mut self) -> Result<(), ModelError> {
        if self.header.flag(&self.key("ssm.dt_b_c_rms")) == Some(true) {
            self.put("model_type", "falcon_mamba");
            self.put("architectures", vec!["FalconMambaForCausalLM"]);
        }
        self.put("intermediate_size", self.count("ssm.inner_size")?);
        self.put("state_size", self.count("ssm.state_size")?);
        self.put("conv_kernel", self.count("ssm.conv_kernel")?);
        self.put("time_step_rank", self.count("ssm.time_step_rank")?);
        self.put("use_conv_bias", self.has(None, "ssm_conv1d.bias"));
        self.put("use_bias", self.has(None, "ssm_in.bias"));
        Ok(())
    }

    pub(super) fn jamba(&mut self, hidden: usize) -> Result<(), ModelError> {
        self.layer_types("ssm_in.weight", ["mamba", "attention"])?;
        let inner = self.count("ssm.inner_size")?;
        if hidden == 0 || !inner.is_multiple_of(hidden) {
            return Err(self.refused("ssm.inner_size", "a multiple of the hidden size"));
        }
        self.put("mamba_expand", inner / hidden);
        self.put("mamba_d_state", self.count("ssm.state_size")?);
        self.put("mamba_d_conv", self.count("ssm.conv_kernel")?);
        self.put("mamba_dt_rank", self.count("ssm.time_step_rank")?);
        self.put("mamba_conv_bias", self.has(None, "ssm_conv1d.bias"));
        self.put("mamba_proj_bias", self.has(None, "ssm_in.bias"));
        self.feed_forward()?;
        // The config has a period and an offset of layers with experts.
        let layers = self.layers()?;
        let routed: Vec<usize> =
            (0..layers).filter(|layer| self.has(Some(*layer), "ffn_gate_inp.weight")).collect();
        let (count, offset) = match routed.first() {
            Some(first) => (self.count("expert_count")?, *first),
            None => (1, 0),
        };
        let period = routed.get(1).map_or(layers.max(1), |second| second - offset);
        if !routed.is_empty() && !routed.iter().copied().eq((offset..layers).step_by(period)) {
            return Err(self.refused("expert_count", "experts in layers of one period"));
        }
        self.put("num_experts", count);
        self.put("expert_layer_period", period);
        self.put("expert_layer_offset", offset);
        Ok(())
    }

    /// Falcon-H1, whose multipliers the converter applies to the weights.
    pub(super) fn falcon(&mut self) -> Result<(), ModelError> {
        self.mamba_keys()?;
        self.put("mamba_rms_norm", self.has(None, "ssm_norm.weight"));
        // llama.cpp's order.
        self.put("mamba_norm_before_gate", false);
        self.feed_forward()
    }

    pub(super) fn lfm2(&mut self) -> Result<(), ModelError> {
        self.layer_types("shortconv.conv.weight", ["conv", "full_attention"])?;
        self.put("tie_embedding", !self.header.tensors.contains_key("output.weight"));
        self.put("conv_L_cache", self.count("shortconv.l_cache")?);
        self.put("block_auto_adjust_ff_dim", false);
        if let Some(inner) = self.rows("ffn_gate.weight").or(self.optional("feed_forward_length")) {
            self.put("intermediate_size", inner);
        }
        if self.arch == "lfm2moe" {
            self.put("num_experts", self.count("expert_count")?);
            self.put("num_experts_per_tok", self.count("expert_used_count")?);
            self.put("moe_intermediate_size", self.count("expert_feed_forward_length")?);
            self.put("num_dense_layers", self.optional("leading_dense_block_count").unwrap_or(0));
            self.put("routed_scaling_factor", self.number("expert_weights_scale").unwrap_or(1.0));
        }
        Ok(())
    }

    pub(super) fn nemotron(&mut self) -> Result<(), ModelError> {
        let letter = |layer| {
            let has = |tensor| self.has(Some(layer), tensor);
            match (has("ssm_in.weight"), has("attn_q.weight"), has("ffn_gate_inp.weight")) {
                (true, ..) => 'M',
                (_, true, _) => '*',
                (.., true) => 'E',
                _ => '-',
            }
        };
        let pattern: String = (0..self.layers()?).map(letter).collect();
        self.put("hybrid_override_pattern", pattern);
        let (inner, heads) = (self.count("ssm.inner_size")?, self.count("ssm.time_step_rank")?);
        self.put("mamba_num_heads", heads);
        self.put("mamba_head_dim", inner.checked_div(heads).unwrap_or(0));
        self.put("ssm_state_size", self.count("ssm.state_size")?);
        self.put("n_groups", self.count("ssm.group_count")?);
        self.put("conv_kernel", self.count("ssm.conv_kernel")?);
        self.put("use_conv_bias", self.has(None, "ssm_conv1d.bias"));
        self.put("use_bias", self.has(None, "ssm_in.bias"));
        if let Some(inner) = self.rows("ffn_up.weight") {
            self.put("intermediate_size", inner);
        }
        if self.arch == "nemotron_h_moe" {
            self.put("n_routed_experts", self.count("expert_count")?);
            self.put("num_experts_per_tok", self.count("expert_used_count")?);
            self.put("moe_intermediate_size", self.count("expert_feed_forward_length")?);
            let shared = self.rows("ffn_up_shexp.weight").unwrap_or(0);
            self.put("moe_shared_expert_intermediate_size", shared);
            if let Some(latent) = self.rows("ffn_latent_down.weight") {
                self.put("moe_latent_size", latent);
            }
            let normalises = self.header.flag(&self.key("expert_weights_norm")).unwrap_or(false);
            self.put("norm_topk_prob", normalises);
            self.put("n_group", self.optional("expert_group_count").unwrap_or(1));
            if let Some(groups) = self.optional("expert_group_used_count") {
                self.put("topk_group", groups);
            }
            let scale = "expert_weights_scale";
            let scale = self.number(scale).ok_or_else(|| self.refused(scale, "a number"))?;
            self.put("routed_scaling_factor", scale);
        }
        Ok(())
    }
}
