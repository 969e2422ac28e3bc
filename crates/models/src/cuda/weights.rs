//! Weights on the GPU: matrices in bfloat16, vectors in float32.

use super::call::OpCall;
use super::program::Program;
use super::tensor::{GpuTensor, device_error};
use crate::checkpoint::Value;
use crate::params::{ParamId, Projection, Rows};
use crate::{Architecture, Checkpoint, ModelError};
use device::cuda::Stream;
use half::bf16;
use kernels::{DType, Element, OpError, Tensor};

/// The weights of a model, read from its checkpoint.
pub(super) struct Weights<'a> {
    architecture: &'a Architecture,
    checkpoint: &'a Checkpoint,
    stream: &'a Stream,
}

impl<'a> Weights<'a> {
    pub(super) fn new(
        architecture: &'a Architecture,
        checkpoint: &'a Checkpoint,
        stream: &'a Stream,
    ) -> Self {
        Self { architecture, checkpoint, stream }
    }

    /// A tensor of zeros: states and caches begin so.
    pub(super) fn zeros(&self, shape: &[usize], dtype: DType) -> Result<GpuTensor, ModelError> {
        GpuTensor::zeros(self.stream, shape, dtype).map_err(super::failed)
    }

    /// Values of some rows of a parameter, to the start of a tensor on the GPU.
    fn upload<V: Value + Element>(
        &self,
        (param, first, len): (ParamId, usize, usize),
        to: &GpuTensor,
    ) -> Result<(), ModelError> {
        // Pieces: the host need not hold a whole matrix twice.
        const PIECE: usize = 64 << 20;
        let name = &self.architecture.params.get(param).name;
        for start in (0..len).step_by(PIECE) {
            let count = PIECE.min(len - start);
            let values =
                Tensor::new(&[count], self.checkpoint.read::<V>(name, first + start, count)?);
            let width = V::DTYPE.bytes();
            let written = to
                .buffer
                .part(start * width, count * width)
                .and_then(|part| self.stream.write(&part, values.bytes()));
            written.map_err(|error| super::failed(device_error(error)))?;
        }
        Ok(())
    }

    /// A tensor of undefined content, to be filled.
    pub(super) fn allocate(&self, shape: &[usize], dtype: DType) -> Result<GpuTensor, ModelError> {
        GpuTensor::allocate(self.stream, shape, dtype).map_err(super::failed)
    }

    /// A whole parameter in float32, as a vector.
    pub(super) fn vector(&self, id: ParamId) -> Result<GpuTensor, ModelError> {
        let len = self.architecture.params.get(id).len();
        let to = self.allocate(&[len], DType::F32)?;
        self.upload::<f32>((id, 0, len), &to)?;
        Ok(to)
    }

    /// Several parameters in float32, one behind the other.
    pub(super) fn vectors(&self, ids: &[ParamId]) -> Result<GpuTensor, ModelError> {
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
    ) -> Result<GpuTensor, ModelError> {
        let param = self.architecture.params.get(id);
        let values = self.checkpoint.read::<f32>(&param.name, 0, param.len())?;
        let host = Tensor::new(&[param.len()], values.into_iter().map(map).collect());
        let to = self.allocate(&[param.len()], DType::F32)?;
        let written = self.stream.write(&to.buffer, host.bytes());
        written.map_err(|error| super::failed(device_error(error)))?;
        Ok(to)
    }

    /// Rows of parameters under each other `[rows, width]`, in bfloat16.
    pub(super) fn matrix(&self, rows: &[Rows], width: usize) -> Result<GpuTensor, ModelError> {
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
        to: &GpuTensor,
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
    pub(super) fn transposed(
        &self,
        groups: &[Rows],
        width: usize,
    ) -> Result<GpuTensor, ModelError> {
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
        let written = self.stream.write(&to.buffer, host.bytes());
        written.map_err(|error| super::failed(device_error(error)))?;
        Ok(to)
    }

    /// The embedding `[vocabulary, hidden]`.
    pub(super) fn embedding(&self) -> Result<GpuTensor, ModelError> {
        let Architecture { embedding, vocabulary, hidden, .. } = *self.architecture;
        self.matrix(&[Rows { param: embedding, first: 0, count: vocabulary }], hidden)
    }

    /// The head, which is the embedding where they are tied.
    pub(super) fn head(&self, embedding: &GpuTensor) -> Result<CudaProjection, ModelError> {
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
    w: GpuTensor,
    bias: Option<GpuTensor>,
}

impl CudaProjection {
    /// A call of `linear` that has all but the weights and where its outputs go, with these.
    pub(super) fn call(&self, call: OpCall, outputs: &[(&'static str, &GpuTensor)]) -> OpCall {
        let call = call.input("w", &self.w).maybe("bias", self.bias.as_ref());
        outputs.iter().fold(call, |call, (name, tensor)| call.output(name, tensor))
    }

    /// Plans it.
    pub(super) fn plan(
        &self,
        call: OpCall,
        program: &mut Program<'_>,
        outputs: &[(&'static str, &GpuTensor)],
    ) -> Result<(), OpError> {
        self.call(call, outputs).plan(program)
    }

    /// Plans `x += residual_multiplier * y` of what was mixed, `[tokens, inputs]`.
    pub(super) fn plan_residual(
        &self,
        call: OpCall,
        program: &mut Program<'_>,
    ) -> Result<(), OpError> {
        let x = program.x.clone();
        let call = call.input("residual", &x).set("scale", program.residual);
        self.plan(call, program, &[("o", &x)])
    }
}
