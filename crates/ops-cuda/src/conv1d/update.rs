//! `update`: decode step with one token per sequence and a shifted state. The contract is in `update.cu`.

use super::channel_last::rows_of_warps;
use super::operands::{Operands, shape_macros, too_old};
use crate::{CudaVariant, Planner, arguments, slots, source};
use device::cuda::{BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, SourcePart};
use ops::DType;
use ops::conv1d::Conv1dProblem;

pub(super) const VARIANT: CudaVariant<Conv1dProblem> =
    CudaVariant { name: "update", why_not, plan };

const PARTS: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("update.cu")];

/// Channels per warp.
const CHANNELS: usize = 128;
/// Longest state whose rows fit the kernel's registers.
const LONGEST_STATE: usize = 8;
/// Warps per SM above which a warp processes several sequences. At 256 sequences of 4352 channels both tiles measure the same
/// (`README.md`); above, repeated weight loads cost time.
const ENOUGH_WARPS: usize = 128;

/// The tile of a warp and the size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    /// Sequences per warp.
    sequences: usize,
    warps: usize,
}

/// With few sequences each has its own warps; with many, a warp reuses its weights for several sequences.
const FEW: Tile = Tile { sequences: 1, warps: 1 };
const MANY: Tile = Tile { sequences: 4, warps: 2 };

fn why_not(problem: &Conv1dProblem, here: &CudaCapabilities) -> Option<String> {
    match problem.sequences.batch_and_tokens() {
        Some((_, 1)) => {}
        Some((_, tokens)) => return Some(format!("needs one token a sequence, got {tokens}")),
        None => return Some("needs one token a sequence, got packed sequences".to_owned()),
    }
    if !problem.has_initial_state {
        return Some("needs an initial state".to_owned());
    }
    if problem.ring.is_some() {
        return Some("needs a state that shifts, got a ring".to_owned());
    }
    if problem.state_len > LONGEST_STATE {
        return Some(format!("needs S up to {LONGEST_STATE}, got {}", problem.state_len));
    }
    if !problem.channels.is_multiple_of(4) {
        return Some(format!("needs a multiple of 4 channels, got {}", problem.channels));
    }
    if problem.sequences.count() > 65535 {
        return Some(format!("needs up to 65535 sequences, got {}", problem.sequences.count()));
    }
    too_old(here)
}

fn source(
    dtype: DType,
    (width, state_len): (usize, usize),
    tile: Tile,
    arch: GpuArch,
) -> KernelSource {
    shape_macros(KernelSource::new("conv1d_update", PARTS, arch), dtype, width)
        .define("STATE", state_len)
        .define("SEQUENCES", tile.sequences)
        .define("WARPS", tile.warps)
}

/// The same kernel with states in x's type instead of f32.
fn stored(source: KernelSource) -> KernelSource {
    source.define("STATE_STORED", 1)
}

/// The bundled kernels: bf16, width 4, with f32 states of the three tokens that are needed, and with the four-token states in the
/// model's type that transformers keeps.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let [few, many] = [FEW, MANY].map(|tile| source(DType::Bf16, (4, 3), tile, arch.arch()));
    vec![few, many, stored(source(DType::Bf16, (4, 4), FEW, arch.arch()))]
}

fn choose(problem: &Conv1dProblem, multiprocessors: usize) -> Tile {
    let warps = problem.channels.div_ceil(CHANNELS) * problem.sequences.count();
    if warps <= ENOUGH_WARPS * multiprocessors || problem.state_len > 4 { FEW } else { MANY }
}

arguments! {
    Update: conv1d_update {
        x: Pointer, weight: Pointer, bias: Nullable, initial_state: Nullable, state_indices: Nullable, o: Pointer,
        final_state: Pointer, sequences: i32, channels: i32, x_row: i32, weight_f32: i32, bias_f32: i32, use_silu: i32,
    }
}

fn plan(problem: &Conv1dProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let tile = choose(problem, planner.here().multiprocessors as usize);
    let shape = (problem.width, problem.state_len);
    let source = source(problem.dtype, shape, tile, planner.arch());
    let wide = problem.state_dtype == DType::F32;
    let kernel = planner.kernel(&if wide { source } else { stored(source) })?;
    let x_row = planner.row("x", problem.channels)?;
    let operands = Operands::new(problem, planner)?;
    let args = Update {
        x: &operands.x,
        weight: &operands.weight,
        bias: operands.bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        sequences: operands.sequences,
        channels: operands.channels,
        x_row,
        weight_f32: operands.weight_f32,
        bias_f32: operands.bias_f32,
        use_silu: operands.silu,
    };
    let sequences = problem.sequences.count();
    let blocks = problem.channels.div_ceil(CHANNELS * tile.warps) as u32;
    let grid = [blocks, sequences.div_ceil(tile.sequences) as u32, 1];
    let launch = planner.overlapping(rows_of_warps(grid, tile.warps));
    planner.launch(kernel, launch, args);
    slots::copy_unused(planner, &problem.slots, sequences, problem.channels * problem.state_len)
}
