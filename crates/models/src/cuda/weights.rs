//! Weights on the GPU: matrices in bfloat16, vectors in float32.

use super::program::Program;
use crate::params::{ParamId, Projection, Rows};
use crate::values::Value;
use crate::{Architecture, Checkpoint, ModelError};
use device::cuda::{Stream, UPLOAD_BYTES, Uploads};
use half::bf16;
use kernels::linear::LinearCall;
use kernels::{DType, OpError, Tensor};

/// The weights of a model. They go from its checkpoint to the GPU while the engine is being made, and are there when
/// uploading ends.
pub(super) struct Weights<'a, 'w> {
    architecture: &'w Architecture,
    checkpoint: &'w Checkpoint,
    stream: &'a Stream,
    uploads: &'a Uploads<'w, ModelError>,
}

impl<'a, 'w> Weights<'a, 'w> {
    pub(super) fn new(
        architecture: &'w Architecture,
        checkpoint: &'w Checkpoint,
        stream: &'a Stream,
        uploads: &'a Uploads<'w, ModelError>,
    ) -> Self {
        Self { architecture, checkpoint, stream, uploads }
    }

    /// A tensor of zeros: states and caches begin so.
    pub(super) fn zeros(&self, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        Tensor::zeros(self.stream, shape, dtype).map_err(super::failed)
    }

    /// Values of some rows of a parameter, to the start of a tensor on the GPU.
    fn upload<V: Value>(
        &self,
        (param, first, len): (ParamId, usize, usize),
        to: &Tensor,
    ) -> Result<(), ModelError> {
        let values = self.checkpoint.values(&self.architecture.params.get(param).name)?;
        let piece = UPLOAD_BYTES / V::BYTES;
        for start in (0..len).step_by(piece) {
            let bytes = start * V::BYTES..len.min(start + piece) * V::BYTES;
            let part = to.on().map_err(super::failed)?.part(bytes.start, bytes.len())?;
            self.uploads.give(part, move |into| values.fill_bytes::<V>(first + start, into))?;
        }
        Ok(())
    }

    /// A tensor of undefined content, to be filled.
    pub(super) fn allocate(&self, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        Tensor::allocate(self.stream, shape, dtype).map_err(super::failed)
    }

    /// A whole parameter in float32, as a vector.
    pub(super) fn vector(&self, id: ParamId) -> Result<Tensor, ModelError> {
        let len = self.architecture.params.get(id).len();
        let to = self.allocate(&[len], DType::F32)?;
        self.upload::<f32>((id, 0, len), &to)?;
        Ok(to)
    }

    /// Several parameters in float32, one behind the other.
    pub(super) fn vectors(&self, ids: &[ParamId]) -> Result<Tensor, ModelError> {
        let len = |id: &ParamId| self.architecture.params.get(*id).len();
        let to = self.allocate(&[ids.iter().map(len).sum()], DType::F32)?;
        let mut first = 0;
        for id in ids {
            let part = to.rows(first, len(id)).map_err(super::failed)?;
            self.upload::<f32>((*id, 0, len(id)), &part)?;
            first += len(id);
        }
        Ok(to)
    }

    /// Float32 values that are worked out of a parameter's.
    pub(super) fn mapped(
        &self,
        id: ParamId,
        map: impl Fn(f32) -> f32,
    ) -> Result<Tensor, ModelError> {
        let param = self.architecture.params.get(id);
        let values = self.checkpoint.read::<f32>(&param.name, 0, param.len())?;
        let host = Tensor::new(&[param.len()], values.into_iter().map(map).collect());
        let to = self.allocate(&[param.len()], DType::F32)?;
        self.stream.write(to.on().map_err(super::failed)?, host.bytes())?;
        Ok(to)
    }

    /// Rows of parameters under each other `[rows, width]`, in bfloat16.
    pub(super) fn matrix(&self, rows: &[Rows], width: usize) -> Result<Tensor, ModelError> {
        let count: usize = rows.iter().map(|rows| rows.count).sum();
        let to = self.allocate(&[count, width], DType::Bf16)?;
        self.matrix_into(rows, width, &to)?;
        Ok(to)
    }

    /// The same into a tensor that is there.
    pub(super) fn matrix_into(
        &self,
        rows: &[Rows],
        width: usize,
        to: &Tensor,
    ) -> Result<(), ModelError> {
        let mut first = 0;
        for rows in rows {
            let part = to.rows(first, rows.count).map_err(super::failed)?;
            self.upload::<bf16>((rows.param, rows.first * width, rows.count * width), &part)?;
            first += rows.count;
        }
        Ok(())
    }

    /// The transposes of several groups of rows `[count, width]`, equally many each: `[groups, width, count]`.
    pub(super) fn transposed(&self, groups: &[Rows], width: usize) -> Result<Tensor, ModelError> {
        let count = groups.first().map_or(0, |rows| rows.count);
        let mut values = Vec::with_capacity(groups.len() * count * width);
        for rows in groups {
            let name = &self.architecture.params.get(rows.param).name;
            let own = self.checkpoint.read::<bf16>(name, rows.first * width, rows.count * width)?;
            for column in 0..width {
                values.extend((0..count).map(|row| own[row * width + column]));
            }
        }
        let host = Tensor::new(&[groups.len(), width, count], values);
        let to = self.allocate(host.shape(), DType::Bf16)?;
        self.stream.write(to.on().map_err(super::failed)?, host.bytes())?;
        Ok(to)
    }

    /// The embedding `[vocabulary, hidden]`.
    pub(super) fn embedding(&self) -> Result<Tensor, ModelError> {
        let Architecture { embedding, vocabulary, hidden, .. } = *self.architecture;
        self.matrix(&[Rows { param: embedding, first: 0, count: vocabulary }], hidden)
    }

    /// The head, which is the embedding where they are tied.
    pub(super) fn head(&self, embedding: &Tensor) -> Result<CudaProjection, ModelError> {
        let head = &self.architecture.head;
        let tied = head.rows.iter().any(|rows| rows.param == self.architecture.embedding);
        if tied && head.bias.is_none() {
            return Ok(CudaProjection { w: embedding.clone(), bias: None });
        }
        self.projection(head)
    }

    /// A projection.
    pub(super) fn projection(&self, of: &Projection) -> Result<CudaProjection, ModelError> {
        let bias = of.bias.map(|bias| self.vector(bias)).transpose()?;
        Ok(CudaProjection { w: self.matrix(&of.rows, of.inputs)?, bias })
    }
}

/// `y = x W^T (+ bias)`.
pub(super) struct CudaProjection {
    /// `[outputs, inputs]`.
    w: Tensor,
    bias: Option<Tensor>,
}

impl CudaProjection {
    /// A call that projects x.
    pub(super) fn of<'a>(&'a self, x: &'a Tensor) -> LinearCall<'a> {
        LinearCall { bias: self.bias.as_ref(), ..LinearCall::new(x, &self.w) }
    }

    /// Plans `x += residual_multiplier * y` of what a call projects, `[tokens, inputs]`.
    pub(super) fn plan_residual(
        &self,
        call: LinearCall<'_>,
        program: &Program<'_>,
    ) -> Result<(), OpError> {
        let (residual, scale) = (Some(&program.x), program.residual);
        program.call(&LinearCall { residual, scale, ..call }.into([&program.x]))
    }
}
