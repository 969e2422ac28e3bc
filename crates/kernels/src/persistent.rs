//! Several calls by one kernel whose blocks stay, one a multiprocessor: each call is a phase, which takes what the phase ahead of it made as it
//! comes. While one sequence decodes, a step is some hundred short calls, and a launch of each has multiprocessors that wait for the
//! last one's end and for the first weights. The contract stands in `cuda/README.md`.
//!
//! [`phase`] makes a phase of a call in its op's own words; [`chain`] puts phases into launches. Variants named `persistent` of
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

use crate::cuda::{Pieces, Planner};
use crate::op::Bound;
use crate::{Family, OpError, Problem, Typed};
use device::Device;
use device::cuda::{Args, Buffer, CudaCapabilities, CudaError};
use form::{MOST_COLUMNS, SUM_STAGES};
use record::{Kind, Record};
use std::sync::Arc;
use wish::Wish;

/// The name errors go under.
const NAME: &str = "persistent";

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
    pub(crate) plan: fn(&P, &mut Planner<'_>) -> Result<Phase, CudaError>,
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

    /// Whether one kernel can take it and all of these.
    pub fn goes_with(&self, others: &[Self]) -> bool {
        Wish::of_all(others.iter().chain([self]).map(|phase| phase.wish)).is_some()
    }
}

/// The phase of a call over tensors on a GPU, or why it has none: that is no error.
///
/// # Errors
/// [`OpError`] naming what is wrong with the call, or what the driver refused.
pub fn phase<C: Typed>(call: &C, device: &Device) -> Result<Result<Phase, String>, OpError> {
    let Some(of) = C::Family::PHASE else {
        return Ok(Err("calls of this op are no phases".to_owned()));
    };
    let (Some(cuda), Some(here)) = (device.cuda(), &device.capabilities().cuda) else {
        return Ok(Err("is for GPUs".to_owned()));
    };
    let given = call.given();
    let problem = Bound::of(&given)?.problem;
    if let Some(reason) = (of.why_not)(&problem, here) {
        return Ok(Err(reason));
    }
    let address =
        |tensor: Option<&crate::Tensor>| tensor.and_then(|of| Some(of.buffer()?.address()));
    for (_, spec, tensor) in given.inputs.slots().iter() {
        if tensor.buffer().is_none() {
            return Ok(Err(format!("needs `{}` on the GPU", spec.name)));
        }
    }
    let wanted = problem.outputs();
    for name in wanted.iter().map(|spec| spec.name) {
        match (given.outputs.get(name).is_some(), of.leaves_out.contains(&name)) {
            (false, false) => return Ok(Err(format!("needs a tensor that `{name}` goes to"))),
            (true, true) => return Ok(Err(format!("makes no `{name}`"))),
            _ => {}
        }
    }
    let [before, after] = [given.inputs.get("initial_state"), given.outputs.get("final_state")];
    if address(before) != address(after) {
        return Ok(Err("advances states where they lie".to_owned()));
    }
    let gpu = (cuda, here);
    let made = Planner::new(gpu, NAME, Pieces::Promised, given.inputs, wanted, &given.outputs)
        .and_then(|mut planner| {
            let phase = (of.plan)(&problem, &mut planner)?;
            if let Some(weights) = phase.wish.kernel_of_weights() {
                planner.kernel(&weights.source(planner.arch()))?;
            }
            Ok(Phase { held: planner.into_held(), ..phase })
        });
    match made {
        Ok(phase) => Ok(Ok(phase)),
        // Without a compiler calls are launched as usual, whose kernels are built in for more kinds of weights.
        Err(error @ (CudaError::Layout { .. } | CudaError::NoCompiler { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(OpError::Cuda { op: C::Family::SPEC.name, error }),
    }
}

#[cfg(test)]
pub(crate) mod tests;
