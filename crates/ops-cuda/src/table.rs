//! Tables of the ops' implementations for NVIDIA GPUs.

use super::{CudaExecution, CudaVariant, Planner};
use crate::persistent::{PersistentStage, StagePlanner};
use device::cuda::{Cuda, CudaCapabilities, KernelSource};
use device::{Device, DeviceError};
use ops::{
    ChoiceTable, Execution, Implementations, Inputs, OpError, Preference, Problem, problem_of,
};

/// The implementations of an op for NVIDIA GPUs.
pub(crate) struct CudaTable<P: 'static> {
    /// Its variants, preferred first.
    pub(crate) variants: &'static [CudaVariant<P>],
    /// The variants that its choice table names for a problem: see [`Implementations::preferred`].
    pub(crate) preferred: fn(&P, &CudaCapabilities) -> Vec<Preference>,
    /// Its choice tables, printable.
    pub(crate) choice_tables: fn() -> Vec<ChoiceTable>,
    /// The kernels of common shapes, which are bundled.
    pub(crate) bundled: fn() -> Vec<KernelSource>,
    /// Converts its calls to stages of persistent kernels; `None` if it cannot.
    pub(crate) stage_planner: Option<StagePlanner<P>>,
}

impl<P> CudaTable<P> {
    /// Variants in order of preference: the first that can run is taken.
    pub(crate) const fn new(
        variants: &'static [CudaVariant<P>],
        bundled: fn() -> Vec<KernelSource>,
    ) -> Self {
        let preferred = |_: &P, _: &CudaCapabilities| Vec::new();
        Self { variants, preferred, choice_tables: Vec::new, bundled, stage_planner: None }
    }
}

/// The part of an op's table that only planners for NVIDIA GPUs use.
pub(crate) trait CudaImplementations: Implementations {
    /// Plans the launches of a variant.
    fn plan(
        &self,
        variant: usize,
        problem: &dyn Problem,
        planner: &mut Planner<'_>,
    ) -> Result<(), DeviceError>;
    /// The kernels of common shapes, which are bundled.
    fn bundled(&self) -> Vec<KernelSource>;
    /// Converts calls to stages; `None` if the op has none.
    fn stage_planner(&self) -> Option<&dyn PlanStage>;
}

/// Converts calls of an op to stages of a persistent kernel, for any problem type: see [`StagePlanner`].
pub(crate) trait PlanStage {
    /// Why a call has no stage; `None` if it has one.
    fn why_not(&self, problem: &dyn Problem, here: &CudaCapabilities) -> Option<String>;
    /// Plans the stage of a call that has one.
    fn plan(
        &self,
        problem: &dyn Problem,
        planner: &mut Planner<'_>,
    ) -> Result<PersistentStage, DeviceError>;
    /// Outputs that a stage does not write.
    fn skipped_outputs(&self) -> &'static [&'static str];
}

impl<P: Problem> PlanStage for StagePlanner<P> {
    fn why_not(&self, problem: &dyn Problem, here: &CudaCapabilities) -> Option<String> {
        (self.why_not)(problem_of(problem), here)
    }

    fn plan(
        &self,
        problem: &dyn Problem,
        planner: &mut Planner<'_>,
    ) -> Result<PersistentStage, DeviceError> {
        (self.plan)(problem_of(problem), planner)
    }

    fn skipped_outputs(&self) -> &'static [&'static str] {
        self.skipped_outputs
    }
}

impl<P: Problem> CudaImplementations for CudaTable<P> {
    fn plan(
        &self,
        variant: usize,
        problem: &dyn Problem,
        planner: &mut Planner<'_>,
    ) -> Result<(), DeviceError> {
        (self.variants[variant].plan)(problem_of(problem), planner)
    }

    fn bundled(&self) -> Vec<KernelSource> {
        (self.bundled)()
    }

    fn stage_planner(&self) -> Option<&dyn PlanStage> {
        self.stage_planner.as_ref().map(|of| of as &dyn PlanStage)
    }
}

impl<P: Problem> Implementations for CudaTable<P> {
    fn count(&self) -> usize {
        self.variants.len()
    }

    fn name(&self, variant: usize) -> &'static str {
        self.variants[variant].name
    }

    fn why_not(&self, variant: usize, problem: &dyn Problem, device: &Device) -> Option<String> {
        match Cuda::of(device) {
            Some(cuda) => {
                (self.variants[variant].why_not)(problem_of(problem), cuda.capabilities())
            }
            None => Some("the device is no GPU".to_owned()),
        }
    }

    fn preferred(&self, problem: &dyn Problem, device: &Device) -> Vec<Preference> {
        let preferred = |cuda: &Cuda| (self.preferred)(problem_of(problem), cuda.capabilities());
        Cuda::of(device).map(preferred).unwrap_or_default()
    }

    fn choice_tables(&self) -> Vec<ChoiceTable> {
        (self.choice_tables)()
    }

    fn prepare<'b>(
        &self,
        variant: usize,
        problem: &'b dyn Problem,
        inputs: Inputs<'b>,
        device: &'b Device,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        let op = inputs.op();
        let kernel = format!("{op}.{}", self.name(variant));
        let plan = |planner: &mut Planner<'_>| self.plan(variant, problem, planner);
        match CudaExecution::new(kernel, (problem.outputs(), plan), inputs, device) {
            Ok(execution) => Ok(Box::new(execution)),
            Err(error) => Err(OpError::Device { op, error }),
        }
    }
}
