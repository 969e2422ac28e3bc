use crate::params::{ParamId, Params, Projection};
use std::ops::Range;

/// `down(silu(gate x) * up x)`, also with GELU, or `down(max(0, up x)^2)` without a gate.
#[derive(Debug, Clone)]
pub struct GatedMlp {
    /// The gate's rows, then up's.
    pub gate_up: Projection,
    /// Output projection.
    pub down: Projection,
    /// Whether there is a gate.
    pub gated: bool,
    /// Whether the gate's activation is GELU in its tanh form instead of SiLU.
    pub gelu: bool,
    /// A vector whose product with each token's x gates the whole output, `sigmoid(w . x)`.
    pub token_gate: Option<ParamId>,
    /// Multipliers of the gate before its activation, and of the output.
    pub multipliers: [f64; 2],
}

impl GatedMlp {
    /// The up projection to some of its channels: gates, if any, then ups.
    pub fn ups(&self, channels: Range<usize>) -> Projection {
        let of = |first: usize| (first + channels.start, channels.len());
        let ups = self.gated.then(|| of(self.down.inputs));
        self.gate_up.pieces(std::iter::once(of(0)).chain(ups))
    }

    /// Declares gate, up and down under three names.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        [gate, up, down]: [&str; 3],
        [hidden, inner]: [usize; 2],
    ) -> Self {
        let mut project = |name: &str, outputs, inputs| {
            params.projection(format!("{prefix}.{name}.weight"), outputs, inputs)
        };
        Self {
            gate_up: Projection::stacked([
                project(gate, inner, hidden),
                project(up, inner, hidden),
            ]),
            down: project(down, hidden, inner),
            gated: true,
            gelu: false,
            token_gate: None,
            multipliers: [1.0; 2],
        }
    }

    /// [`Self::declare`] with Llama's names, which most families use.
    pub(crate) fn llama(params: &mut Params, prefix: &str, widths: [usize; 2]) -> Self {
        Self::declare(params, prefix, ["gate_proj", "up_proj", "down_proj"], widths)
    }

    /// Qwen's shared expert under `prefix`, with a token gate.
    pub(crate) fn with_token_gate(params: &mut Params, prefix: &str, widths: [usize; 2]) -> Self {
        let gate = params.projection(format!("{prefix}.shared_expert_gate.weight"), 1, widths[0]);
        let token_gate = Some(gate.rows[0].param);
        Self { token_gate, ..Self::llama(params, &format!("{prefix}.shared_expert"), widths) }
    }

    /// Declares gate and up as one parameter, or up alone, and down.
    pub(crate) fn with_fused_gate(
        params: &mut Params,
        prefix: &str,
        [first, down]: [&str; 2],
        [hidden, inner]: [usize; 2],
        gated: bool,
    ) -> Self {
        let outputs = if gated { 2 * inner } else { inner };
        Self {
            gate_up: params.projection(format!("{prefix}.{first}.weight"), outputs, hidden),
            down: params.projection(format!("{prefix}.{down}.weight"), hidden, inner),
            gated,
            gelu: false,
            token_gate: None,
            multipliers: [1.0; 2],
        }
    }
}
