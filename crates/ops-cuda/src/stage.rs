//! Plans a call as a stage of a persistent kernel.

use crate::persistent::{NAME, PersistentStage};
use crate::planner::Pieces;
use crate::{Planner, op};
use device::Device;
use device::cuda::{Cuda, DeviceError};
use ops::{Family, OpError, Problem, Tensor, Typed};

/// The stage of a call over tensors on a GPU, or why it has none, which is not an error.
///
/// # Errors
/// [`OpError`] naming what is wrong with the call, or what the driver refused.
pub fn plan_stage<C: Typed>(
    call: &C,
    device: &Device,
) -> Result<Result<PersistentStage, String>, OpError> {
    let Some(of) = op(C::Family::SPEC.name).and_then(|table| table.stage_planner()) else {
        return Ok(Err("calls of this op have no stage".to_owned()));
    };
    let Some(cuda) = Cuda::of(device) else {
        return Ok(Err("is for GPUs".to_owned()));
    };
    let given = call.given();
    let problem = C::Family::parse(given.inputs, &given.options)?;
    if let Some(reason) = of.why_not(&problem, cuda.capabilities()) {
        return Ok(Err(reason));
    }
    let address = |tensor: Option<&Tensor>| tensor.and_then(|of| Some(of.buffer()?.address()));
    for (_, spec, tensor) in given.inputs.slots().iter() {
        if tensor.buffer().is_none() {
            return Ok(Err(format!("needs `{}` on the GPU", spec.name)));
        }
    }
    let wanted = problem.outputs();
    for name in wanted.iter().map(|spec| spec.name) {
        match (given.outputs.get(name).is_some(), of.skipped_outputs().contains(&name)) {
            (false, false) => return Ok(Err(format!("needs a tensor that `{name}` goes to"))),
            (true, true) => return Ok(Err(format!("makes no `{name}`"))),
            _ => {}
        }
    }
    let [before, after] = [given.inputs.get("initial_state"), given.outputs.get("final_state")];
    if address(before) != address(after) {
        return Ok(Err("advances states where they lie".to_owned()));
    }
    let made = Planner::new(cuda, NAME, Pieces::Promised, given.inputs, wanted, &given.outputs)
        .and_then(|mut planner| {
            let stage = of.plan(&problem, &mut planner)?;
            stage.with_kernel(planner)
        });
    match made {
        Ok(stage) => Ok(Ok(stage)),
        // Without a compiler, calls are launched separately: those kernels are bundled for more types of weights.
        Err(error @ (DeviceError::Layout { .. } | DeviceError::NoCompiler { .. })) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(OpError::Device { op: C::Family::SPEC.name, error }),
    }
}
