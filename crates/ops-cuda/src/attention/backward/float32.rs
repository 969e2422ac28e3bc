//! `float32`: float32 arithmetic without tensor cores, for every D, Dv and storage type. One kernel computes dk with dv, and with another
//! macro dq. The contracts are in `float32.cu` and `float32_rows.cu`.

use super::{GradientOperands, Preparation};
use crate::attention::operands::{KvStrides, shape_macros};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::GradientProblem;
use ops::attention::AttentionProblem;

pub(super) const VARIANT: CudaVariant<GradientProblem<AttentionProblem>> =
    CudaVariant { name: "float32", why_not, plan };

const PARTS: &[SourcePart] =
    &[source!("../../include/storage.cuh"), source!("rows.cuh"), source!("float32.cu")];
const PREPARE: &[SourcePart] =
    &[source!("../../include/storage.cuh"), source!("rows.cuh"), source!("float32_rows.cu")];

/// `SHARED_BYTES` of `float32.cu`.
fn shared_bytes(dims: (usize, usize), rows: usize) -> usize {
    let channels = dims.0.next_multiple_of(4) + dims.1.next_multiple_of(4);
    8 * rows * (channels + 8) + 8 * rows * rows
}

/// Rows of a block: as many as its shared memory allows.
fn block_rows(dims: (usize, usize), here: &CudaCapabilities) -> Option<usize> {
    let fits = |rows: &usize| shared_bytes(dims, *rows) <= here.shared_bytes as usize;
    [16, 8, 4].into_iter().find(fits)
}

fn why_not(problem: &GradientProblem<AttentionProblem>, here: &CudaCapabilities) -> Option<String> {
    let dims = (problem.forward.head_dim, problem.forward.value_dim);
    block_rows(dims, here).is_none().then(|| {
        let (shared, (head_dim, value_dim)) = (here.shared_bytes, dims);
        format!("four rows of {head_dim} and {value_dim} channels exceed the {shared} bytes of shared memory of a block here")
    })
}

/// Sources of the kernel for keys and of that for queries.
fn sources(problem: &AttentionProblem, rows: usize, arch: &GpuArch) -> [KernelSource; 2] {
    let dims = (problem.head_dim, problem.value_dim);
    [1, 0].map(|keys| {
        let source = KernelSource::new("attention_backward_float32", PARTS, arch.clone());
        shape_macros(source, problem.dtype, dims)
            .define("KEYS", keys)
            .define("ROWS", rows)
            .define("VALUES_IN_KEYS", u8::from(problem.values_in_keys))
    })
}

arguments! {
    Main: attention_backward_float32 {
        q: Pointer, k: Pointer, v: Pointer, grad_o: Pointer, row_lse: Pointer, row_delta: Pointer, grad_a: Pointer, grad_b: Nullable,
        cu_q: Nullable, cu_k: Nullable, cache_seqlens: Nullable, tq: i32, tk: i32, heads: i32, kv_heads: i32, kv_strides: (KvStrides),
        window_left: i32, window_right: i32, scale: f32, softcap: f32,
    }
}

fn plan(
    problem: &GradientProblem<AttentionProblem>,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let dims = (problem.head_dim, problem.value_dim);
    let rows = block_rows(dims, planner.here()).unwrap_or(4);
    let prepare = Preparation { name: "attention_backward_float32_rows", parts: PREPARE };
    let operands = GradientOperands::new(problem, planner, &prepare, None)?;
    let forward = &operands.forward;
    let of = |grad_a, grad_b| Main {
        q: &forward.q,
        k: &forward.k,
        v: &forward.v,
        grad_o: &operands.grad_o,
        row_lse: &operands.row_lse,
        row_delta: &operands.row_delta,
        grad_a,
        grad_b,
        cu_q: forward.cu_queries.as_deref(),
        cu_k: forward.cu_keys.as_deref(),
        cache_seqlens: forward.key_counts.as_deref(),
        tq: forward.queries,
        tk: forward.keys,
        heads: forward.heads,
        kv_heads: forward.kv_heads,
        kv_strides: forward.kv_strides(),
        window_left: forward.window_left,
        window_right: forward.window_right,
        scale: forward.scale,
        softcap: forward.softcap,
    };
    let [of_keys, of_queries] = sources(problem, rows, &planner.arch());
    let [of_keys, of_queries] = [planner.kernel(&of_keys)?, planner.kernel(&of_queries)?];
    let shared = shared_bytes(dims, rows) as u32;
    let blocks = |count: i32| (count as usize).div_ceil(rows) as u32;
    let grid = [blocks(forward.keys), forward.kv_heads as u32, forward.batch as u32];
    let args = of(&operands.grad_k, Some(&operands.grad_v));
    planner.launch(of_keys, Launch::new(grid, 256, shared), args);
    let grid = [blocks(forward.queries), forward.heads as u32, forward.batch as u32];
    let args = of(&operands.grad_q, None);
    planner.launch_auxiliary(of_queries, Launch::new(grid, 256, shared), args);
    Ok(())
}
