//! State slots that no sequence of a call uses: they are copied unchanged. The contract is in `slots.cu`.

use super::planner::int;
use super::{Planner, arguments};
use crate::source;
use device::cuda::{BundledArch, DeviceError, GpuArch, KernelSource, Launch, Part};
use ops::StateSlots;

const PARTS: &[Part] = &[source!("slots.cu")];

arguments! {
    CopyUnusedSlots: copy_unused_slots {
        initial_state: Pointer, final_state: Pointer, indices: Pointer, sequences: i32, slots: i32, wide: i32, final_wide: i32,
        length: i64,
    }
}

fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("copy_unused_slots", PARTS, arch)
}

/// For the bundle.
pub(super) fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().map(|arch| source(arch.arch())).collect()
}

/// Adds the launch that copies unused slots from `initial_state` to `final_state`, where the states are a pool.
/// `length` is the number of elements of one slot.
///
/// # Errors
/// As [`Planner::kernel`].
pub(crate) fn plan_unused_slots(
    planner: &mut Planner<'_>,
    slots: &StateSlots,
    sequences: usize,
    length: usize,
) -> Result<(), DeviceError> {
    let Some(indices) = planner.input("state_indices")? else { return Ok(()) };
    if slots.untouched().is_empty() {
        return Ok(());
    }
    let (from, to) = (planner.required("initial_state")?, planner.output("final_state")?);
    // States that are updated in place need no copy.
    if from.address() == to.address() {
        return Ok(());
    }
    let kernel = planner.kernel(&source(planner.arch()))?;
    let args = CopyUnusedSlots {
        initial_state: &from,
        final_state: &to,
        indices: &indices,
        sequences: int(sequences)?,
        slots: int(slots.count())?,
        wide: planner.is_f32("initial_state"),
        final_wide: planner.gives_f32("final_state"),
        length: int(length)?.into(),
    };
    let blocks = length.div_ceil(256 * 8).max(1) as u32;
    let grid = [blocks, slots.count().min(65535) as u32, 1];
    planner.launch(kernel, Launch::new(grid, 256, 0), args);
    Ok(())
}
