//! `float32`: float32 arithmetic in chunks of 32 or 16 tokens, for any P and N and every storage type. The contracts are in
//! `gradient_gate.cu`, `gradient_states_any.cu`, `gradient_chunk_any.cu` and `gradient_reduce.cu`.

use super::{
    Problem, SHARED, STATE, STORAGE, SsdBackwardOperands, SsdBackwardWorkspace, StepSettings,
    THREADS, kernel_source, plan_reduce, sized_source,
};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{Buffer, CudaCapabilities, DeviceError, Launch, SourcePart};
use ops::DType;
use ops::ssd::SsdProblem;
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<Problem> = CudaVariant { name: "float32", why_not, plan };

const GATE: &[SourcePart] = &[STORAGE, source!("../gradient_gate.cu")];
const STATES_ANY: &[SourcePart] = &[STORAGE, STATE, SHARED, source!("../gradient_states_any.cu")];
const CHUNK_ANY: &[SourcePart] = &[STORAGE, SHARED, source!("../gradient_chunk_any.cu")];

/// Largest state, P * N, that a block keeps in its registers.
const MAX_STATE: usize = 32 * 1024;

/// `SHARED_BYTES` of `gradient_states_any.cu` and of `gradient_chunk_any.cu`.
fn shared_bytes(problem: &SsdProblem, tokens: usize) -> [usize; 2] {
    let [p, n] = [problem.head_dim, problem.state_dim].map(|size| size.next_multiple_of(4));
    let rows = 2 * tokens * (p + 2 * n) + 4 * tokens * tokens + 12 * tokens;
    let parts = tokens * (n / 4 + 2 * (p / 4));
    [4 * (tokens * (p + n + 1) + 4), 4 * (rows + parts + 8)]
}

/// Tokens of a chunk: as many as the shared memory of a block allows.
fn chunk_tokens(problem: &SsdProblem, here: &CudaCapabilities) -> Option<usize> {
    let limit = here.shared_bytes as usize;
    let fits = |tokens: &usize| shared_bytes(problem, *tokens).iter().all(|size| *size <= limit);
    [32, 16].into_iter().find(fits)
}

fn why_not(problem: &Problem, here: &CudaCapabilities) -> Option<String> {
    let problem = &problem.forward;
    let state = problem.state_len();
    let (p, n) = (problem.head_dim, problem.state_dim);
    if state == 0 || state > MAX_STATE {
        return Some(format!(
            "needs a state P N of 1 to {MAX_STATE} elements, got P {p} and N {n}"
        ));
    }
    if chunk_tokens(problem, here).is_none() {
        let limit = here.shared_bytes;
        return Some(format!("P {p} and N {n} need more than {limit} bytes of shared memory"));
    }
    super::why_not(problem, here)
}

arguments! {
    Gate: ssd_gradient_gate { output_gradient: Pointer, z: Pointer, dy: Pointer, width: i32, z_row: i32 }
}
arguments! {
    StatesAny: ssd_gradient_states_any {
        x: Pointer, dy: Pointer, dt: Pointer, rate: Pointer, b: Pointer, c: Pointer, dt_bias: Nullable, initial_state: Nullable,
        final_gradient: Nullable, cu_seqlens: Nullable, entering: Pointer, leaving: Pointer, table: Pointer, sums: Pointer, sums_d: Pointer,
        initial_gradient: Nullable, tokens: i32, heads: i32, groups: i32, slots: i32, d_columns: i32, x_row: i32, dt_row: i32, b_row: i32,
        settings: (StepSettings),
    }
}
arguments! {
    ChunkAny: ssd_gradient_chunk_any {
        x: Pointer, dy: Pointer, rate: Pointer, b: Pointer, c: Pointer, d: Nullable, z: Nullable, output_gradient: Pointer,
        cu_seqlens: Nullable, entering: Pointer, leaving: Pointer, table: Pointer, dx: Pointer, ddt: Pointer, db: Pointer, dc: Pointer,
        dz: Nullable, sums: Pointer, sums_d: Pointer, partial: Nullable, total: i64, tokens: i32, heads: i32, groups: i32, splits: i32,
        x_row: i32, b_row: i32, z_row: i32, dt_f32: i32, rate_f32: i32, d_f32: i32, d_per_channel: i32,
    }
}

/// Elements of a vector of 16 bytes or less that divides a row.
fn vector(dtype: DType, width: usize) -> usize {
    let most = 16 / dtype.bytes();
    [most, 2, 1].into_iter().find(|size| width.is_multiple_of(*size)).unwrap_or(1)
}

/// Plans dy = do silu(z) in float32.
fn plan_gate(
    problem: &SsdProblem,
    planner: &mut Planner<'_>,
    operands: &SsdBackwardOperands,
    z: &Buffer,
) -> Result<Arc<Buffer>, DeviceError> {
    let (total, width) = (problem.sequences.total(), problem.heads * problem.head_dim);
    let vector = vector(problem.dtype, width);
    let dy = planner.scratch(total * width)?;
    let source = kernel_source("ssd_gradient_gate", GATE, problem, planner);
    let kernel = planner.kernel(&source.define("VECTOR", vector))?;
    let grid = [int(total)? as u32, (width / vector).div_ceil(THREADS as usize) as u32, 1];
    let args = Gate {
        output_gradient: &operands.output_gradient,
        z,
        dy: &dy,
        width: operands.width,
        z_row: operands.width,
    };
    planner.launch_auxiliary(kernel, Launch::new(grid, THREADS, 0), args);
    Ok(dy)
}

/// Three launches: states, chunk, reduce; before them the gate if there is one.
fn plan(problem: &Problem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let Some(tokens) = chunk_tokens(problem, planner.here()) else {
        let what = format!("float32 has no chunk for a state of {}", problem.state_len());
        return Err(DeviceError::Refused { what });
    };
    let operands = SsdBackwardOperands::new(problem, planner)?;
    let dy = match &operands.z {
        None => Arc::clone(&operands.output_gradient),
        Some(z) => plan_gate(problem, planner, &operands, z)?,
    };
    let state_floats = problem.head_dim * problem.state_dim.next_multiple_of(4);
    let workspace = SsdBackwardWorkspace::new(problem, planner, tokens, (state_floats, 4))?;
    let [states_shared, chunk_shared] = shared_bytes(problem, tokens);
    let sequences = problem.sequences.count() as u32;
    let source = |name, parts, planner: &Planner<'_>| {
        sized_source(name, parts, problem, planner)
            .define("CHUNK", tokens)
            .define("DY_F32", u8::from(problem.has_z))
    };

    let states = source("ssd_gradient_states_any", STATES_ANY, planner)
        .define("STATE_BF16", u8::from(problem.state_dtype == DType::Bf16));
    let kernel = planner.kernel(&states)?;
    let grid = [problem.heads as u32, 2, sequences];
    let args = StatesAny {
        x: &operands.x,
        dy: &dy,
        dt: &operands.dt,
        rate: &operands.rate,
        b: &operands.b,
        c: &operands.c,
        dt_bias: operands.dt_bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        final_gradient: operands.final_gradient.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        entering: &workspace.entering,
        leaving: &workspace.leaving,
        table: &workspace.table,
        sums: &workspace.sums,
        sums_d: &workspace.sums_d,
        initial_gradient: operands.initial_gradient.as_deref(),
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        slots: int(workspace.slots)?,
        d_columns: int(workspace.d_columns)?,
        x_row: operands.width,
        dt_row: operands.heads,
        b_row: operands.projection,
        settings: operands.step_settings(),
    };
    planner.launch_auxiliary(kernel, Launch::new(grid, THREADS, states_shared as u32), args);

    let kernel = planner.kernel(&source("ssd_gradient_chunk_any", CHUNK_ANY, planner))?;
    let blocks = (problem.groups * workspace.splits) as u32;
    let grid = [blocks, workspace.longest as u32, sequences];
    let args = ChunkAny {
        x: &operands.x,
        dy: &dy,
        rate: &operands.rate,
        b: &operands.b,
        c: &operands.c,
        d: operands.d.as_deref(),
        z: operands.z.as_deref(),
        output_gradient: &operands.output_gradient,
        cu_seqlens: operands.cu_seqlens.as_deref(),
        entering: &workspace.entering,
        leaving: &workspace.leaving,
        table: &workspace.table,
        dx: &operands.dx,
        ddt: &operands.ddt,
        db: &operands.db,
        dc: &operands.dc,
        dz: operands.dz.as_deref(),
        sums: &workspace.sums,
        sums_d: &workspace.sums_d,
        partial: workspace.partial.as_deref(),
        total: problem.sequences.total() as i64,
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        splits: int(workspace.splits)?,
        x_row: operands.width,
        b_row: operands.projection,
        z_row: operands.width,
        dt_f32: operands.dt_f32,
        rate_f32: operands.rate_f32,
        d_f32: operands.d_f32,
        d_per_channel: operands.d_per_channel,
    };
    planner.launch(kernel, Launch::new(grid, THREADS, chunk_shared as u32), args);
    plan_reduce(problem, planner, &operands, &workspace)
}
