//! Traits of every op: its spec, contract, calls and variant selection. This module names no backend; it uses only the trait
//! [`Backend`].

mod backend;
mod call;
mod selection;
mod typed;

pub use backend::{Backend, Backends, Implementations};
pub use call::Call;
pub use selection::{Preference, SelectedVariant, Selection, choose};
pub use typed::{CallTensors, Key, Options, RecurrentCall, States, TokenRangeCall, Typed};
pub(crate) use typed::{call_tensors, place};

use crate::inputs::Slots;
use crate::{DType, Inputs, OpError, OpSpec, OutputSpec, Settings, TensorMap};
use std::any::Any;
use std::time::Instant;

/// A checked call without its data: shapes, types and options, from which variants are selected and work is counted.
pub trait Problem: Any + std::fmt::Debug + Send + Sync {
    /// Storage type of the inputs.
    fn dtype(&self) -> DType;
    /// Dimensions by name, in the op's usual order.
    fn dims(&self) -> Vec<(&'static str, u64)>;
    /// Floating-point operations by the op's formula (a multiply-add is two).
    fn flops(&self) -> f64;
    /// Bytes that must move at least: each input read once, each output written once.
    fn bytes(&self) -> f64;
    /// Output tensors.
    fn outputs(&self) -> Vec<OutputSpec>;
}

/// Downcasts a problem to its op's type.
///
/// # Panics
/// If it belongs to another op: a backend's list names an op's variants under the name of another.
pub fn problem_of<P: Problem>(problem: &dyn Problem) -> &P {
    match (problem as &dyn Any).downcast_ref() {
        Some(problem) => problem,
        None => panic!("{problem:?} is no {}", std::any::type_name::<P>()),
    }
}

/// The interface that an op implements; [`Op`] follows from it.
pub trait Family: Sync + 'static {
    /// Its problem.
    type Problem: Problem;
    /// Options of a call.
    type Options: Options + Clone;
    /// Its table.
    const SPEC: &'static OpSpec;
    /// Checks shapes, types and options. The caller has checked that required tensors are present.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    fn parse(inputs: Inputs<'_>, options: &Self::Options) -> Result<Self::Problem, OpError>;
    /// Computes every output in float64 from the formulas.
    fn reference(problem: &Self::Problem, inputs: Inputs<'_>) -> TensorMap;
    /// The reference that a variant's outputs are compared with.
    ///
    /// An op with a discrete choice (a top-n, where scores nearly tie) takes the choice from the outputs, checks that it is
    /// valid, and computes the rest from it. Other ops have a single reference.
    ///
    /// # Errors
    /// One sentence, if the choice in the outputs is invalid.
    fn reference_given(
        problem: &Self::Problem,
        inputs: Inputs<'_>,
        outputs: &TensorMap,
    ) -> Result<TensorMap, String> {
        let _ = outputs;
        Ok(Self::reference(problem, inputs))
    }
}

/// Rules by which variants or tiles are chosen, as a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceTable {
    /// The decision and its rule: `the first row that fits`.
    pub title: &'static str,
    /// Names of the columns.
    pub columns: &'static [&'static str],
    /// Its rows, in the order they are tried.
    pub rows: Vec<Vec<String>>,
}

/// An op, whatever its problem type.
pub trait Op: Sync {
    /// Its table.
    fn spec(&self) -> &'static OpSpec;
    /// Reads settings once, for any number of calls ([`Op::call`]).
    ///
    /// # Errors
    /// [`OpError`] naming the setting.
    fn options(&self, settings: &Settings) -> Result<Box<dyn Options>, OpError>;
    /// Checks a call over tensors in the slots of the op's table, with options of this op.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or option.
    fn call<'a>(&self, inputs: Slots<'a>, options: &dyn Options) -> Result<Call<'a>, OpError>;
    /// Checks a call over tensors by name: names, types, shapes, settings, NaN. It is for tensors from a file or another
    /// language; Rust callers use the op's typed call ([`Typed`]).
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    fn bind<'a>(&self, inputs: &'a TensorMap, settings: &Settings) -> Result<Call<'a>, OpError> {
        let OpSpec { name: op, inputs: table, .. } = *self.spec();
        for name in inputs.keys() {
            if !table.iter().any(|tensor| tensor.name == name) {
                let known = table.iter().map(|tensor| tensor.name).collect();
                return Err(OpError::UnknownTensor { op, tensor: name.clone(), known });
            }
        }
        let given = *Inputs::of_map(self.spec(), inputs).slots();
        required(op, &given)?;
        let call = self.call(given, &*self.options(settings)?)?;
        // Values are checked last: a wrong shape is more common and cheaper to find.
        for (name, tensor) in inputs {
            if let Some(index) = tensor.first_nan() {
                let (tensor, what) = (name.clone(), format!("is NaN at element {index}"));
                return Err(OpError::Value { op, tensor, what });
            }
        }
        Ok(call)
    }
}

impl<F: Family> Op for F {
    fn spec(&self) -> &'static OpSpec {
        F::SPEC
    }

    fn options(&self, settings: &Settings) -> Result<Box<dyn Options>, OpError> {
        settings.check_known(F::SPEC)?;
        Ok(Box::new(F::Options::read(settings)?))
    }

    fn call<'a>(&self, inputs: Slots<'a>, options: &dyn Options) -> Result<Call<'a>, OpError> {
        required(F::SPEC.name, &inputs)?;
        match (options as &dyn Any).downcast_ref() {
            Some(options) => Call::new::<F>(Inputs::new(F::SPEC.name, inputs), options),
            None => panic!("{options:?} are no options of {}", F::SPEC.name),
        }
    }
}

/// Refuses a call without a tensor that the op requires.
fn required(op: &'static str, inputs: &Slots<'_>) -> Result<(), OpError> {
    match inputs.table().iter().find(|spec| spec.required && inputs.get(spec.name).is_none()) {
        Some(spec) => Err(OpError::MissingTensor { op, tensor: spec.name, shape: spec.shape }),
        None => Ok(()),
    }
}

/// A variant prepared for given inputs, which are already in the memory of its device.
pub trait Execution {
    /// The name its launches are counted under.
    fn kernel(&self) -> &str;
    /// Fills the outputs with NaN.
    ///
    /// # Errors
    /// [`OpError::Device`]; never on the processor.
    fn poison(&mut self) -> Result<(), OpError>;
    /// Runs it once and waits for its end.
    ///
    /// # Errors
    /// [`OpError::Device`]; never on the processor.
    fn launch(&mut self) -> Result<(), OpError>;
    /// Runs it once and returns the milliseconds measured by the device, without launch latency; by the host's clock in the
    /// default implementation.
    ///
    /// # Errors
    /// As [`Execution::launch`].
    fn time(&mut self) -> Result<f64, OpError> {
        let start = Instant::now();
        self.launch()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
    /// Whether the device can record launches and replay them.
    fn can_replay(&self) -> bool {
        false
    }
    /// Replays a recorded graph of `runs` launches, so that no launch waits for the host, and returns the milliseconds per
    /// run; from the second run on, caches are warm. A device that cannot record runs once.
    ///
    /// # Errors
    /// As [`Execution::launch`].
    fn replay(&mut self, runs: u32) -> Result<f64, OpError> {
        let _ = runs;
        self.time()
    }
    /// Outputs of the last launch, in host memory.
    ///
    /// # Errors
    /// [`OpError::Device`]; never on the processor.
    fn outputs(&mut self) -> Result<&TensorMap, OpError>;
    /// Consumes the execution and returns its outputs, without a copy if they are in host memory.
    ///
    /// # Errors
    /// As [`Execution::outputs`].
    fn into_outputs(mut self: Box<Self>) -> Result<TensorMap, OpError> {
        Ok(self.outputs()?.clone())
    }
}
