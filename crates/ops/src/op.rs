//! What every op has in common: its table of names, its contract, calls and selection. No backend is named here: [`Backend`] is all
//! that the core knows of one.

mod backend;
mod call;
mod selection;
mod typed;

pub use backend::{Backend, Backends, Implementations};
pub use call::Call;
pub use selection::{Chosen, Preference, Selection, choose};
pub use typed::{Given, Key, Options, Over, PartOf, States, Typed};
pub(crate) use typed::{given, place};

use crate::inputs::Slots;
use crate::{DType, Inputs, OpError, OpSpec, OutputSpec, Settings, TensorMap};
use std::any::Any;
use std::time::Instant;

/// The problem apart from the choice of a kernel: everything selection and accounting look at, printable.
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

/// A problem as its own type, for what knows which op it is of.
///
/// # Panics
/// When it is of another op: a backend's list names an op's variants under the name of another.
pub fn problem_of<P: Problem>(problem: &dyn Problem) -> &P {
    match (problem as &dyn Any).downcast_ref() {
        Some(problem) => problem,
        None => panic!("{problem:?} is no {}", std::any::type_name::<P>()),
    }
}

/// What an op's folder provides; [`Op`] is made from it.
pub trait Family: Sync + 'static {
    /// Its problem, printable.
    type Problem: Problem;
    /// What a call says beside its tensors.
    type Options: Options + Clone;
    /// Its table.
    const SPEC: &'static OpSpec;
    /// Checks shapes, types and options. Required tensors are there.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    fn parse(inputs: Inputs<'_>, options: &Self::Options) -> Result<Self::Problem, OpError>;
    /// The op in float64, from the formulas; gives every output as a float64 tensor.
    fn reference(problem: &Self::Problem, inputs: Inputs<'_>) -> TensorMap;
    /// The reference that a variant's outputs are compared with.
    ///
    /// An op that chooses discretely (a top-n, where scores nearly tie) takes the choice from the outputs, after
    /// checking that it is a right one, and computes the rest from it. Every other op has only one answer.
    ///
    /// # Errors
    /// One sentence, when the choice in the outputs is wrong.
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
    /// What it decides, and how: `the first row that fits`.
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
    /// Checks a call over tensors at their places in the op's table, with options of this op.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or option.
    fn call<'a>(&self, inputs: Slots<'a>, options: &dyn Options) -> Result<Call<'a>, OpError>;
    /// Checks a call over tensors by name: names, types, shapes, settings, NaN. This is for the edges, where tensors come
    /// from a file or another language; other callers have the op's typed call ([`Typed`]).
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
        // Values last: a wrong shape is the likelier mistake and the cheaper check.
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

/// A variant ready to run on given inputs, which are where it reads them: on a GPU they were copied there once.
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
    /// Runs it once and gives the milliseconds it took by the device's own clock, without the way there.
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
    /// Runs it `runs` times back to back from one recorded graph, so that no launch waits for the host, and gives the
    /// milliseconds of one; from the second run on, caches are warm. One run where the device cannot record.
    ///
    /// # Errors
    /// As [`Execution::launch`].
    fn replay(&mut self, runs: u32) -> Result<f64, OpError> {
        let _ = runs;
        self.time()
    }
    /// The outputs as the last launch left them, in host memory.
    ///
    /// # Errors
    /// [`OpError::Device`]; never on the processor.
    fn outputs(&mut self) -> Result<&TensorMap, OpError>;
    /// The outputs to keep, without a copy where they lie in host memory already.
    ///
    /// # Errors
    /// As [`Execution::outputs`].
    fn into_outputs(mut self: Box<Self>) -> Result<TensorMap, OpError> {
        Ok(self.outputs()?.clone())
    }
}
