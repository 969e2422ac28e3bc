//! `mma`: two mma.sync kernels, for dk with dv and for dq, on every GPU from compute capability 8.0 on. The contracts are in `mma_kv.cu`
//! and `mma_q.cu`.

use super::{GradientOperands, PREPARE};
use crate::attention::decode_tiles::row_bytes;
use crate::attention::operands::{KvStrides, not_half, shape_macros, values_in_keys};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::attention::AttentionProblem;
use ops::{DType, GradientProblem};

pub(super) const VARIANT: CudaVariant<GradientProblem<AttentionProblem>> =
    CudaVariant { name: "mma", why_not, plan };

const OF_KEYS: &[SourcePart] = &[
    source!("../../include/ampere.cuh"),
    source!("rows.cuh"),
    source!("mma.cuh"),
    source!("mma_kv.cu"),
];
const OF_QUERIES: &[SourcePart] = &[
    source!("../../include/ampere.cuh"),
    source!("rows.cuh"),
    source!("mma.cuh"),
    source!("mma_q.cu"),
];

/// Keys of a block for dk and dv, and queries of a block for dq.
const BLOCK: usize = 64;

/// Queries of a tile of `mma_kv.cu`, and keys of a tile of `mma_q.cu`: the largest whose products fit the registers.
fn tiles(dims: (usize, usize)) -> [usize; 2] {
    match dims.0.max(dims.1) {
        ..=64 => [64, 64],
        65..=128 => [32, 64],
        _ => [32, 32],
    }
}

/// Bytes of shared memory of `mma_kv.cu` and of `mma_q.cu`.
fn shared_bytes(dims: (usize, usize)) -> [usize; 2] {
    let row = row_bytes(dims.0) + row_bytes(dims.1);
    let [queries, keys] = tiles(dims);
    [(BLOCK + queries) * row + 8 * queries, (BLOCK + keys) * row]
}

fn why_not(problem: &GradientProblem<AttentionProblem>, here: &CudaCapabilities) -> Option<String> {
    let problem = &problem.forward;
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    let dims = (problem.head_dim, problem.value_dim);
    for (name, channels) in [("D", dims.0), ("Dv", dims.1)] {
        if !channels.is_multiple_of(8) || channels > 256 {
            return Some(format!("needs {name} a multiple of 8 up to 256, got {channels}"));
        }
    }
    if shared_bytes(dims).into_iter().any(|bytes| bytes > here.shared_bytes as usize) {
        let shared = here.shared_bytes;
        return Some(format!("no tile fits the {shared} bytes of shared memory of a block here"));
    }
    values_in_keys(problem).or_else(|| not_half(problem))
}

fn sources(dtype: DType, dims: (usize, usize), arch: GpuArch) -> [KernelSource; 2] {
    let of = |name, parts| shape_macros(KernelSource::new(name, parts, arch.clone()), dtype, dims);
    [
        of("attention_backward_mma_kv", OF_KEYS).define("BLOCK_QUERIES", tiles(dims)[0]),
        of("attention_backward_mma_q", OF_QUERIES).define("BLOCK_KEYS", tiles(dims)[1]),
    ]
}

arguments! {
    OfKeys: attention_backward_mma_kv {
        q: Pointer, k: Pointer, v: Pointer, grad_o: Pointer, row_lse: Pointer, row_delta: Pointer, grad_k: Pointer, grad_v: Pointer,
        cu_q: Nullable, cu_k: Nullable, cache_seqlens: Nullable, tq: i32, tk: i32, heads: i32, kv_heads: i32, kv_strides: (KvStrides),
        window_left: i32, window_right: i32, scale: f32, softcap: f32,
    }
}
arguments! {
    OfQueries: attention_backward_mma_q {
        q: Pointer, k: Pointer, v: Pointer, grad_o: Pointer, row_lse: Pointer, row_delta: Pointer, grad_q: Pointer, cu_q: Nullable,
        cu_k: Nullable, cache_seqlens: Nullable, tq: i32, tk: i32, heads: i32, kv_heads: i32, kv_strides: (KvStrides), window_left: i32,
        window_right: i32, scale: f32, softcap: f32,
    }
}

fn plan(
    problem: &GradientProblem<AttentionProblem>,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let dims = (problem.head_dim, problem.value_dim);
    let operands = GradientOperands::new(problem, planner, &PREPARE, None)?;
    let forward = &operands.forward;
    let [of_keys, of_queries] = sources(problem.dtype, dims, planner.arch());
    let [of_keys, of_queries] = [planner.kernel(&of_keys)?, planner.kernel(&of_queries)?];
    let [keys_shared, queries_shared] = shared_bytes(dims).map(|bytes| bytes as u32);
    let blocks = |rows: usize| rows.div_ceil(BLOCK) as u32;
    let args = OfKeys {
        q: &forward.q,
        k: &forward.k,
        v: &forward.v,
        grad_o: &operands.grad_o,
        row_lse: &operands.row_lse,
        row_delta: &operands.row_delta,
        grad_k: &operands.grad_k,
        grad_v: &operands.grad_v,
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
    let grid = [blocks(forward.keys as usize), forward.kv_heads as u32, forward.batch as u32];
    let threads = if dims.0.max(dims.1) > 128 { 256 } else { 128 };
    planner.launch(of_keys, Launch::new(grid, threads, keys_shared), args);
    let args = OfQueries {
        q: &forward.q,
        k: &forward.k,
        v: &forward.v,
        grad_o: &operands.grad_o,
        row_lse: &operands.row_lse,
        row_delta: &operands.row_delta,
        grad_q: &operands.grad_q,
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
    let grid = [blocks(forward.queries as usize), forward.heads as u32, forward.batch as u32];
    planner.launch_auxiliary(of_queries, Launch::new(grid, 128, queries_shared), args);
    Ok(())
}
