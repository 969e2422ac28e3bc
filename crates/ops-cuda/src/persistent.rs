//! Several calls by one kernel whose blocks stay, one a multiprocessor: each call is a phase, which takes what the phase ahead of it made as it
//! comes. While one sequence decodes, a step is some hundred short calls, and a launch of each has multiprocessors that wait for the
//! last one's end and for the first weights. The contract stands in `persistent/README.md`.
//!
//! [`crate::phase`] makes a phase of a call in its op's own words; [`chain`] puts phases into launches. Variants named `persistent` of
//! `linear`, `ssd`, `rmsnorm` and `moe` run one phase each, which is how what phases compute is verified.

mod chain;
mod experts;
mod form;
mod record;
mod wish;

pub use chain::chain;
pub(crate) use chain::{PersistentChain, plan_alone};
pub(crate) use experts::{Experts, MOST_LOGITS};
pub(crate) use form::{Weights, bundled, scan_launch, scan_source, unfit, warps_of_stream, x_of};
pub(crate) use record::{Down, Linear, Norm, Scan, Up};

use crate::Planner;
use device::cuda::{Args, Buffer, CudaCapabilities, DeviceError};
use form::{MOST_COLUMNS, SUM_STAGES};
use record::{Kind, Record};
use std::sync::Arc;
use wish::Wish;

/// The name errors go under.
pub(crate) const NAME: &str = "persistent";

/// Taps of the convolution that kernels are compiled for.
pub(crate) const TAPS: usize = 4;
/// Width of a scan's state that they are compiled for.
pub(crate) const STATE: usize = 128;

/// Why a block has no room for its part of so many columns, of gates and of ups.
pub(crate) fn no_room(
    weights: Weights,
    [inputs, columns]: [usize; 2],
    swiglu: bool,
    here: &CudaCapabilities,
) -> Option<String> {
    let of_block = 2 * (columns / 2).div_ceil(here.multiprocessors.max(1) as usize);
    if of_block > MOST_COLUMNS {
        return Some(format!("finishes up to {MOST_COLUMNS} columns of a block, not {of_block}"));
    }
    let stages = of_block.div_ceil(weights.rows_of_stage(inputs)) << usize::from(swiglu);
    if stages > SUM_STAGES {
        return Some(format!(
            "has room for the sums of {SUM_STAGES} stages of a block's columns, not of {stages}"
        ));
    }
    weights.no_room_for(inputs, columns, of_block)
}

/// How calls of an op become phases.
pub struct PhaseOf<P: 'static> {
    /// Why one does not; `None` when it does.
    pub(crate) why_not: fn(&P, &CudaCapabilities) -> Option<String>,
    /// The phase of one that does.
    pub(crate) plan: fn(&P, &mut Planner<'_>) -> Result<Phase, DeviceError>,
    /// Outputs that it does not make: a call that has a tensor for one does not become a phase.
    pub(crate) leaves_out: &'static [&'static str],
}

/// A call as a phase, over the tensors it was made for.
#[derive(Debug, Clone)]
pub struct Phase {
    wish: Wish,
    /// What it does, one behind the other in the same launch.
    records: Vec<Record>,
    /// Everything that it points to.
    held: Vec<Arc<Buffer>>,
}

impl Phase {
    fn new(wish: Wish, records: Vec<Record>) -> Self {
        Self { wish, records, held: Vec::new() }
    }

    /// A product.
    pub(crate) fn linear(weights: Weights, linear: Linear<'_>) -> Self {
        let form = usize::try_from(linear.form).unwrap_or(0);
        let record = Record::new(Kind::Linear, Args::from(linear));
        Self::new(Wish::of_weights(weights).with_form(form), vec![record])
    }

    /// A scan, which any kernel takes.
    pub(crate) fn scan(scan: Scan<'_>) -> Self {
        Self::new(Wish::default(), vec![Record::new(Kind::Scan, Args::from(scan))])
    }

    /// A norm of the residual stream or a router.
    pub(crate) fn norm(norm: Norm<'_>) -> Self {
        let columns = usize::try_from(norm.inputs).unwrap_or(0);
        Self::new(Wish::of_stream(columns), vec![Record::new(Kind::Norm, Args::from(norm))])
    }

    /// A token's experts on their way up and down, of a kernel that takes such.
    pub(crate) fn experts(weights: Weights, (up, down): (Up<'_>, Down<'_>)) -> Self {
        let up = Record::up(Args::from(up), weights.experts.unwrap_or_default());
        let down = Record::new(Kind::Down, Args::from(down));
        Self::new(Wish::of_weights(weights), vec![up, down])
    }

    /// The phase with what it points to, when its kernel can be loaded.
    pub(crate) fn with_kernel(self, planner: Planner<'_>) -> Result<Self, DeviceError> {
        if let Some(weights) = self.wish.kernel_of_weights() {
            planner.kernel(&weights.source(planner.arch()))?;
        }
        Ok(Self { held: planner.into_held(), ..self })
    }

    /// Whether one kernel can take it and all of these.
    pub fn goes_with(&self, others: &[Self]) -> bool {
        Wish::of_all(others.iter().chain([self]).map(|phase| phase.wish)).is_some()
    }
}

#[cfg(test)]
pub(crate) mod tests;
