//! A call whose tensors and options are checked, of any op.

use super::selection::{Selection, choose, select};
use super::{Execution, Family, Problem, problem_of};
use crate::OpSpec;
use crate::{Inputs, OpError, OutputSpec, TensorMap};
use device::Device;

/// A checked call of an op.
pub struct Call<'a> {
    spec: &'static OpSpec,
    problem: Box<dyn Problem>,
    inputs: Inputs<'a>,
    reference: fn(&dyn Problem, Inputs<'_>) -> TensorMap,
    reference_for: fn(&dyn Problem, Inputs<'_>, &TensorMap) -> Result<TensorMap, String>,
}

impl<'a> Call<'a> {
    /// Checks a call.
    pub(super) fn new<F: Family>(
        inputs: Inputs<'a>,
        options: &F::Options,
    ) -> Result<Self, OpError> {
        Ok(Self {
            spec: F::SPEC,
            problem: Box::new(F::parse(inputs, options)?),
            inputs,
            reference: |problem, inputs| F::reference(problem_of(problem), inputs),
            reference_for: |problem, inputs, outputs| {
                F::reference_given(problem_of(problem), inputs, outputs)
            },
        })
    }

    /// The op's table.
    pub fn spec(&self) -> &'static OpSpec {
        self.spec
    }

    /// The problem.
    pub fn problem(&self) -> &dyn Problem {
        &*self.problem
    }

    /// Specs of its outputs.
    pub fn outputs(&self) -> Vec<OutputSpec> {
        self.problem.outputs()
    }

    /// The reference outputs in float64.
    pub fn reference(&self) -> TensorMap {
        (self.reference)(self.problem(), self.inputs)
    }

    /// The reference in float64 for these outputs: see [`Family::reference_given`].
    ///
    /// # Errors
    /// One sentence, if a discrete choice in the outputs is invalid.
    pub fn reference_for(&self, outputs: &TensorMap) -> Result<TensorMap, String> {
        (self.reference_for)(self.problem(), self.inputs, outputs)
    }

    /// Chooses a variant for a device as [`choose`] does: the `wanted` one, or the best that can run.
    ///
    /// # Errors
    /// [`OpError::NoVariant`] or [`OpError::Refused`].
    pub fn select(&self, device: &Device, wanted: Option<&str>) -> Result<Selection, OpError> {
        select(self.spec.name, self.problem(), device, wanted)
    }

    /// Makes an execution of a variant that selection chose; its outputs are poisoned.
    ///
    /// # Errors
    /// [`OpError::Refused`] if that variant cannot run this call on this device, [`OpError::Device`] if the device is out of
    /// memory or a kernel cannot be compiled or loaded.
    pub fn prepare<'b>(
        &'b self,
        device: &'b Device,
        variant: &str,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        let chosen = choose(self.spec.name, self.problem(), device, Some(variant))?;
        chosen.of.prepare(chosen.variant, self.problem(), self.inputs, device)
    }

    /// Runs it once over host memory with the variant that selection chooses. Tensors in `outputs` are overwritten; missing
    /// outputs are allocated.
    ///
    /// # Errors
    /// [`OpError`] if a tensor in `outputs` has the wrong shape or type, or no variant can run the call.
    pub fn run(&self, device: &Device, outputs: &mut TensorMap) -> Result<(), OpError> {
        let op = self.spec.name;
        for OutputSpec { name, shape, dtype } in self.outputs() {
            let Some(tensor) = outputs.get(name) else { continue };
            let tensor_name = name.to_owned();
            if tensor.shape() != shape {
                let (wanted, shape) = (format!("{shape:?}"), tensor.shape().to_vec());
                return Err(OpError::Shape { op, tensor: tensor_name, shape, wanted });
            }
            if tensor.dtype() != dtype {
                let (wanted, dtype) = (dtype.to_string(), tensor.dtype());
                return Err(OpError::DType { op, tensor: tensor_name, dtype, wanted });
            }
        }
        run(op, self.problem(), self.inputs, device, outputs)
    }
}

/// Runs a problem once over host memory with the variant that selection chooses.
pub(super) fn run(
    op: &'static str,
    problem: &dyn Problem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) -> Result<(), OpError> {
    let chosen = choose(op, problem, device, None)?;
    chosen.of.run(chosen.variant, problem, inputs, device, outputs)
}
