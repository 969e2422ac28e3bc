//! `hopper`: warp-specialized kernel (TMA producer, wgmma consumers) for D = Dv up to 256, with sums of dq in f32 that `convert.cu`
//! rounds. The contracts are in `hopper.cu` and `convert.cu`.

use super::{GradientOperands, PREPARE, padded};
use crate::attention::operands::{Rows, not_half, row_map, values_in_keys};
use crate::{CudaVariant, Planner, arguments, map_element, source};
use device::cuda::{
    ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
    Swizzle, TiledLayout,
};
use ops::attention::AttentionProblem;
use ops::{DType, GradientProblem};

pub(super) const VARIANT: CudaVariant<GradientProblem<AttentionProblem>> =
    CudaVariant { name: "hopper", why_not, plan };

/// Sources of the main kernel around its consumers.
macro_rules! main_with {
    ($consumer:literal) => {
        &[
            source!("../../include/hopper.cuh"),
            source!("rows.cuh"),
            source!("hopper_config.cuh"),
            source!("hopper_plan.cuh"),
            source!("hopper_products.cuh"),
            source!("hopper_producer.cuh"),
            source!($consumer),
            source!("hopper.cu"),
        ]
    };
}

const MAIN: &[SourcePart] = main_with!("hopper_consumer.cuh");
const MAIN_WIDE: &[SourcePart] = main_with!("hopper_wide_consumer.cuh");
const CONVERT: &[SourcePart] = &[
    source!("../../include/hopper.cuh"),
    source!("rows.cuh"),
    source!("hopper_config.cuh"),
    source!("convert.cu"),
];

/// The kernel's D: TMA reads zeros past the actual channels.
fn channels(problem: &AttentionProblem) -> usize {
    match problem.head_dim {
        ..=64 => 64,
        65..=128 => 128,
        _ => 256,
    }
}

/// Keys of a block (`BLOCK_K`).
fn block_keys(channels: usize) -> usize {
    if channels == 256 { 64 } else { 128 }
}

/// Queries of a tile (`BLOCK_Q`).
fn block_queries(channels: usize) -> usize {
    if channels == 64 { 128 } else { 64 }
}

fn why_not(problem: &GradientProblem<AttentionProblem>, here: &CudaCapabilities) -> Option<String> {
    let problem = &problem.forward;
    if here.compute != ComputeCapability::new(9, 0) {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    let (head_dim, value_dim) = (problem.head_dim, problem.value_dim);
    if head_dim != value_dim || !head_dim.is_multiple_of(8) || head_dim > 256 {
        let wanted = "needs D = Dv, a multiple of 8 up to 256";
        return Some(format!("{wanted}, got {head_dim} and {value_dim}"));
    }
    values_in_keys(problem).or_else(|| not_half(problem))
}

/// Sources of the main kernel and of the conversion.
fn sources(
    dtype: DType,
    [padded, stored]: [usize; 2],
    masked: bool,
    softcap: bool,
) -> [KernelSource; 2] {
    let arch = GpuArch::of(ComputeCapability::new(9, 0));
    let of = |name, parts| {
        let source =
            KernelSource::new(name, parts, arch.clone()).define("DTYPE", dtype).define("D", padded);
        if stored == padded { source } else { source.define("D_STORED", stored) }
    };
    let main = if padded == 256 { MAIN_WIDE } else { MAIN };
    [
        of("attention_backward_hopper", main)
            .define("MASK", u8::from(masked))
            .define("SOFTCAP", u8::from(softcap)),
        of("attention_backward_convert", CONVERT),
    ]
}

arguments! {
    Main: attention_backward_hopper {
        map_q: Map, map_grad_o: Map, map_k: Map, map_v: Map, map_statistics: Map, grad_k: Pointer, grad_v: Pointer,
        grad_q_sums: Pointer, counters: Pointer, cu_queries: Nullable, cu_keys: Nullable, key_counts: Nullable, batch: i32, heads: i32,
        kv_heads: i32, queries: i32, keys: i32, window_left: i32, window_right: i32, section: i32, scale: f32, softcap: f32,
    }
}
arguments! {
    Convert: attention_backward_convert {
        sums: Pointer, counters: Nullable, grad_q: Pointer, cu_q: Nullable, batch: i32, tq: i32, heads: i32, scale: f32,
    }
}

/// A window that no sequence reaches.
const UNLIMITED: i32 = 1 << 29;

fn plan(
    problem: &GradientProblem<AttentionProblem>,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let (stored, channels) = (problem.head_dim, channels(problem));
    let (tile, block) = (block_queries(channels), block_keys(channels));
    let (masked, softcap) = (!problem.mask.is_full(), problem.softcap.is_some());
    let [main, convert] = sources(problem.dtype, [channels, stored], masked, softcap);
    let [main, convert] = [planner.kernel(&main)?, planner.kernel(&convert)?];
    let padded = padded(problem);
    let count = 1 + problem.heads * padded / tile;
    let counters = planner.scratch(count)?;
    let sums = planner.scratch(problem.heads * padded * channels)?;
    let operands = GradientOperands::new(problem, planner, &PREPARE, Some((&counters, count)))?;
    let forward = &operands.forward;
    let queries = Rows::of_queries(problem);
    let (keys, values) = Rows::of_keys(problem, forward, planner);
    let dtype = problem.dtype;
    let map_q = row_map(planner, &forward.q, (queries, stored), (64, tile), dtype)?;
    let map_grad_o = row_map(planner, &operands.grad_o, (queries, stored), (64, tile), dtype)?;
    let map_k = row_map(planner, &forward.k, (keys, stored), (64, block), dtype)?;
    let map_v = row_map(planner, &forward.v, (values, stored), (64, block), dtype)?;
    let row = 4 * padded as u64;
    let layout = TiledLayout {
        element: map_element(DType::F32),
        offset: 0,
        sizes: &[padded as u64, problem.heads as u64, 2],
        strides: &[row, row * problem.heads as u64],
        tile: &[tile as u32, 1, 1],
        swizzle: Swizzle::None,
    };
    let map_statistics = planner.tensor_map(&operands.statistics, &layout)?;
    let window = |limit: i32| if limit < 0 { UNLIMITED } else { limit };
    let args = Main {
        map_q: (&map_q).into(),
        map_grad_o: (&map_grad_o).into(),
        map_k: (&map_k).into(),
        map_v: (&map_v).into(),
        map_statistics: (&map_statistics).into(),
        grad_k: &operands.grad_k,
        grad_v: &operands.grad_v,
        grad_q_sums: &sums,
        counters: &counters,
        cu_queries: forward.cu_queries.as_deref(),
        cu_keys: forward.cu_keys.as_deref(),
        key_counts: forward.key_counts.as_deref(),
        batch: forward.batch,
        heads: forward.heads,
        kv_heads: forward.kv_heads,
        queries: forward.queries,
        keys: forward.keys,
        window_left: window(forward.window_left),
        window_right: window(forward.window_right),
        section: section(channels),
        scale: forward.scale,
        softcap: if softcap { forward.softcap } else { 1.0 },
    };
    let tiles = problem.queries.count() * problem.kv_heads * problem.keys.longest().div_ceil(block);
    let blocks = (tiles as u64).min(u64::from(planner.here().multiprocessors)) as u32;
    let launch = Launch::new([blocks, 1, 1], 384, shared_bytes(channels) as u32);
    // Without a mask blocks wait for blocks that start later.
    planner.launch(main, Launch { together: !masked, ..launch }, args);
    let args = Convert {
        sums: &sums,
        counters: Some(&counters),
        grad_q: &operands.grad_q,
        cu_q: forward.cu_queries.as_deref(),
        batch: forward.batch,
        tq: forward.queries,
        heads: forward.heads,
        scale: forward.scale,
    };
    let grid = [
        problem.queries.longest().div_ceil(tile) as u32,
        forward.heads as u32,
        forward.batch as u32,
    ];
    planner.launch_auxiliary(convert, Launch::new(grid, 256, 0), args);
    Ok(())
}

/// `SHARED_BYTES` of `hopper_config.cuh`.
fn shared_bytes(channels: usize) -> usize {
    let (tile, block) = (block_queries(channels), block_keys(channels));
    let (keys, queries) = (2 * block * channels, 2 * tile * channels);
    // Gradients of scores; two sums of dq, or at D 256 their address and the weights.
    let scores = 2 * block * tile;
    let (sums, barriers) = match channels {
        256 => (128 + 2 * scores, 208),
        _ => (2 * 4 * tile * channels, 240),
    };
    let statistics = 2 * STAGES * 4 * tile;
    // At D 64 nothing is left for the alignment, which the kernel checks.
    let alignment = if channels == 64 { 0 } else { 1024 };
    2 * keys + 2 * STAGES * queries + 2 * scores + sums + statistics + barriers + 2 * 80 + alignment
}

const STAGES: usize = 2;

/// Number of (sequence, key head) pairs whose blocks are processed together: the fastest measured on an H200.
fn section(channels: usize) -> i32 {
    if channels == 256 { 8 } else { 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_that_of_the_kernel() {
        assert_eq!([64, 128, 256].map(shared_bytes), [231_824, 231_824, 231_920]);
    }
}
