//! What every op has in common: its table of names, binding, variants and selection.

use crate::{DType, Inputs, OpError, SettingSpec, Settings, Tensor, TensorMap};
use device::{Capabilities, Device};
use facts::BackendKind;

/// An op's table: what it is called, which tensors it takes and gives, and its settings.
#[derive(Debug)]
pub struct OpSpec {
    /// `attention`, `kda`, `ssd`, `conv1d`, `nsa`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Tensors it takes; the first one decides the storage type.
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

/// One implementation of an op for one backend.
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
    /// Its table.
    const SPEC: &'static OpSpec;
    /// Its variants, best first.
    const VARIANTS: &'static [Variant<Self::Problem>];
    /// Checks shapes, types and settings. Names are known, required tensors there and values free of NaN already.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    fn parse(inputs: Inputs<'_>, settings: &Settings) -> Result<Self::Problem, OpError>;
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

/// An op, whatever its problem type.
pub trait Op: Sync {
    /// Its table.
    fn spec(&self) -> &'static OpSpec;
    /// Names of its variants with their backends, best first.
    fn variants(&self) -> Vec<(&'static str, BackendKind)>;
    /// Checks a call: names, types, shapes, settings, NaN.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    fn bind<'a>(
        &self,
        inputs: &'a TensorMap,
        settings: &Settings,
    ) -> Result<Box<dyn Call + 'a>, OpError>;
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
    /// [`OpError::Refused`] when that variant cannot run this call on this device.
    fn prepare<'b>(
        &'b self,
        device: &'b Device,
        variant: &str,
    ) -> Result<Box<dyn Execution + 'b>, OpError>;
}

/// A variant ready to run on given inputs.
pub trait Execution {
    /// The name its launches are counted under.
    fn kernel(&self) -> &str;
    /// Fills the outputs with NaN.
    fn poison(&mut self);
    /// Runs it once and waits for its end.
    fn launch(&mut self);
    /// The outputs as the last launch left them.
    fn outputs(&self) -> &TensorMap;
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

/// The ops, in the order they are verified and benched.
pub const OPS: &[&dyn Op] = &[
    &crate::attention::AttentionOp,
    &crate::kda::KdaOp,
    &crate::ssd::SsdOp,
    &crate::conv1d::Conv1dOp,
    &crate::nsa::NsaOp,
];

/// The op of this name.
///
/// # Errors
/// [`OpError::UnknownOp`].
pub fn op(name: &str) -> Result<&'static dyn Op, OpError> {
    let found = OPS.iter().find(|op| op.spec().name == name);
    found.copied().ok_or_else(|| OpError::UnknownOp { name: name.to_owned() })
}

impl<F: Family> Op for F {
    fn spec(&self) -> &'static OpSpec {
        F::SPEC
    }

    fn variants(&self) -> Vec<(&'static str, BackendKind)> {
        F::VARIANTS.iter().map(|variant| (variant.name, variant.backend)).collect()
    }

    fn bind<'a>(
        &self,
        inputs: &'a TensorMap,
        settings: &Settings,
    ) -> Result<Box<dyn Call + 'a>, OpError> {
        let op = F::SPEC.name;
        for name in inputs.keys() {
            if !F::SPEC.inputs.iter().any(|tensor| tensor.name == name) {
                let known = F::SPEC.inputs.iter().map(|tensor| tensor.name).collect();
                return Err(OpError::UnknownTensor { op, tensor: name.clone(), known });
            }
        }
        if let Some(missing) =
            F::SPEC.inputs.iter().find(|spec| spec.required && !inputs.contains_key(spec.name))
        {
            return Err(OpError::MissingTensor { op, tensor: missing.name, shape: missing.shape });
        }
        settings.check_known(F::SPEC)?;
        let bound = Bound::<F> { problem: F::parse(Inputs::new(op, inputs), settings)?, inputs };
        // Values last: a wrong shape is the likelier mistake and the cheaper check.
        for (name, tensor) in inputs {
            if let Some(index) = tensor.first_nan() {
                return Err(OpError::Value {
                    op,
                    tensor: name.clone(),
                    what: format!("is NaN at element {index}"),
                });
            }
        }
        Ok(Box::new(bound))
    }
}

struct Bound<'a, F: Family> {
    problem: F::Problem,
    inputs: &'a TensorMap,
}

impl<F: Family> Bound<'_, F> {
    fn refusal(&self, variant: &Variant<F::Problem>, device: &Device) -> Option<String> {
        let here = device.capabilities();
        if variant.backend != here.backend {
            return Some(format!("runs on {}, this device is {}", variant.backend, here.backend));
        }
        (variant.why_not)(&self.problem, here)
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs::new(F::SPEC.name, self.inputs)
    }
}

impl<F: Family> Call for Bound<'_, F> {
    fn spec(&self) -> &'static OpSpec {
        F::SPEC
    }

    fn problem(&self) -> &dyn Problem {
        &self.problem
    }

    fn reference(&self) -> TensorMap {
        F::reference(&self.problem, self.inputs())
    }

    fn reference_for(&self, outputs: &TensorMap) -> Result<TensorMap, String> {
        F::reference_given(&self.problem, self.inputs(), outputs)
    }

    fn select(&self, device: &Device, wanted: Option<&str>) -> Result<Selection, OpError> {
        let op = F::SPEC.name;
        if let Some(wanted) = wanted
            && !F::VARIANTS.iter().any(|variant| variant.name == wanted)
        {
            let names: Vec<&str> = F::VARIANTS.iter().map(|variant| variant.name).collect();
            let reason = format!("there is no such variant, the op has {}", names.join(", "));
            return Err(OpError::Refused { op, variant: wanted.to_owned(), reason });
        }
        let mut chosen = None;
        let mut refused = Vec::new();
        for variant in F::VARIANTS {
            let reason = match (self.refusal(variant, device), chosen, wanted) {
                (Some(reason), _, _) => reason,
                (None, None, None) => {
                    chosen = Some(variant.name);
                    continue;
                }
                (None, _, Some(wanted)) if variant.name == wanted => {
                    chosen = Some(variant.name);
                    continue;
                }
                (None, _, Some(wanted)) => format!("{wanted} was asked for"),
                (None, Some(chosen), None) => format!("{chosen} comes first"),
            };
            refused.push(Refusal { variant: variant.name, reason });
        }
        match (chosen, wanted) {
            (Some(chosen), _) => Ok(Selection { chosen, refused }),
            (None, None) => Err(OpError::NoVariant { op, refused }),
            (None, Some(wanted)) => {
                let refusal = refused.iter().find(|refusal| refusal.variant == wanted);
                let reason = refusal.map(|refusal| refusal.reason.clone()).unwrap_or_default();
                Err(OpError::Refused { op, variant: wanted.to_owned(), reason })
            }
        }
    }

    fn prepare<'b>(
        &'b self,
        device: &'b Device,
        variant: &str,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        self.select(device, Some(variant))?;
        let Some(variant) = F::VARIANTS.iter().find(|candidate| candidate.name == variant) else {
            return Err(OpError::UnknownOp { name: variant.to_owned() });
        };
        let outputs = self.problem.outputs();
        let outputs = outputs
            .iter()
            .map(|spec| (spec.name.to_owned(), Tensor::poisoned(&spec.shape, spec.dtype)));
        Ok(Box::new(HostExecution {
            kernel: format!("{}.{}", F::SPEC.name, variant.name),
            run: variant.run,
            problem: &self.problem,
            inputs: self.inputs(),
            device,
            outputs: outputs.collect(),
        }))
    }
}

/// A variant over tensors in host memory.
struct HostExecution<'b, P: 'static> {
    kernel: String,
    run: fn(&P, Inputs<'_>, &Device, &mut TensorMap),
    problem: &'b P,
    inputs: Inputs<'b>,
    device: &'b Device,
    outputs: TensorMap,
}

impl<P: Problem + 'static> Execution for HostExecution<'_, P> {
    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn poison(&mut self) {
        self.outputs.values_mut().for_each(Tensor::poison);
    }

    fn launch(&mut self) {
        (self.run)(self.problem, self.inputs, self.device, &mut self.outputs);
    }

    fn outputs(&self) -> &TensorMap {
        &self.outputs
    }
}
