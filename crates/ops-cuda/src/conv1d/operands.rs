//! Arguments that the conv1d kernels share: device tensors and sizes.

use crate::{Planner, int};
use device::cuda::{Buffer, ComputeCapability, CudaCapabilities, DeviceError, KernelSource};
use ops::DType;
use ops::conv1d::{Activation, Conv1dProblem};
use std::sync::Arc;

/// Why a variant with f32 states cannot run a problem; `None` if it can.
pub(super) fn narrow_states(problem: &Conv1dProblem) -> Option<String> {
    let narrow = problem.state_dtype != DType::F32;
    narrow.then(|| format!("keeps states in f32, got {}", problem.state_dtype))
}

/// The operands of one call.
pub(super) struct Operands {
    pub(super) x: Arc<Buffer>,
    pub(super) weight: Arc<Buffer>,
    pub(super) bias: Option<Arc<Buffer>>,
    pub(super) initial_state: Option<Arc<Buffer>>,
    pub(super) cu_seqlens: Option<Arc<Buffer>>,
    pub(super) state_indices: Option<Arc<Buffer>>,
    pub(super) state_positions: Option<Arc<Buffer>>,
    pub(super) o: Arc<Buffer>,
    pub(super) final_state: Arc<Buffer>,
    pub(super) sequences: i32,
    /// Tokens of a dense sequence, or of the longest packed one.
    pub(super) tokens: i32,
    pub(super) channels: i32,
    pub(super) state_len: i32,
    pub(super) weight_f32: i32,
    pub(super) bias_f32: i32,
    pub(super) silu: i32,
}

impl Operands {
    /// Uploads the inputs.
    pub(super) fn new(
        problem: &Conv1dProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            x: planner.required("x")?,
            weight: planner.required("weight")?,
            bias: planner.input("bias")?,
            initial_state: planner.input("initial_state")?,
            cu_seqlens: planner.input("cu_seqlens")?,
            state_indices: planner.input("state_indices")?,
            state_positions: planner.input("state_positions")?,
            o: planner.output("o")?,
            final_state: planner.output("final_state")?,
            sequences: int(problem.sequences.count())?,
            tokens: int(problem.sequences.longest())?,
            channels: int(problem.channels)?,
            state_len: int(problem.state_len)?,
            weight_f32: planner.is_f32("weight"),
            bias_f32: planner.is_f32("bias"),
            silu: i32::from(problem.activation == Activation::Silu),
        })
    }
}

/// Why no kernel of the op runs on this GPU; `None` if they do.
pub(super) fn too_old(here: &CudaCapabilities) -> Option<String> {
    (here.compute < ComputeCapability::new(8, 0))
        .then(|| format!("needs compute capability 8.0, this GPU has {}", here.compute))
}

/// Elements per access: the largest vector of up to 16 bytes that divides a row of this many elements.
pub(super) fn vector(elements: usize, dtype: DType) -> usize {
    let widest = 16 / dtype.bytes();
    [8, 4, 2, 1]
        .into_iter()
        .find(|wide| *wide <= widest && elements.is_multiple_of(*wide))
        .unwrap_or(1)
}

/// Macros of all kernels of the op.
pub(super) fn shape_macros(source: KernelSource, dtype: DType, width: usize) -> KernelSource {
    source.define("DTYPE", dtype).define("WIDTH", width)
}
