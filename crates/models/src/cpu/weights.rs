//! Weights as the processor's kernels want them.

use super::rows::add_scaled;
use crate::checkpoint::Value;
use crate::params::{ParamId, Projection, Rows};
use crate::{Architecture, Checkpoint, ModelError, Storage};
use device::{Device, Isa};
use half::bf16;
use kernels::cpu::gemm::Mat;
use kernels::cpu::linear::Linear;

/// The weights of a model, read from its checkpoint.
pub(super) struct Weights<'a> {
    architecture: &'a Architecture,
    checkpoint: &'a Checkpoint,
    isa: Isa,
    storage: Storage,
}

impl<'a> Weights<'a> {
    pub(super) fn new(
        architecture: &'a Architecture,
        checkpoint: &'a Checkpoint,
        device: &Device,
        storage: Storage,
    ) -> Self {
        let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
        Self { architecture, checkpoint, isa, storage }
    }

    /// What key/value caches are stored in.
    pub(super) fn storage(&self) -> Storage {
        self.storage
    }

    /// A whole parameter in float32.
    pub(super) fn vector(&self, id: ParamId) -> Result<Vec<f32>, ModelError> {
        let param = self.architecture.params.get(id);
        self.checkpoint.read(&param.name, 0, param.len())
    }

    fn rows<V: Value>(&self, rows: &[Rows], width: usize) -> Result<Vec<V>, ModelError> {
        let read = |rows: &Rows| {
            let name = &self.architecture.params.get(rows.param).name;
            self.checkpoint.read(name, rows.first * width, rows.count * width)
        };
        // Most projections have one part, which need not be copied.
        if let [rows] = rows {
            return read(rows);
        }
        let mut all = Vec::with_capacity(rows.iter().map(|rows| rows.count * width).sum());
        for rows in rows {
            all.extend(read(rows)?);
        }
        for rows in rows {
            let name = &self.architecture.params.get(rows.param).name;
            self.checkpoint.release(name, rows.first * width, rows.count * width);
        }
        Ok(all)
    }

    /// A projection packed for this processor, and its bias.
    pub(super) fn projection(&self, of: &Projection) -> Result<CpuProjection, ModelError> {
        let linear = self.linear(&of.rows, of.inputs, false)?;
        Ok(CpuProjection { linear, bias: of.bias.map(|bias| self.vector(bias)).transpose()? })
    }

    /// Rows `[count, width]` as a projection from `width` to `count`, or by their transpose from `count` to `width`.
    ///
    /// bfloat16 is kept where the processor multiplies it; others multiply float32.
    pub(super) fn linear(
        &self,
        rows: &[Rows],
        width: usize,
        transposed: bool,
    ) -> Result<Linear, ModelError> {
        let count = rows.iter().map(|rows| rows.count).sum();
        if self.storage == Storage::Bf16 && self.isa == Isa::Avx512Bf16 {
            let w = self.rows::<bf16>(rows, width)?;
            let w = Mat::new(&w, count, width, width);
            return Ok(Linear::bf16(if transposed { w } else { w.t() }));
        }
        let w = self.rows::<f32>(rows, width)?;
        let w = Mat::new(&w, count, width, width);
        Ok(Linear::f32(self.isa, if transposed { w } else { w.t() }))
    }
}

/// `y = x W^T (+ bias)`.
pub(super) struct CpuProjection {
    linear: Linear,
    bias: Option<Vec<f32>>,
}

impl CpuProjection {
    /// Applies it to rows.
    pub(super) fn apply(&self, device: &Device, x: &[f32]) -> Vec<f32> {
        self.biased(self.linear.apply(device, x))
    }

    /// Applies it to rows that are made where they are multiplied.
    pub(super) fn apply_made(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Vec<f32> {
        self.biased(self.linear.apply_made(device, rows, x))
    }

    fn biased(&self, mut y: Vec<f32>) -> Vec<f32> {
        if let Some(bias) = &self.bias {
            y.chunks_exact_mut(bias.len()).for_each(|row| add_scaled(row, bias, 1.0));
        }
        y
    }
}
