//! `blocks`: each block of keys is read once for all the queries of a stretch that selected it, and a second kernel
//! puts a query's blocks together: prefill. The contracts stand in `blocks.cu` and `finish.cu`.

use super::gather;
use super::operands::{Operands, row_bytes, shape_macros};
use super::stages::{self, Selection, compress};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, int};
use crate::nsa::NsaProblem;
use device::cuda::{
    Args, Buffer, BundledArch, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch,
};
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<NsaProblem> = CudaVariant { name: "blocks", why_not, plan };

const BLOCKS: &[&str] = &[
    include_str!("../../cuda/ampere.cuh"),
    include_str!("call.cuh"),
    include_str!("common.cuh"),
    include_str!("blocks.cu"),
];
const FINISH: &[&str] = &[
    include_str!("../../cuda/ampere.cuh"),
    include_str!("call.cuh"),
    include_str!("common.cuh"),
    include_str!("finish.cu"),
];

/// Warps of a block of threads, tiles of 16 rows of a warp, tiles of queries that it holds, and blocks that a
/// multiprocessor must be able to hold.
const WARPS: usize = 8;
const ROW_TILES: usize = 1;
const STAGES: usize = 1;
const BLOCKS_PER_SM: usize = 2;
const FINISH_WARPS: usize = 4;
/// Forced keys that `finish.cu` takes at a time.
const FINISH_TILE: usize = 16;
/// Results that a warp of `finish.cu` has under way: `AHEAD` there.
const FINISH_AHEAD: usize = 2;
/// Most keys of a block: a query's scores against it are in registers all at once.
const MOST_KEYS: usize = 64;
/// Most blocks of a query: `finish.cu` holds their sums in shared memory.
const MOST_BLOCKS: usize = 64;
const MOST_CHANNELS: usize = 128;
/// The share of the GPU's memory that partial results take at most: a chunk of queries has as many as fit. Larger
/// chunks have fewer launches whose ends leave multiprocessors idle.
const PARTIAL_SHARE: u64 = 12;

/// Queries whose selections one block of threads lists: long stretches load a block of keys less often, short ones
/// are more even.
const fn stretch(queries: usize) -> usize {
    match queries {
        0..=16_384 => 512,
        16_385..=32_768 => 2048,
        _ => 4096,
    }
}

fn key_rows(problem: &NsaProblem) -> usize {
    problem.select_block.next_multiple_of(16)
}

fn shared_bytes(keys: usize, (d, dv): (usize, usize), stretch: usize) -> usize {
    keys * (row_bytes(d) + row_bytes(dv))
        + WARPS * STAGES * ROW_TILES * 16 * row_bytes(d)
        + 2 * stretch
}

fn finish_bytes((d, dv): (usize, usize), blocks: usize) -> usize {
    let results = FINISH_AHEAD * 512 * dv.div_ceil(16);
    FINISH_WARPS * (16 * row_bytes(d) + results + 16 * blocks * DType::F32.bytes())
        + 2 * FINISH_TILE * (row_bytes(d) + row_bytes(dv))
}

fn source(keys: usize, dtype: DType, dims: (usize, usize), arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("nsa_blocks", BLOCKS, arch), dtype, dims)
        .define("KEYS", keys)
        .define("ROW_TILES", ROW_TILES)
        .define("WARPS", WARPS)
        .define("STAGES", STAGES)
        .define("BLOCKS_PER_SM", BLOCKS_PER_SM)
}

fn finish_source(dtype: DType, dims: (usize, usize), arch: GpuArch) -> KernelSource {
    let source = KernelSource::new("nsa_finish", FINISH, arch);
    shape_macros(source, dtype, dims)
        .define("TILE", FINISH_TILE)
        .define("WARPS", FINISH_WARPS)
        .define("BLOCKS_PER_SM", 3)
}

/// Common shapes, for the bundle.
pub(super) fn bundled(dtype: DType, dims: (usize, usize), arch: &BundledArch) -> Vec<KernelSource> {
    vec![source(MOST_KEYS, dtype, dims, arch.arch()), finish_source(dtype, dims, arch.arch())]
}

fn why_not(problem: &NsaProblem, here: &CudaCapabilities) -> Option<String> {
    if !problem.branches.selected {
        return Some("needs the selected branch, `g_slc` was not given".to_owned());
    }
    if problem.select_block > MOST_KEYS {
        let got = problem.select_block;
        return Some(format!("needs select_block up to {MOST_KEYS}, got {got}"));
    }
    if problem.select_count > MOST_BLOCKS || problem.select_count == 0 {
        let got = problem.select_count;
        return Some(format!("needs select_count from 1 to {MOST_BLOCKS}, got {got}"));
    }
    for (name, channels) in [("D", problem.head_dim), ("Dv", problem.value_dim)] {
        if channels > MOST_CHANNELS {
            return Some(format!("needs {name} up to {MOST_CHANNELS}, got {channels}"));
        }
    }
    let dims = (problem.head_dim, problem.value_dim);
    let needed = shared_bytes(key_rows(problem), dims, stretch(problem.queries.longest()))
        .max(finish_bytes(dims, problem.select_count));
    if needed > here.shared_bytes as usize {
        let shared = here.shared_bytes;
        return Some(format!("needs {needed} bytes of shared memory of a block, got {shared}"));
    }
    (gather::VARIANT.why_not)(problem, here).or_else(|| stages::why_not(problem, here))
}

/// What the launches of a chunk share.
struct Scratch {
    bits: Arc<Buffer>,
    words: usize,
    partial: Arc<Buffer>,
    sums: Arc<Buffer>,
}

fn plan(problem: &NsaProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let operands = Operands::new(problem, planner)?;
    let compressed = compress(problem, &operands, planner)?;
    // Each of a query's blocks leaves 16 rows of values and 16 sums for each 16 of its heads.
    let slots = operands.kv_heads * operands.slabs * problem.select_count;
    let value_bytes = 16 * problem.value_dim.next_multiple_of(16) * problem.dtype.bytes();
    let of_query = slots * (value_bytes + 16 * DType::F32.bytes());
    let budget = (planner.here().memory_bytes / PARTIAL_SHARE) as usize;
    let selection = Selection::new(problem, &operands, planner, (of_query, budget))?;
    let rows = operands.batch * selection.chunk;
    let words = operands.batch * operands.kv_heads * selection.most_blocks * selection.chunk / 32;
    let scratch = Scratch {
        bits: planner.zeroed(words)?,
        words,
        partial: planner.scratch(rows * slots * value_bytes / 4)?,
        sums: planner.scratch(rows * slots * 16)?,
    };
    for first in selection.chunks(&operands) {
        let inputs = (&operands, compressed.as_ref());
        selection.plan(problem, inputs, planner, first, Some(&scratch.bits))?;
        selected(problem, &operands, planner, (&selection, first), &scratch)?;
    }
    if problem.branches.window {
        gather::branch(problem, &operands, planner, false, true)?;
    }
    Ok(())
}

/// Adds the selected branch of the chunk from query `first` on.
fn selected(
    problem: &NsaProblem,
    operands: &Operands,
    planner: &mut Planner<'_>,
    (selection, first): (&Selection, usize),
    scratch: &Scratch,
) -> Result<(), CudaError> {
    let dims = (problem.head_dim, problem.value_dim);
    let (arch, keys) = (planner.arch(), key_rows(problem));
    let chunk = selection.chunk;
    let stretch = stretch(operands.queries);
    let batch = operands.batch as u32;

    let kernel = planner.kernel(&source(keys, problem.dtype, dims, arch.clone()))?;
    let args = Args::new()
        .buffer(&operands.q)
        .buffer(&operands.k)
        .buffer(&operands.v)
        .buffer(&operands.indices)
        .buffer(&scratch.bits)
        .buffer(&scratch.partial)
        .buffer(&scratch.sums);
    let numbers = |args: Args| {
        args.i32(problem.select_block as i32)
            .i32(problem.select_count as i32)
            .i32(first as i32)
            .i32(chunk as i32)
    };
    let args = numbers(operands.push_heads(operands.push_sequences(args)))
        .i32(stretch as i32)
        .i32(int(selection.most_blocks)?)
        .f32(problem.scale as f32);
    let blocks = selection.most_blocks as u32 * operands.head_slabs();
    let grid = [blocks, chunk.div_ceil(stretch) as u32, batch];
    let shared = shared_bytes(keys, dims, stretch) as u32;
    planner.launch(kernel, Launch::new(grid, 32 * WARPS as u32, shared), args);

    let kernel = planner.kernel(&finish_source(problem.dtype, dims, arch))?;
    let args = Args::new()
        .buffer(&operands.q)
        .buffer(&operands.k)
        .buffer(&operands.v)
        .buffer(&scratch.partial)
        .buffer(&scratch.sums)
        .buffer(&operands.o)
        .buffer(&operands.indices)
        .buffer(&operands.reads)
        .buffer(&scratch.bits);
    let args = operands.push_heads(operands.push_sequences(operands.push_gates(args)));
    let args = numbers(args)
        .i32(selection.initial_blocks as i32)
        .i32(selection.local_blocks as i32)
        .i32(int(scratch.words)?)
        .i32(i32::from(problem.branches.compressed))
        .f32(problem.scale as f32);
    let grid = [chunk.div_ceil(FINISH_WARPS) as u32, operands.head_slabs(), batch];
    let shared = finish_bytes(dims, problem.select_count) as u32;
    planner.launch(kernel, Launch::new(grid, 32 * FINISH_WARPS as u32, shared), args);
    Ok(())
}
