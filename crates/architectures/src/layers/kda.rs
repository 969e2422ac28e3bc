use crate::params::{ParamId, ParamInit, Params, Projection, fan_in};

/// A Kimi Delta Attention mixer.
#[derive(Debug, Clone)]
pub struct Kda {
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Taps of the convolutions.
    pub taps: usize,
    /// q, k, v, then the low-rank vectors of the decay gate and of the output gate, then one write strength per head:
    /// everything that reads the layer's input.
    pub project: Projection,
    /// `[heads * head_dim, 1, taps]` of q, k and v.
    pub conv_weights: [ParamId; 3],
    /// From the low-rank vector to the logits of the decay.
    pub decay: Projection,
    /// From the low-rank vector to the logits of the output gate.
    pub gate: Projection,
    /// `[1, 1, heads, 1]`.
    pub a_log: ParamId,
    /// `[heads * head_dim]`, added to the logits of the decay.
    pub dt_bias: ParamId,
    /// `[head_dim]`, the norm of a head's output.
    pub norm: ParamId,
    /// Output projection.
    pub out: Projection,
}

impl Kda {
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        hidden: usize,
        [heads, head_dim, taps]: [usize; 3],
    ) -> Self {
        let name = |name: &str| format!("{prefix}.{name}");
        let width = heads * head_dim;
        let mut project = |part: &str, outputs, inputs| {
            params.projection(name(&format!("{part}_proj.weight")), outputs, inputs)
        };
        let all = Projection::stacked([
            project("q", width, hidden),
            project("k", width, hidden),
            project("v", width, hidden),
            project("f_a", head_dim, hidden),
            project("g_a", head_dim, hidden),
            project("b", heads, hidden),
        ]);
        let (decay, gate) = (project("f_b", width, head_dim), project("g_b", width, head_dim));
        let out = project("o", hidden, width);
        let mut conv = |part: &str| {
            params.add(name(&format!("{part}_conv1d.weight")), &[width, 1, taps], fan_in(taps))
        };
        let conv_weights = [conv("q"), conv("k"), conv("v")];
        Self {
            heads,
            head_dim,
            taps,
            project: all,
            conv_weights,
            decay,
            gate,
            a_log: params.add(name("A_log"), &[1, 1, heads, 1], ParamInit::DecayRate),
            dt_bias: params.add(name("dt_bias"), &[width], ParamInit::StepBias),
            norm: params.norm(name("o_norm.weight"), head_dim),
            out,
        }
    }
}
