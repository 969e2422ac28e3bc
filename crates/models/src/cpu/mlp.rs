use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::GatedMlp;
use device::Device;
use kernels::cpu::linear::{GATES, Linear};

/// `down(silu(gate x) * up x)`.
pub(super) struct CpuMlp {
    /// Without a bias, which no family has here.
    gate_up: Linear,
    down: CpuProjection,
}

impl CpuMlp {
    pub(super) fn new(of: &GatedMlp, weights: &Weights<'_>) -> Result<Self, ModelError> {
        let rows = of.gate_up.gates_beside_ups(GATES);
        Ok(Self {
            gate_up: weights.linear(&rows, of.gate_up.inputs, false)?,
            down: weights.projection(&of.down)?,
        })
    }

    pub(super) fn apply(&self, device: &Device, x: &[f32]) -> Vec<f32> {
        self.down.apply(device, &self.gate_up.apply_gated(device, x))
    }
}
