//! Calls from other languages: settings are read once, tensors come by their places in the op's table.

use super::typed::run;
use super::{Bound, Call, Family, Given, OpSpec, OutputSpec, Problem, Selection};
use crate::cuda::{Lender, Memory, Plan, Plans};
use crate::inputs::Slots;
use crate::{Inputs, OpError, TensorMap};
use device::Device;
use device::cuda::Stream;
use std::sync::Arc;

/// Where a call on a GPU runs, and what it runs with.
pub struct Place<'a> {
    /// The GPU.
    pub device: &'a Device,
    /// Plans that were made on it.
    pub plans: &'a mut Plans,
    /// The stream that the launches go to.
    pub stream: &'a Stream,
    /// Gives memory, where a plan wants any.
    pub memory: Lender<'a>,
}

/// An op whose settings were read. Tensors lie at their places in the op's table ([`OpSpec`]).
pub trait Opened: Send + Sync {
    /// The op's table.
    fn spec(&self) -> &'static OpSpec;
    /// The outputs of a call.
    ///
    /// # Errors
    /// [`OpError`] naming what is wrong with the call.
    fn outputs(&self, inputs: Slots<'_>) -> Result<Vec<OutputSpec>, OpError>;
    /// The variant that a call would run, and why not the others.
    ///
    /// # Errors
    /// [`OpError`] naming what is wrong with the call, or why no variant takes it.
    fn select(&self, inputs: Slots<'_>, device: &Device) -> Result<Selection, OpError>;
    /// Gives a call's launches to a stream of the GPU that its tensors lie on. The plan can be launched again over tensors like
    /// these ([`Plan::at_addresses`]).
    ///
    /// # Errors
    /// [`OpError`] naming what is wrong with the call, why no variant takes it, or what the driver refused.
    fn enqueue(
        &self,
        inputs: Slots<'_>,
        outputs: Slots<'_>,
        place: Place<'_>,
    ) -> Result<Arc<Plan>, OpError>;
    /// Runs a call over host memory, into the outputs that are there by name.
    ///
    /// # Errors
    /// As [`Opened::enqueue`], and where an output has another shape or type than the op gives it.
    fn run(
        &self,
        inputs: Slots<'_>,
        device: &Device,
        outputs: &mut TensorMap,
    ) -> Result<(), OpError>;
}

/// An op with options.
pub(super) struct WithOptions<F: Family> {
    options: F::Options,
}

impl<F: Family> WithOptions<F> {
    pub(super) fn new(options: F::Options) -> Self {
        Self { options }
    }

    /// The call over these tensors, of which none that the op requires is missing.
    fn given<'a>(&self, inputs: Slots<'a>, outputs: Slots<'a>) -> Result<Given<'a, F>, OpError> {
        let op = F::SPEC.name;
        let missing = F::SPEC.inputs.iter().enumerate();
        let missing = missing.filter(|(place, spec)| spec.required && inputs.at(*place).is_none());
        if let Some((_, spec)) = missing.into_iter().next() {
            return Err(OpError::MissingTensor { op, tensor: spec.name, shape: spec.shape });
        }
        Ok(Given { inputs: Inputs::new(op, inputs), outputs, options: self.options.clone() })
    }

    fn nowhere<'a>(&self, inputs: Slots<'a>) -> Result<Given<'a, F>, OpError> {
        self.given(inputs, Slots::new(F::SPEC.outputs))
    }
}

impl<F: Family> Opened for WithOptions<F> {
    fn spec(&self) -> &'static OpSpec {
        F::SPEC
    }

    fn outputs(&self, inputs: Slots<'_>) -> Result<Vec<OutputSpec>, OpError> {
        Ok(Bound::of(&self.nowhere(inputs)?)?.problem.outputs())
    }

    fn select(&self, inputs: Slots<'_>, device: &Device) -> Result<Selection, OpError> {
        Bound::of(&self.nowhere(inputs)?)?.select(device, None)
    }

    fn enqueue(
        &self,
        inputs: Slots<'_>,
        outputs: Slots<'_>,
        place: Place<'_>,
    ) -> Result<Arc<Plan>, OpError> {
        let given = self.given(inputs, outputs)?;
        let plan = Arc::clone(place.plans.find(&given, place.device)?);
        let lent = plan.wanted().lent(place.memory)?;
        plan.over(&given.inputs, &given.outputs, Memory::from(&lent))?.enqueue(place.stream)?;
        Ok(plan)
    }

    fn run(
        &self,
        inputs: Slots<'_>,
        device: &Device,
        outputs: &mut TensorMap,
    ) -> Result<(), OpError> {
        let given = self.nowhere(inputs)?;
        for OutputSpec { name, shape, dtype } in Bound::of(&given)?.problem.outputs() {
            let Some(tensor) = outputs.get(name) else { continue };
            let (op, tensor_name) = (F::SPEC.name, name.to_owned());
            if tensor.shape() != shape {
                return Err(OpError::Shape {
                    op,
                    tensor: tensor_name,
                    shape: tensor.shape().to_vec(),
                    wanted: format!("{shape:?}"),
                });
            }
            if tensor.dtype() != dtype {
                return Err(OpError::DType {
                    op,
                    tensor: tensor_name,
                    dtype: tensor.dtype(),
                    wanted: dtype.to_string(),
                });
            }
        }
        run(&given, device, outputs)
    }
}
