//! A call whose tensors and settings are checked, of an op of any family.

use super::host::HostExecution;
use super::opened::{Opened, WithOptions};
use super::{
    Call, ChoiceTable, Execution, Family, Given, Op, OpSpec, Options, Problem, Refusal, Selection,
};
use crate::cuda::{CudaExecution, CudaVariant, Pieces, Plan, Planner};
use crate::inputs::Slots;
use crate::{Inputs, OpError, Settings, TensorMap};
use device::Device;
use device::cuda::{CudaError, KernelSource};
use facts::BackendKind;

impl<F: Family> Op for F {
    fn spec(&self) -> &'static OpSpec {
        F::SPEC
    }

    fn variants(&self) -> Vec<(&'static str, BackendKind)> {
        candidates::<F>().collect()
    }

    fn choice_tables(&self) -> Vec<ChoiceTable> {
        F::choice_tables()
    }

    fn open(&self, settings: &Settings) -> Result<Box<dyn Opened>, OpError> {
        settings.check_known(F::SPEC)?;
        Ok(Box::new(WithOptions::<F>::new(F::Options::read(settings)?)))
    }

    fn bundled(&self) -> Vec<KernelSource> {
        F::bundled()
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
        let mut given = Given::<F>::new(F::Options::read(settings)?);
        given.inputs = Inputs::of_map(F::SPEC, inputs);
        let bound = Bound::of(&given)?;
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

/// A call whose shapes are checked.
pub(crate) struct Bound<'a, F: Family> {
    pub(crate) problem: F::Problem,
    inputs: Inputs<'a>,
}

/// Names and backends of a family's variants, GPUs first.
fn candidates<F: Family>() -> impl Iterator<Item = (&'static str, BackendKind)> {
    let cuda = F::CUDA.iter().map(|variant| (variant.name, BackendKind::Cuda));
    cuda.chain(F::VARIANTS.iter().map(|variant| (variant.name, variant.backend)))
}

/// A family's variant for GPUs.
fn on_gpus<F: Family>(name: &str) -> Result<&'static CudaVariant<F::Problem>, OpError> {
    let found = F::CUDA.iter().find(|variant| variant.name == name);
    found.ok_or_else(|| OpError::UnknownOp { name: format!("{}.{name}", F::SPEC.name) })
}

impl<'a, F: Family> Bound<'a, F> {
    /// Checks a call.
    pub(crate) fn of(given: &Given<'a, F>) -> Result<Self, OpError> {
        Ok(Self { problem: F::parse(given.inputs, &given.options)?, inputs: given.inputs })
    }

    /// The variant that the op's selection takes, without reasons why it is no other.
    pub(crate) fn chosen(&self, device: &Device) -> Result<&'static str, OpError> {
        let can_run = |wanted: &str| {
            candidates::<F>()
                .find(|(name, _)| *name == wanted)
                .is_some_and(|(name, backend)| self.refusal(name, backend, device).is_none())
        };
        let preferred = F::preferred(&self.problem, device.capabilities());
        let chosen = preferred.iter().map(|choice| choice.variant).find(|name| can_run(name));
        let first = || candidates::<F>().map(|(name, _)| name).find(|name| can_run(name));
        match chosen.or_else(first) {
            Some(chosen) => Ok(chosen),
            None => self.select(device, None).map(|selection| selection.chosen),
        }
    }

    /// Plans a variant that was chosen over tensors on a GPU.
    pub(crate) fn plan(
        &self,
        device: &Device,
        variant: &str,
        outputs: &Slots<'_>,
    ) -> Result<Plan, OpError> {
        let op = F::SPEC.name;
        let named = |error| OpError::Cuda { op, error };
        let (Some(cuda), Some(here)) = (device.cuda(), &device.capabilities().cuda) else {
            let what = "only calls on a GPU are planned".to_owned();
            return Err(named(CudaError::Refused { what }));
        };
        let chosen = on_gpus::<F>(variant)?;
        let kernel = format!("{op}.{variant}");
        let wanted = self.problem.outputs();
        let planner =
            Planner::new((cuda, here), &kernel, Pieces::Promised, self.inputs, wanted, outputs);
        let planned = planner.and_then(|mut planner| {
            (chosen.plan)(&self.problem, &mut planner)?;
            Ok(planner.into_plan())
        });
        planned.map_err(named)
    }

    /// Why a variant cannot run this call on a device; `None` when it can.
    fn refusal(&self, name: &str, backend: BackendKind, device: &Device) -> Option<String> {
        let here = device.capabilities();
        if backend != here.backend {
            return Some(format!("runs on {backend}, this device is {}", here.backend));
        }
        if let Some(gpu) = &here.cuda {
            let variant = F::CUDA.iter().find(|variant| variant.name == name)?;
            return (variant.why_not)(&self.problem, gpu);
        }
        let variant = F::VARIANTS.iter().find(|variant| variant.name == name)?;
        (variant.why_not)(&self.problem, here)
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
        F::reference(&self.problem, self.inputs)
    }

    fn reference_for(&self, outputs: &TensorMap) -> Result<TensorMap, String> {
        F::reference_given(&self.problem, self.inputs, outputs)
    }

    fn select(&self, device: &Device, wanted: Option<&str>) -> Result<Selection, OpError> {
        let op = F::SPEC.name;
        if let Some(wanted) = wanted
            && !candidates::<F>().any(|(name, _)| name == wanted)
        {
            let names: Vec<&str> = candidates::<F>().map(|(name, _)| name).collect();
            let reason = format!("there is no such variant, the op has {}", names.join(", "));
            return Err(OpError::Refused { op, variant: wanted.to_owned(), reason });
        }
        let judged: Vec<(&'static str, Option<String>)> = candidates::<F>()
            .map(|(name, backend)| (name, self.refusal(name, backend, device)))
            .collect();
        let can_run = |wanted: &str| {
            judged.iter().find(|(name, refusal)| *name == wanted && refusal.is_none())
        };
        let preferred = F::preferred(&self.problem, device.capabilities());
        let preferred = preferred.into_iter().find(|choice| can_run(choice.variant).is_some());
        let (chosen, why) = match (wanted, preferred) {
            (Some(wanted), _) => {
                (can_run(wanted).map(|(name, _)| *name), format!("{wanted} was asked for"))
            }
            (None, Some(choice)) => {
                (Some(choice.variant), format!("{} is for {}", choice.variant, choice.rule))
            }
            (None, None) => {
                let first = judged.iter().find(|(_, refusal)| refusal.is_none());
                let name = first.map(|(name, _)| *name);
                (name, format!("{} comes first", name.unwrap_or_default()))
            }
        };
        let refused: Vec<Refusal> = judged
            .into_iter()
            .filter(|(name, _)| Some(*name) != chosen)
            .map(|(variant, reason)| Refusal { variant, reason: reason.unwrap_or(why.clone()) })
            .collect();
        match (chosen, wanted) {
            (Some(chosen), _) => Ok(Selection { chosen, refused }),
            (None, None) => {
                // Those of other backends are no answer to what this device lacks.
                let here = device.capabilities().backend;
                let of_here = |refusal: &Refusal| {
                    candidates::<F>().any(|(name, of)| name == refusal.variant && of == here)
                };
                let refused = refused.into_iter().filter(of_here).collect();
                Err(OpError::NoVariant { op, refused })
            }
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
        let chosen = self.select(device, Some(variant))?.chosen;
        let kernel = format!("{}.{chosen}", F::SPEC.name);
        if let Some(cuda) = device.cuda() {
            let variant = on_gpus::<F>(chosen)?;
            let execution =
                CudaExecution::new(kernel, variant, &self.problem, self.inputs, device, cuda);
            return match execution {
                Ok(execution) => Ok(Box::new(execution)),
                Err(error) => Err(OpError::Cuda { op: F::SPEC.name, error }),
            };
        }
        let Some(variant) = F::VARIANTS.iter().find(|variant| variant.name == chosen) else {
            return Err(OpError::UnknownOp { name: kernel });
        };
        Ok(Box::new(HostExecution::new(kernel, variant, &self.problem, self.inputs, device)))
    }
}
