//! Persistent kernels: one block per SM runs a fused sequence of calls. Each call is a stage ([`PersistentStage`]),
//! whose blocks wait only for the outputs of the previous stage that they read. Decoding one sequence takes several
//! hundred short calls; as separate launches, SMs would idle at the end of each and until the first weights arrive. The
//! contract is in `persistent/README.md`.
//!
//! [`crate::plan_stage`] plans the stage of a call; [`chain`] combines stages into launches. The variants named
//! `persistent` of `linear`, `ssd`, `rmsnorm` and `moe` run one stage each, so that `verify` checks the device code
//! of stages.

mod chain;
mod experts;
mod form;
mod record;
mod requirements;

pub use chain::chain;
pub(crate) use chain::{PersistentChain, plan_alone};
pub(crate) use experts::{Experts, MAX_LOGITS};
pub(crate) use form::{Weights, bundled, scan_launch, scan_source, unfit, warps_of_stream, x_of};
pub(crate) use record::{Down, Linear, Norm, Scan, Up};

use crate::Planner;
use device::cuda::{Args, Buffer, CudaCapabilities, DeviceError};
use form::{MAX_COLUMNS, SUM_STAGES};
use record::{Kind, Record};
use requirements::KernelRequirements;
use std::sync::Arc;

/// The op name of errors.
pub(crate) const NAME: &str = "persistent";

/// Taps of the convolution that kernels are compiled for.
pub(crate) const TAPS: usize = 4;
/// State width (N) of the scan that they are compiled for.
pub(crate) const STATE: usize = 128;

/// Why a block's share of `columns` output columns (of gates and of ups with SwiGLU) does not fit.
pub(crate) fn why_no_fit(
    weights: Weights,
    [inputs, columns]: [usize; 2],
    swiglu: bool,
    here: &CudaCapabilities,
) -> Option<String> {
    let of_block = 2 * (columns / 2).div_ceil(here.multiprocessors.max(1) as usize);
    if of_block > MAX_COLUMNS {
        return Some(format!("finishes up to {MAX_COLUMNS} columns of a block, not {of_block}"));
    }
    let stages = of_block.div_ceil(weights.rows_of_stage(inputs)) << usize::from(swiglu);
    if stages > SUM_STAGES {
        return Some(format!(
            "has room for the sums of {SUM_STAGES} stages of a block's columns, not of {stages}"
        ));
    }
    weights.no_room_for(inputs, columns, of_block)
}

/// Converts calls of an op to stages.
pub struct StagePlanner<P: 'static> {
    /// Why a call has no stage; `None` if it has one.
    pub(crate) why_not: fn(&P, &CudaCapabilities) -> Option<String>,
    /// Plans the stage of a call that has one.
    pub(crate) plan: fn(&P, &mut Planner<'_>) -> Result<PersistentStage, DeviceError>,
    /// Outputs that the stage does not write: a call with a tensor for one has no stage.
    pub(crate) skipped_outputs: &'static [&'static str],
}

/// A call as a stage of a persistent kernel, over the tensors it was planned for.
#[derive(Debug, Clone)]
pub struct PersistentStage {
    requirements: KernelRequirements,
    /// Its operations, in the order of the launch.
    records: Vec<Record>,
    /// All buffers that the records point to.
    held: Vec<Arc<Buffer>>,
}

impl PersistentStage {
    fn new(requirements: KernelRequirements, records: Vec<Record>) -> Self {
        Self { requirements, records, held: Vec::new() }
    }

    /// A linear projection.
    pub(crate) fn linear(weights: Weights, linear: Linear<'_>) -> Self {
        let form = usize::try_from(linear.form).unwrap_or(0);
        let record = Record::new(Kind::Linear, Args::from(linear));
        Self::new(KernelRequirements::of_weights(weights).with_form(form), vec![record])
    }

    /// A scan, which every kernel can run.
    pub(crate) fn scan(scan: Scan<'_>) -> Self {
        Self::new(KernelRequirements::default(), vec![Record::new(Kind::Scan, Args::from(scan))])
    }

    /// A norm of the residual stream or a router.
    pub(crate) fn norm(norm: Norm<'_>) -> Self {
        let columns = usize::try_from(norm.inputs).unwrap_or(0);
        Self::new(
            KernelRequirements::of_stream(columns),
            vec![Record::new(Kind::Norm, Args::from(norm))],
        )
    }

    /// A token's experts: gate and up projections, then the down projection, in a kernel compiled for them.
    pub(crate) fn experts(weights: Weights, (up, down): (Up<'_>, Down<'_>)) -> Self {
        let up = Record::up(Args::from(up), weights.experts.unwrap_or_default());
        let down = Record::new(Kind::Down, Args::from(down));
        Self::new(KernelRequirements::of_weights(weights), vec![up, down])
    }

    /// The stage with its buffers, if its kernel can be loaded.
    pub(crate) fn with_kernel(self, planner: Planner<'_>) -> Result<Self, DeviceError> {
        if let Some(weights) = self.requirements.kernel_of_weights() {
            planner.kernel(&weights.source(planner.arch()))?;
        }
        Ok(Self { held: planner.into_operands(), ..self })
    }

    /// Whether one kernel can run this stage and all of the others.
    pub fn can_share_kernel(&self, others: &[Self]) -> bool {
        KernelRequirements::of_all(others.iter().chain([self]).map(|stage| stage.requirements))
            .is_some()
    }
}

#[cfg(test)]
pub(crate) mod tests;
