//! Weights as the processor's kernels want them.

use super::rows::add_scaled;
use crate::params::{ParamId, Projection, Rows};
use crate::values::{Value, Values};
use crate::{Architecture, Checkpoint, ModelError, Storage};
use device::{Device, Isa};
use half::bf16;
use kernels::cpu::gemm::Mat;
use kernels::cpu::linear::Linear;
use std::ops::Range;

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

    /// Rows of parameters under each other, as values `[rows, width]`.
    fn rows(&self, rows: &[Rows], width: usize) -> Result<Stacked<'a>, ModelError> {
        let mut end = 0;
        let part = |rows: &Rows| {
            let start = end;
            end += rows.count;
            let name = &self.architecture.params.get(rows.param).name;
            let values = self.checkpoint.values(name)?;
            Ok(Part { rows: start..end, first: rows.first, values })
        };
        Ok(Stacked { width, parts: rows.iter().map(part).collect::<Result<_, ModelError>>()? })
    }

    /// A projection packed for this processor, and its bias.
    pub(super) fn projection(&self, of: &Projection) -> Result<CpuProjection, ModelError> {
        let linear = self.linear(&of.rows, of.inputs, false)?;
        Ok(CpuProjection { linear, bias: of.bias.map(|bias| self.vector(bias)).transpose()? })
    }

    /// Rows `[count, width]` as a projection from `width` to `count`, or by their transpose from `count` to `width`.
    ///
    /// bfloat16 is kept where the processor multiplies it; others multiply float32. What is stored in float32 is summed in float64:
    /// KDA's norm divides by what is left of heads that cancel, and so do errors of what they were made of.
    pub(super) fn linear(
        &self,
        rows: &[Rows],
        width: usize,
        transposed: bool,
    ) -> Result<Linear, ModelError> {
        let all = self.rows(rows, width)?;
        let size @ [count, _] = [rows.iter().map(|rows| rows.count).sum(), width];
        let rounded = self.storage == Storage::Bf16 && self.isa == Isa::Avx512Bf16;
        let summed = |linear: Linear| match self.storage {
            Storage::F32 => linear.exact(),
            Storage::Bf16 => linear,
        };
        if !transposed {
            return match rounded {
                true => Linear::bf16_rows(size, |rows, into| all.fill(rows, into)),
                false => {
                    Linear::f32_rows(self.isa, size, |rows, into| all.fill(rows, into)).map(summed)
                }
            };
        }
        if rounded {
            let mut w = vec![bf16::ZERO; count * width];
            all.fill(0..count, &mut w)?;
            return Ok(Linear::bf16(Mat::new(&w, count, width, width)));
        }
        let mut w = vec![0f32; count * width];
        all.fill(0..count, &mut w)?;
        Ok(summed(Linear::f32(self.isa, Mat::new(&w, count, width, width))))
    }
}

/// Rows of parameters under each other.
struct Stacked<'a> {
    width: usize,
    parts: Vec<Part<'a>>,
}

struct Part<'a> {
    /// Where its rows stand among all.
    rows: Range<usize>,
    /// The first of them in its parameter.
    first: usize,
    values: Values<'a>,
}

impl Stacked<'_> {
    /// Reads some of the rows.
    fn fill<V: Value>(&self, rows: Range<usize>, into: &mut [V]) -> Result<(), ModelError> {
        for part in &self.parts {
            let (from, to) = (rows.start.max(part.rows.start), rows.end.min(part.rows.end));
            if from < to {
                let into =
                    &mut into[(from - rows.start) * self.width..][..(to - from) * self.width];
                part.values.fill((part.first + from - part.rows.start) * self.width, into)?;
            }
        }
        Ok(())
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
