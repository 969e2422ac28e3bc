use super::rows::swiglu;
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::GatedMlp;
use device::Device;

/// `down(silu(gate x) * up x)`.
pub(super) struct CpuMlp {
    gate_up: CpuProjection,
    down: CpuProjection,
    inner: usize,
}

impl CpuMlp {
    pub(super) fn new(of: &GatedMlp, weights: &Weights<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            gate_up: weights.projection(&of.gate_up)?,
            down: weights.projection(&of.down)?,
            inner: of.down.inputs,
        })
    }

    pub(super) fn apply(&self, device: &Device, x: &[f32]) -> Vec<f32> {
        let gate_up = self.gate_up.apply(device, x); // [tokens, gate | up]
        let row = 2 * self.inner;
        self.down.apply_made(device, gate_up.len() / row, |token, to| {
            swiglu(device, &gate_up[token * row..][..row], to);
        })
    }
}
