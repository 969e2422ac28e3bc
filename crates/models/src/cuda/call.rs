//! Calls of ops over tensors on the GPU.

use super::program::Program;
use super::tensor::GpuTensor;
use device::cuda::Buffer;
use kernels::cuda::{Bound, Buffers};
use kernels::{Op, OpError, Settings, Tensor, TensorMap};
use std::sync::Arc;

/// A call of an op, tensor by tensor.
pub(super) struct OpCall {
    op: &'static dyn Op,
    inputs: TensorMap,
    settings: Settings,
    buffers: Buffers,
}

impl OpCall {
    pub(super) fn new(op: &'static dyn Op) -> Self {
        let (inputs, settings) = (TensorMap::new(), Settings::new());
        Self { op, inputs, settings, buffers: Buffers::new() }
    }

    /// An input.
    pub(super) fn input(mut self, name: &'static str, tensor: &GpuTensor) -> Self {
        let shape = Tensor::elsewhere(&tensor.shape, tensor.dtype);
        self.inputs.insert(name.to_owned(), shape);
        self.buffers.insert(name, tensor.bound());
        self
    }

    /// An input that may be absent.
    pub(super) fn maybe(self, name: &'static str, tensor: Option<&GpuTensor>) -> Self {
        match tensor {
            Some(tensor) => self.input(name, tensor),
            None => self,
        }
    }

    /// Integers that the op plans with on the host, and that its kernels read on the GPU.
    pub(super) fn integers(
        mut self,
        name: &'static str,
        (shape, planned): (&[usize], Vec<i32>),
        read: &Arc<Buffer>,
    ) -> Self {
        self.inputs.insert(name.to_owned(), Tensor::new(shape, planned));
        self.buffers.insert(name, Bound { buffer: Arc::clone(read), row: None });
        self
    }

    /// Where an output goes; one that is not named goes nowhere.
    pub(super) fn output(mut self, name: &'static str, tensor: &GpuTensor) -> Self {
        self.buffers.insert(name, tensor.bound());
        self
    }

    pub(super) fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.settings.set(name, value);
        self
    }

    /// Whether some variant takes it here.
    pub(super) fn is_possible(&self, program: &Program<'_>) -> Result<bool, OpError> {
        let call = self.op.bind(&self.inputs, &self.settings)?;
        Ok(call.select(program.device, None).is_ok())
    }

    /// Plans it by the variant that its op chooses.
    pub(super) fn plan(self, program: &mut Program<'_>) -> Result<(), OpError> {
        let call = self.op.bind(&self.inputs, &self.settings)?;
        let chosen = call.select(program.device, None)?.chosen;
        let planned = call.plan(program.device, chosen, &self.buffers)?;
        program.add(planned)
    }
}
