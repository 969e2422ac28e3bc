//! `channel_first`: the tokens of a channel are contiguous. The contract is in `channel_first.cu`.

use super::channel_last::rows_of_warps;
use super::operands::{Operands, narrow_states, shape_macros, too_old, vector};
use crate::{CudaVariant, Planner, arguments, slots, source};
use device::cuda::{BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, SourcePart};
use ops::DType;
use ops::conv1d::{Conv1dProblem, Layout};

pub(super) const VARIANT: CudaVariant<Conv1dProblem> =
    CudaVariant { name: "channel_first", why_not, plan };

const PARTS: &[SourcePart] = &[source!("../include/storage.cuh"), source!("channel_first.cu")];

/// Channels per block, one warp each.
const WARPS: usize = 4;
/// Maximum grid size in y and z.
const MAX_GRID_YZ: usize = 65535;

fn why_not(problem: &Conv1dProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.layout != Layout::ChannelFirst {
        return Some("needs layout=channel_first".to_owned());
    }
    if problem.channels > WARPS * MAX_GRID_YZ {
        return Some(format!(
            "needs up to {} channels, got {}",
            WARPS * MAX_GRID_YZ,
            problem.channels
        ));
    }
    narrow_states(problem).or(too_old(here))
}

fn source(dtype: DType, width: usize, vector: usize, arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("conv1d_channel_first", PARTS, arch), dtype, width)
        .define("VECTOR", vector)
        .define("WARPS", WARPS)
}

/// The bundled kernel: bf16, width 4, vectors of 8.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    vec![source(DType::Bf16, 4, 8, arch.arch())]
}

arguments! {
    ChannelFirst: conv1d_channel_first {
        x: Pointer, weight: Pointer, bias: Nullable, initial_state: Nullable, state_indices: Nullable, state_positions: Nullable,
        o: Pointer, final_state: Pointer, sequences: i32, tokens: i32, channels: i32, state_len: i32, weight_f32: i32,
        bias_f32: i32, use_silu: i32,
    }
}

fn plan(problem: &Conv1dProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let tokens = problem.sequences.longest();
    let vector = vector(tokens, problem.dtype);
    let kernel = planner.kernel(&source(problem.dtype, problem.width, vector, planner.arch()))?;
    let operands = Operands::new(problem, planner)?;
    let args = ChannelFirst {
        x: &operands.x,
        weight: &operands.weight,
        bias: operands.bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        state_positions: operands.state_positions.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        sequences: operands.sequences,
        tokens: operands.tokens,
        channels: operands.channels,
        state_len: operands.state_len,
        weight_f32: operands.weight_f32,
        bias_f32: operands.bias_f32,
        use_silu: operands.silu,
    };
    let sequences = problem.sequences.count();
    let along = tokens.div_ceil(32 * vector).max(1) as u32;
    let grid = [along, problem.channels.div_ceil(WARPS) as u32, sequences.min(MAX_GRID_YZ) as u32];
    planner.launch(kernel, rows_of_warps(grid, WARPS), args);
    slots::copy_unused(planner, &problem.slots, sequences, problem.channels * problem.state_len)
}
