use crate::params::Projection;

/// `down(silu(gate x) * up x)`.
#[derive(Debug, Clone)]
pub struct GatedMlp {
    /// The gate's rows, then up's.
    pub gate_up: Projection,
    /// Back to the residual stream.
    pub down: Projection,
}
