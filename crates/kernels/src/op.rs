//! What every op has in common: its table of names, binding, variants and selection.

mod bound;
mod host;
mod opened;
mod typed;

pub(crate) use bound::Bound;
pub use opened::{Opened, Place};
pub use typed::{Given, Key, Options, Over, PartOf, States, Typed};
pub(crate) use typed::{given, place};

use crate::cuda::CudaVariant;
use crate::persistent::PhaseOf;
use crate::{DType, Inputs, OpError, SettingKind, SettingSpec, Settings, TensorMap};
use device::cuda::KernelSource;
use device::{Capabilities, Device};
use facts::BackendKind;
use std::time::Instant;

/// An op's table: what it is called, which tensors it takes and gives, and its settings.
#[derive(Debug)]
pub struct OpSpec {
    /// What it is called by: `attention`, `kda`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Tensors it takes. The first one decides the storage type, `w` of a projection.
    pub inputs: &'static [TensorSpec],
    /// Tensors it gives.
    pub outputs: &'static [TensorSpec],
    /// Settings it takes.
    pub settings: &'static [SettingSpec],
}

/// One tensor in an op's table.
#[derive(Debug, Clone, Copy)]
pub struct TensorSpec {
    /// Name in files and errors.
    pub name: &'static str,
    /// Shape in letters: `[B, T, H, D]`.
    pub shape: &'static str,
    /// Whether a call without it is an error.
    pub required: bool,
    /// Meaning.
    pub about: &'static str,
}

impl TensorSpec {
    /// Whether it has a row for each token, of a dense batch or of packed sequences.
    pub(crate) fn is_of_tokens(&self) -> bool {
        self.shape.starts_with("[B, T")
    }
}

/// A row of an op's table of tensors.
pub(crate) const fn tensor(
    name: &'static str,
    shape: &'static str,
    required: bool,
    about: &'static str,
) -> TensorSpec {
    TensorSpec { name, shape, required, about }
}

/// A row of an op's table of settings.
pub(crate) const fn setting(
    name: &'static str,
    kind: SettingKind,
    default: &'static str,
    about: &'static str,
) -> SettingSpec {
    SettingSpec { name, kind, default, about }
}

/// A call's output tensor, before it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSpec {
    /// Name.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// Storage type.
    pub dtype: DType,
}

impl OutputSpec {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.dtype.bytes_of(self.shape.iter().product())
    }
}

/// The problem apart from the choice of a kernel: everything selection and accounting look at, printable.
pub trait Problem: std::fmt::Debug + Send + Sync {
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

/// One implementation of an op over tensors in host memory. Those for GPUs are [`CudaVariant`]s.
pub struct Variant<P: 'static> {
    /// Name, unique within the op: `tiled.avx512`.
    pub name: &'static str,
    /// Where it runs.
    pub backend: BackendKind,
    /// Why it cannot run this problem on this device; `None` when it can.
    pub why_not: fn(&P, &Capabilities) -> Option<String>,
    /// Runs it. Its blocks go through [`Device::launch`] under the kernel name `<op>.<variant>`.
    pub run: fn(&P, Inputs<'_>, &Device, &mut TensorMap),
}

/// What an op's folder provides; [`Op`] is made from it.
pub trait Family: Sync + 'static {
    /// Its problem, printable.
    type Problem: Problem;
    /// What a call says beside its tensors.
    type Options: Options;
    /// Its table.
    const SPEC: &'static OpSpec;
    /// Its variants over host memory, best first. A reference to a static: a constant's kernels would be compiled again in each crate
    /// that calls the op.
    const VARIANTS: &'static &'static [Variant<Self::Problem>];
    /// Its variants for NVIDIA GPUs, best first: of a static as well. None, for an op that has none yet.
    const CUDA: &'static &'static [CudaVariant<Self::Problem>] = &(&[] as &[_]);
    /// How its calls become phases of kernels whose blocks stay; none where they do not.
    const PHASE: Option<PhaseOf<Self::Problem>> = None;
    /// The variants that the op's choice table names for this problem, most wanted first, each with its rule. The
    /// first that can run is taken; where none can, the first variant of the op that can.
    fn preferred(problem: &Self::Problem, here: &Capabilities) -> Vec<Preference> {
        let _ = (problem, here);
        Vec::new()
    }
    /// The op's choice tables, printable.
    fn choice_tables() -> Vec<ChoiceTable> {
        Vec::new()
    }
    /// The kernels of common shapes, which are compiled ahead.
    fn bundled() -> Vec<KernelSource> {
        Vec::new()
    }
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

/// What a choice table says of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// The variant.
    pub variant: &'static str,
    /// The rule, in words.
    pub rule: String,
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
    /// Names of its variants with their backends, best first.
    fn variants(&self) -> Vec<(&'static str, BackendKind)>;
    /// The tables by which it chooses; none where the first variant that can run is taken.
    fn choice_tables(&self) -> Vec<ChoiceTable>;
    /// Its kernels that are compiled ahead: see [`Family::bundled`].
    fn bundled(&self) -> Vec<KernelSource>;
    /// Checks a call that was given by names: names, types, shapes, settings, NaN. This is for the edges, where tensors come
    /// from a file or another language; other callers have the op's typed call ([`Typed`]).
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    fn bind<'a>(
        &self,
        inputs: &'a TensorMap,
        settings: &Settings,
    ) -> Result<Box<dyn Call + 'a>, OpError>;
    /// Reads a call's settings once, for callers that have tensors alone to name at each call.
    ///
    /// # Errors
    /// [`OpError`] naming the setting.
    fn open(&self, settings: &Settings) -> Result<Box<dyn Opened>, OpError>;
}

/// A checked call of an op.
pub trait Call {
    /// The op's table.
    fn spec(&self) -> &'static OpSpec;
    /// The problem.
    fn problem(&self) -> &dyn Problem;
    /// The answer in float64.
    fn reference(&self) -> TensorMap;
    /// The answer in float64 that these outputs are to be compared with: see [`Family::reference_given`].
    ///
    /// # Errors
    /// One sentence, when a choice that the outputs contain is wrong.
    fn reference_for(&self, outputs: &TensorMap) -> Result<TensorMap, String>;
    /// Chooses a variant for a device: the first that can run, or the one asked for.
    ///
    /// # Errors
    /// [`OpError::NoVariant`] or [`OpError::Refused`].
    fn select(&self, device: &Device, wanted: Option<&str>) -> Result<Selection, OpError>;
    /// Makes an execution of a variant that selection chose; its outputs are poisoned.
    ///
    /// # Errors
    /// [`OpError::Refused`] when that variant cannot run this call on this device, [`OpError::Cuda`] when the GPU
    /// has not the memory or a kernel cannot be made.
    fn prepare<'b>(
        &'b self,
        device: &'b Device,
        variant: &str,
    ) -> Result<Box<dyn Execution + 'b>, OpError>;
}

/// A variant ready to run on given inputs, which are where it reads them: on a GPU they were copied there once.
pub trait Execution {
    /// The name its launches are counted under.
    fn kernel(&self) -> &str;
    /// Fills the outputs with NaN.
    ///
    /// # Errors
    /// [`OpError::Cuda`]; never on the processor.
    fn poison(&mut self) -> Result<(), OpError>;
    /// Runs it once and waits for its end.
    ///
    /// # Errors
    /// [`OpError::Cuda`]; never on the processor.
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
    /// [`OpError::Cuda`]; never on the processor.
    fn outputs(&mut self) -> Result<&TensorMap, OpError>;
    /// The outputs to keep, without a copy where they lie in host memory already.
    ///
    /// # Errors
    /// As [`Execution::outputs`].
    fn into_outputs(mut self: Box<Self>) -> Result<TensorMap, OpError> {
        Ok(self.outputs()?.clone())
    }
}

/// A variant that was not chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The variant.
    pub variant: &'static str,
    /// Why.
    pub reason: String,
}

/// The chosen variant and each refused one with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The variant to run.
    pub chosen: &'static str,
    /// The others, in the op's order.
    pub refused: Vec<Refusal>,
}

/// Something to do for each op by its type, where [`Op`] has forgotten it.
pub trait Visitor {
    /// Called for each op, in the order of [`OPS`].
    fn visit<F: Family>(&mut self);
}

/// Writes the one list of ops out as values and as types.
macro_rules! ops {
    ($($op:path,)*) => {
        /// The ops, in the order they are verified and benched.
        pub static OPS: &[&dyn Op] = &[$(&$op),*];

        /// Visits each op of [`OPS`] by its type.
        pub fn visit_ops(visitor: &mut impl Visitor) {
            $(visitor.visit::<$op>();)*
        }
    };
}

ops! {
    crate::attention::AttentionOp,
    crate::kda::KdaOp,
    crate::gated_delta::GatedDeltaOp,
    crate::ssd::SsdOp,
    crate::selective_scan::SelectiveScanOp,
    crate::conv1d::Conv1dOp,
    crate::nsa::NsaOp,
    crate::rmsnorm::RmsNormOp,
    crate::linear::LinearOp,
    crate::moe::MoeOp,
    crate::sampling::SamplingOp,
}

/// The op of this name.
///
/// # Errors
/// [`OpError::UnknownOp`].
pub fn op(name: &str) -> Result<&'static dyn Op, OpError> {
    let found = OPS.iter().find(|op| op.spec().name == name);
    found.copied().ok_or_else(|| OpError::UnknownOp { name: name.to_owned() })
}
