//! The CPU variants of each op.

use crate::CpuVariant;
use crate::execution::HostExecution;
use device::Device;
use ops::{
    Execution, Implementations, Inputs, OpError, OutputSpec, Problem, Tensor, TensorMap, problem_of,
};

/// An op's variants over host memory, best first.
pub(crate) struct CpuTable<P: 'static>(pub(crate) &'static [CpuVariant<P>]);

impl<P: Problem> Implementations for CpuTable<P> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn name(&self, variant: usize) -> &'static str {
        self.0[variant].name
    }

    fn why_not(&self, variant: usize, problem: &dyn Problem, device: &Device) -> Option<String> {
        (self.0[variant].why_not)(problem_of(problem), device.capabilities())
    }

    fn prepare<'b>(
        &self,
        variant: usize,
        problem: &'b dyn Problem,
        inputs: Inputs<'b>,
        device: &'b Device,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        let variant = &self.0[variant];
        let kernel = format!("{}.{}", inputs.op(), variant.name);
        Ok(Box::new(HostExecution::<P>::new(kernel, variant, problem, inputs, device)))
    }

    fn run(
        &self,
        variant: usize,
        problem: &dyn Problem,
        inputs: Inputs<'_>,
        device: &Device,
        outputs: &mut TensorMap,
    ) -> Result<(), OpError> {
        let wanted = problem.outputs();
        outputs.retain(|name, tensor| {
            let same =
                |spec: &OutputSpec| tensor.shape() == spec.shape && tensor.dtype() == spec.dtype;
            wanted.iter().any(|spec| spec.name == name && same(spec))
        });
        for OutputSpec { name, shape, dtype } in wanted {
            let made = || Tensor::poisoned(&shape, dtype);
            outputs.entry(name.to_owned()).or_insert_with(made);
        }
        (self.0[variant].run)(problem_of(problem), inputs, device, outputs);
        Ok(())
    }
}
