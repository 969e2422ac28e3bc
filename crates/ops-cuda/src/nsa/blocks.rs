//! `blocks`: prefill. Each block of keys is read once for all queries of a range that selected it; a second kernel
//! combines the blocks of a query. The contracts are in `blocks.cu` and `finish.cu`.

use super::gather;
use super::operands::{Gates, HOPPER, Operands, Sequences, row_bytes, shape_macros};
use super::stages::{self, Selection, compress};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Buffer, BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource,
    Launch, SourcePart,
};
use ops::DType;
use ops::nsa::NsaProblem;
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<NsaProblem> = CudaVariant { name: "blocks", why_not, plan };

const BLOCKS: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("list.cuh"),
    source!("blocks.cu"),
];
const BLOCKS_HOPPER: &[SourcePart] = &[
    source!("../include/hopper.cuh"),
    source!("call.cuh"),
    source!("hopper_tile.cuh"),
    source!("softmax.cuh"),
    source!("list.cuh"),
    source!("blocks_hopper.cu"),
];
const FINISH: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("finish.cuh"),
    source!("finish.cu"),
];
const FINISH_HOPPER: &[SourcePart] = &[
    source!("../include/hopper.cuh"),
    source!("call.cuh"),
    source!("hopper_tile.cuh"),
    source!("softmax.cuh"),
    source!("finish.cuh"),
    source!("finish_hopper.cu"),
];

/// Warpgroups of a thread block of `blocks_hopper.cu`.
const GROUPS: usize = 2;
/// On other GPUs: warps of a thread block, tiles of 16 rows of a warp, stages of query tiles, and
/// resident blocks per SM.
const WARPS: usize = 8;
const ROW_TILES: usize = 1;
const STAGES: usize = 1;
const BLOCKS_PER_SM: usize = 2;
/// Queries of a thread block that combines results, a warp each.
const FINISH_QUERIES: usize = 4;
/// Forced keys that `finish.cu` and `finish_hopper.cu` take at a time.
const FINISH_TILE: usize = 16;
const HOPPER_FINISH_TILE: usize = 64;
/// Columns of 64 for warpgroup products start at multiples of this many bytes.
const ALIGNMENT: usize = 1024;
/// Results in flight per warp of `finish.cu`: `AHEAD` there.
const FINISH_AHEAD: usize = 2;
/// Maximum number of keys of a block: all scores of a query against it are in registers at once.
const MAX_KEYS: usize = 64;
/// Maximum number of blocks of a query: `finish.cu` has their sums in shared memory.
const MAX_BLOCKS: usize = 64;
const MAX_CHANNELS: usize = 128;
/// The fraction of the GPU's memory that partial results may take, as 1/n: it limits the queries of a chunk. Larger
/// chunks have fewer launches, whose tails leave SMs idle.
const PARTIAL_SHARE: u64 = 12;

/// Queries of a range, whose selections one thread block lists: long ranges load a block of keys less often, short
/// ones balance the load better.
const fn stretch(queries: usize) -> usize {
    match queries {
        0..=16_384 => 512,
        16_385..=32_768 => 2048,
        _ => 4096,
    }
}

/// A kernel, its threads and its dynamic shared memory.
struct BlocksKernel {
    source: KernelSource,
    threads: usize,
    shared_bytes: usize,
}

/// Compile-time parameters of this variant's kernels.
#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    dims: (usize, usize),
    /// Keys of a block, a multiple of 16.
    keys: usize,
    /// Blocks of a query.
    count: usize,
    stretch: usize,
}

impl Shape {
    fn of(problem: &NsaProblem) -> Self {
        Self {
            dtype: problem.dtype,
            dims: (problem.head_dim, problem.value_dim),
            keys: problem.select_block.next_multiple_of(16),
            count: problem.select_count,
            stretch: stretch(problem.queries.longest()),
        }
    }

    /// Warpgroup products need Hopper and whole columns of 64.
    fn by_warpgroups(&self, compute: ComputeCapability) -> bool {
        let (d, dv) = self.dims;
        compute == HOPPER && d.is_multiple_of(64) && dv.is_multiple_of(64)
    }

    fn source(
        &self,
        name: &'static str,
        parts: &'static [SourcePart],
        compute: ComputeCapability,
    ) -> KernelSource {
        let source = KernelSource::new(name, parts, GpuArch::of(compute));
        shape_macros(source, self.dtype, self.dims)
    }

    fn blocks(&self, compute: ComputeCapability) -> BlocksKernel {
        let ((d, dv), keys, list) = (self.dims, self.keys, 2 * self.stretch);
        if self.by_warpgroups(compute) {
            let source = self.source("nsa_blocks_hopper", BLOCKS_HOPPER, compute);
            return BlocksKernel {
                source: source.define("KEYS", keys).define("GROUPS", GROUPS),
                threads: 128 * GROUPS,
                shared_bytes: keys * 2 * (d + dv) + GROUPS * 2 * 128 * d + list + ALIGNMENT,
            };
        }
        let source = self.source("nsa_blocks", BLOCKS, compute);
        BlocksKernel {
            source: source
                .define("KEYS", keys)
                .define("ROW_TILES", ROW_TILES)
                .define("WARPS", WARPS)
                .define("STAGES", STAGES)
                .define("BLOCKS_PER_SM", BLOCKS_PER_SM),
            threads: 32 * WARPS,
            shared_bytes: keys * (row_bytes(d) + row_bytes(dv))
                + WARPS * STAGES * ROW_TILES * 16 * row_bytes(d)
                + list,
        }
    }

    fn finish(&self, compute: ComputeCapability) -> BlocksKernel {
        let (d, dv) = self.dims;
        let sums = FINISH_QUERIES * 16 * self.count * DType::F32.bytes();
        let threads = 32 * FINISH_QUERIES;
        if self.by_warpgroups(compute) {
            let source = self.source("nsa_finish_hopper", FINISH_HOPPER, compute);
            return BlocksKernel {
                source: source.define("TILE", HOPPER_FINISH_TILE),
                threads,
                shared_bytes: 128 * d + HOPPER_FINISH_TILE * 2 * (d + dv) + sums + ALIGNMENT,
            };
        }
        let source = self.source("nsa_finish", FINISH, compute);
        let results = FINISH_QUERIES * FINISH_AHEAD * 512 * dv.div_ceil(16);
        BlocksKernel {
            source: source
                .define("TILE", FINISH_TILE)
                .define("WARPS", FINISH_QUERIES)
                .define("BLOCKS_PER_SM", 3),
            threads,
            shared_bytes: FINISH_QUERIES * 16 * row_bytes(d)
                + 2 * FINISH_TILE * (row_bytes(d) + row_bytes(dv))
                + results
                + sums,
        }
    }
}

/// Common shapes, for the bundle.
pub(super) fn bundled(dtype: DType, dims: (usize, usize), arch: &BundledArch) -> Vec<KernelSource> {
    let shape = Shape { dtype, dims, keys: MAX_KEYS, count: MAX_BLOCKS, stretch: stretch(0) };
    vec![shape.blocks(arch.compute).source, shape.finish(arch.compute).source]
}

fn why_not(problem: &NsaProblem, here: &CudaCapabilities) -> Option<String> {
    if !problem.branches.selected {
        return Some("needs the selected branch, `g_slc` was not given".to_owned());
    }
    if problem.select_block > MAX_KEYS {
        let got = problem.select_block;
        return Some(format!("needs select_block up to {MAX_KEYS}, got {got}"));
    }
    if problem.select_count > MAX_BLOCKS || problem.select_count == 0 {
        let got = problem.select_count;
        return Some(format!("needs select_count from 1 to {MAX_BLOCKS}, got {got}"));
    }
    for (name, channels) in [("D", problem.head_dim), ("Dv", problem.value_dim)] {
        if channels > MAX_CHANNELS {
            return Some(format!("needs {name} up to {MAX_CHANNELS}, got {channels}"));
        }
    }
    let shape = Shape::of(problem);
    let [blocks, finish] = [shape.blocks(here.compute), shape.finish(here.compute)];
    let needed = blocks.shared_bytes.max(finish.shared_bytes);
    if needed > here.shared_bytes as usize {
        let shared = here.shared_bytes;
        return Some(format!("needs {needed} bytes of shared memory of a block, got {shared}"));
    }
    (gather::VARIANT.why_not)(problem, here).or_else(|| stages::why_not(problem, here))
}

/// Scratch memory that the launches of a chunk share.
struct Scratch {
    bits: Arc<Buffer>,
    words: usize,
    partial: Arc<Buffer>,
    sums: Arc<Buffer>,
}

fn plan(problem: &NsaProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let operands = Operands::new(problem, planner)?;
    let compressed = compress(problem, &operands, planner)?;
    // Each block of a query writes 16 rows of values and 16 sums for each 16 heads.
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

arguments! {
    Blocks: nsa_blocks | nsa_blocks_hopper {
        q: Pointer, k: Pointer, v: Pointer, indices: Pointer, bits: Pointer, partial: Pointer, lse: Pointer, sequences: (Sequences), heads: i32, kv_heads: i32, select_block: i32, select_count: i32, chunk_first: i32,
        chunk_tokens: i32, sub_tokens: i32, most_blocks: i32, scale: f32,
    }
}

arguments! {
    Finish: nsa_finish | nsa_finish_hopper {
        q: Pointer, k: Pointer, v: Pointer, partial: Pointer, lse: Pointer, o: Pointer, indices: Pointer, reads: Pointer,
        bits: Pointer, gates: (Gates), sequences: (Sequences), heads: i32, kv_heads: i32, select_block: i32, select_count: i32, chunk_first: i32,
        chunk_tokens: i32, initial_blocks: i32, local_blocks: i32, bit_words: i32, accumulate: i32, scale: f32,
    }
}

/// Adds the selected branch of the chunk from query `first` on.
fn selected(
    problem: &NsaProblem,
    operands: &Operands,
    planner: &mut Planner<'_>,
    (selection, first): (&Selection, usize),
    scratch: &Scratch,
) -> Result<(), DeviceError> {
    let (shape, compute) = (Shape::of(problem), planner.here().compute);
    let chunk = selection.chunk;
    let batch = operands.batch as u32;

    let blocks = shape.blocks(compute);
    let kernel = planner.kernel(&blocks.source)?;
    let args = Blocks {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        indices: &operands.indices,
        bits: &scratch.bits,
        partial: &scratch.partial,
        lse: &scratch.sums,
        sequences: operands.sequences(),
        heads: operands.heads,
        kv_heads: operands.kv_heads as i32,
        select_block: problem.select_block as i32,
        select_count: problem.select_count as i32,
        chunk_first: first as i32,
        chunk_tokens: chunk as i32,
        sub_tokens: shape.stretch as i32,
        most_blocks: int(selection.most_blocks)?,
        scale: problem.scale as f32,
    };
    let all = selection.most_blocks as u32 * operands.head_slabs();
    let grid = [all, chunk.div_ceil(shape.stretch) as u32, batch];
    let launch = Launch::new(grid, blocks.threads as u32, blocks.shared_bytes as u32);
    planner.launch(kernel, launch, args);

    let finish = shape.finish(compute);
    let kernel = planner.kernel(&finish.source)?;
    let args = Finish {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        partial: &scratch.partial,
        lse: &scratch.sums,
        o: &operands.o,
        indices: &operands.indices,
        reads: &operands.reads,
        bits: &scratch.bits,
        gates: operands.gates(),
        sequences: operands.sequences(),
        heads: operands.heads,
        kv_heads: operands.kv_heads as i32,
        select_block: problem.select_block as i32,
        select_count: problem.select_count as i32,
        chunk_first: first as i32,
        chunk_tokens: chunk as i32,
        initial_blocks: selection.initial_blocks as i32,
        local_blocks: selection.local_blocks as i32,
        bit_words: int(scratch.words)?,
        accumulate: i32::from(problem.branches.compressed),
        scale: problem.scale as f32,
    };
    let grid = [chunk.div_ceil(FINISH_QUERIES) as u32, operands.head_slabs(), batch];
    let launch = Launch::new(grid, finish.threads as u32, finish.shared_bytes as u32);
    planner.launch(kernel, launch, args);
    Ok(())
}
