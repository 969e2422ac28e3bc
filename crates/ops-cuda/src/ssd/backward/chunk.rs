//! `chunk`: products by mma.sync in chunks of 64 tokens, in five launches. The contracts are in `gradient_steps.cu`, `gradient_states.cu`,
//! `gradient_chunk.cu`, `gradient_sums.cu` and `gradient_reduce.cu`.

use super::{
    Problem, SHARED, STATE, STORAGE, SsdBackwardOperands, SsdBackwardWorkspace, StepSettings,
    THREADS, kernel_source, plan_reduce, sized_source,
};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{CudaCapabilities, DeviceError, Launch, SourcePart};
use ops::DType;

pub(super) const VARIANT: CudaVariant<Problem> = CudaVariant { name: "chunk", why_not, plan };

const AMPERE: SourcePart = source!("../../include/ampere.cuh");
const MMA: SourcePart = source!("../gradient_mma.cuh");
const PRODUCTS: SourcePart = source!("../gradient_products.cuh");

const STEPS: &[SourcePart] = &[AMPERE, STORAGE, SHARED, MMA, source!("../gradient_steps.cu")];
const STATES: &[SourcePart] =
    &[AMPERE, STORAGE, STATE, SHARED, MMA, source!("../gradient_states.cu")];
const CHUNK: &[SourcePart] =
    &[AMPERE, STORAGE, SHARED, MMA, PRODUCTS, source!("../gradient_chunk.cu")];
const SUMS: &[SourcePart] = &[AMPERE, STORAGE, SHARED, MMA, source!("../gradient_sums.cu")];

/// P and N.
const DIMS: (usize, usize) = (64, 128);
/// Tokens of a chunk.
const CHUNK_TOKENS: usize = 64;
/// `WEIGHT_WORDS` and `PART_FLOATS` of `gradient_mma.cuh`.
const WEIGHT_WORDS: usize = CHUNK_TOKENS + 4;
const PART_FLOATS: usize = 19 * CHUNK_TOKENS + 8;
/// Fewest tokens of the longest sequence. With fewer, dA is a sum of few terms, and the rounding of the states to 16 bits gives it an error
/// of up to 5e-3.
const MIN_TOKENS: usize = 17;
/// Threads of a block of `gradient_states.cu` and of `gradient_chunk.cu`.
const MMA_THREADS: u32 = 512;
/// Heads of a block of `gradient_steps.cu` and of `gradient_sums.cu`, one per warp.
const WARPS: usize = 8;
/// `SHARED_BYTES` of `gradient_states.cu`: four stages of values, projections and weights.
const STATES_SHARED: usize = 4 * (24576 + 4 * WEIGHT_WORDS);

/// `SHARED_BYTES` of `gradient_chunk.cu`: stages of x, dy, both states and steps; B, C twice, S, E, mixing weights, and dx of eight warps.
fn chunk_shared(stages: usize) -> usize {
    stages * (49152 + 768) + 3 * 16384 + 2 * 12288 + 8192 + 8 * 16 * 80
}

/// Stages of loads: as many as the shared memory of a block allows.
fn stages(here: &CudaCapabilities) -> Option<usize> {
    let limit = here.shared_bytes as usize;
    [2, 1].into_iter().find(|stages| chunk_shared(*stages).max(STATES_SHARED) <= limit)
}

fn why_not(problem: &Problem, here: &CudaCapabilities) -> Option<String> {
    let problem = &problem.forward;
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    let dims = (problem.head_dim, problem.state_dim);
    if dims != DIMS {
        return Some(format!("needs P 64 and N 128, got P {} and N {}", dims.0, dims.1));
    }
    if problem.has_z {
        return Some("needs a call without z: dy rounded to 16 bits is too inexact".to_owned());
    }
    let longest = problem.sequences.longest();
    if longest < MIN_TOKENS {
        return Some(format!("needs a sequence of {MIN_TOKENS} tokens or more, got {longest}"));
    }
    if stages(here).is_none() {
        let (needed, limit) = (chunk_shared(1), here.shared_bytes);
        return Some(format!("needs {needed} bytes of shared memory, this GPU has {limit}"));
    }
    super::why_not(problem, here)
}

arguments! {
    Steps: ssd_gradient_steps {
        dt: Pointer, rate: Pointer, dt_bias: Nullable, cu_seqlens: Nullable, table: Pointer, weights: Pointer, sums: Pointer,
        sums_d: Pointer, tokens: i32, heads: i32, slots: i32, d_columns: i32, dt_row: i32, settings: (StepSettings),
    }
}
arguments! {
    States: ssd_gradient_states {
        x: Pointer, dy: Pointer, b: Pointer, c: Pointer, initial_state: Nullable, final_gradient: Nullable, cu_seqlens: Nullable,
        weights: Pointer, entering: Pointer, leaving: Pointer, initial_gradient: Nullable, tokens: i32, heads: i32, groups: i32, x_row: i32,
        b_row: i32,
    }
}
arguments! {
    Chunk: ssd_gradient_chunk {
        x: Pointer, dy: Pointer, rate: Pointer, b: Pointer, c: Pointer, d: Nullable, cu_seqlens: Nullable, entering: Pointer,
        leaving: Pointer, table: Pointer, dx: Pointer, db: Pointer, dc: Pointer, all_parts: Pointer, partial: Nullable, total: i64,
        tokens: i32, heads: i32, groups: i32, splits: i32, x_row: i32, b_row: i32, d_f32: i32, d_per_channel: i32,
    }
}
arguments! {
    Sums: ssd_gradient_sums {
        all_parts: Pointer, table: Pointer, rate: Pointer, cu_seqlens: Nullable, ddt: Pointer, sums: Pointer, sums_d: Pointer, tokens: i32,
        heads: i32, dt_f32: i32, rate_f32: i32, d_per_channel: i32,
    }
}

/// Five launches: steps, states, chunk, sums, reduce.
fn plan(problem: &Problem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let Some(stages) = stages(planner.here()) else {
        let what = format!("chunk needs {} bytes of shared memory", chunk_shared(1));
        return Err(DeviceError::Refused { what });
    };
    let operands = SsdBackwardOperands::new(problem, planner)?;
    let state_floats = problem.state_len() / 2;
    let workspace = SsdBackwardWorkspace::new(problem, planner, CHUNK_TOKENS, (state_floats, 3))?;
    let rows = workspace.slots * problem.heads;
    let weights = planner.scratch(rows * 2 * WEIGHT_WORDS)?;
    let all_parts = planner.scratch(rows * PART_FLOATS)?;
    let sequences = problem.sequences.count() as u32;
    let head_blocks = problem.heads.div_ceil(WARPS) as u32;
    let longest = workspace.longest as u32;

    let kernel = planner.kernel(&kernel_source("ssd_gradient_steps", STEPS, problem, planner))?;
    // One chunk at least: the first also writes zeros for unused slots.
    let grid = [head_blocks, longest.max(1), sequences];
    let args = Steps {
        dt: &operands.dt,
        rate: &operands.rate,
        dt_bias: operands.dt_bias.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        table: &workspace.table,
        weights: &weights,
        sums: &workspace.sums,
        sums_d: &workspace.sums_d,
        tokens: operands.tokens,
        heads: operands.heads,
        slots: int(workspace.slots)?,
        d_columns: int(workspace.d_columns)?,
        dt_row: operands.heads,
        settings: operands.step_settings(),
    };
    planner.launch_auxiliary(kernel, Launch::new(grid, THREADS, 0), args);

    let source = sized_source("ssd_gradient_states", STATES, problem, planner)
        .define("STATE_BF16", u8::from(problem.state_dtype == DType::Bf16));
    let kernel = planner.kernel(&source)?;
    let grid = [problem.heads as u32, 2, sequences];
    let args = States {
        x: &operands.x,
        dy: &operands.output_gradient,
        b: &operands.b,
        c: &operands.c,
        initial_state: operands.initial_state.as_deref(),
        final_gradient: operands.final_gradient.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        weights: &weights,
        entering: &workspace.entering,
        leaving: &workspace.leaving,
        initial_gradient: operands.initial_gradient.as_deref(),
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        x_row: operands.width,
        b_row: operands.projection,
    };
    planner.launch_auxiliary(kernel, Launch::new(grid, MMA_THREADS, STATES_SHARED as u32), args);

    let source =
        sized_source("ssd_gradient_chunk", CHUNK, problem, planner).define("STAGES", stages);
    let kernel = planner.kernel(&source)?;
    let grid = [(problem.groups * workspace.splits) as u32, longest, sequences];
    let args = Chunk {
        x: &operands.x,
        dy: &operands.output_gradient,
        rate: &operands.rate,
        b: &operands.b,
        c: &operands.c,
        d: operands.d.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        entering: &workspace.entering,
        leaving: &workspace.leaving,
        table: &workspace.table,
        dx: &operands.dx,
        db: &operands.db,
        dc: &operands.dc,
        all_parts: &all_parts,
        partial: workspace.partial.as_deref(),
        total: problem.sequences.total() as i64,
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        splits: int(workspace.splits)?,
        x_row: operands.width,
        b_row: operands.projection,
        d_f32: operands.d_f32,
        d_per_channel: operands.d_per_channel,
    };
    planner.launch(kernel, Launch::new(grid, MMA_THREADS, chunk_shared(stages) as u32), args);

    let source = kernel_source("ssd_gradient_sums", SUMS, problem, planner);
    let kernel = planner.kernel(&source.define("P", problem.head_dim))?;
    let grid = [head_blocks, longest, sequences];
    let args = Sums {
        all_parts: &all_parts,
        table: &workspace.table,
        rate: &operands.rate,
        cu_seqlens: operands.cu_seqlens.as_deref(),
        ddt: &operands.ddt,
        sums: &workspace.sums,
        sums_d: &workspace.sums_d,
        tokens: operands.tokens,
        heads: operands.heads,
        dt_f32: operands.dt_f32,
        rate_f32: operands.rate_f32,
        d_per_channel: operands.d_per_channel,
    };
    planner.launch_auxiliary(kernel, Launch::new(grid, THREADS, 0), args);
    plan_reduce(problem, planner, &operands, &workspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_that_of_the_kernels_header_comments() {
        assert_eq!([1, 2].map(chunk_shared), [142_080, 192_000]);
        assert_eq!(STATES_SHARED, 99_392);
    }
}
