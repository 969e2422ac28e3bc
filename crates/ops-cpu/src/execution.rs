//! A variant over tensors in host memory.

use crate::CpuVariant;
use device::Device;
use ops::{Execution, Inputs, OpError, Problem, Tensor, TensorMap, problem_of};

/// A variant over tensors in host memory.
pub(super) struct HostExecution<'b, P: 'static> {
    kernel: String,
    run: fn(&P, Inputs<'_>, &Device, &mut TensorMap),
    problem: &'b P,
    inputs: Inputs<'b>,
    device: &'b Device,
    outputs: TensorMap,
}

impl<'b, P: Problem> HostExecution<'b, P> {
    /// Its outputs are poisoned.
    pub(super) fn new(
        kernel: String,
        variant: &CpuVariant<P>,
        problem: &'b dyn Problem,
        inputs: Inputs<'b>,
        device: &'b Device,
    ) -> Self {
        let outputs = problem.outputs();
        let outputs = outputs
            .iter()
            .map(|spec| (spec.name.to_owned(), Tensor::poisoned(&spec.shape, spec.dtype)));
        let (run, problem) = (variant.run, problem_of(problem));
        Self { kernel, run, problem, inputs, device, outputs: outputs.collect() }
    }
}

impl<P: Problem> Execution for HostExecution<'_, P> {
    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn poison(&mut self) -> Result<(), OpError> {
        self.outputs.values_mut().for_each(Tensor::poison);
        Ok(())
    }

    fn launch(&mut self) -> Result<(), OpError> {
        (self.run)(self.problem, self.inputs, self.device, &mut self.outputs);
        Ok(())
    }

    fn outputs(&mut self) -> Result<&TensorMap, OpError> {
        Ok(&self.outputs)
    }

    fn into_outputs(self: Box<Self>) -> Result<TensorMap, OpError> {
        Ok(self.outputs)
    }
}
