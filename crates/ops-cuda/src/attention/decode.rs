//! `decode`: split-KV attention, in which blocks process parts of the keys and a second kernel combines their results. Runs on
//! every GPU from compute capability 8.0 on. The contracts are in `decode.cu` and `combine.cu`.

use super::combine::{self, Parts, keys_seen, splits};
use super::decode_tiles::{ANY, Tile, Widths, choose};
use super::operands::{KvStrides, Operands, not_half, shape_macros};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    SourcePart,
};
use ops::DType;
use ops::attention::AttentionProblem;

pub(super) const VARIANT: CudaVariant<AttentionProblem> =
    CudaVariant { name: "decode", why_not, plan };

const DECODE: &[SourcePart] =
    &[source!("../include/ampere.cuh"), source!("split.cuh"), source!("decode.cu")];

/// Rows of the MMA tiles of one key head: queries of the longest sequence times query heads per key head.
fn rows(problem: &AttentionProblem) -> usize {
    problem.queries.longest() * problem.group()
}

/// Common shapes for the bundle, for one query and for many.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    const DIMS: [(usize, usize); 7] =
        [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)];
    // MLA: latent caches of 512 + 64 channels.
    let latent = Widths { head_dim: 576, value_dim: 512, in_keys: true };
    let mut wanted: Vec<_> = [32, ANY].map(|rows| (DType::Bf16, latent, rows)).into();
    for dtype in [DType::Bf16, DType::F16] {
        for dims in DIMS {
            wanted.extend([16, ANY].map(|rows| (dtype, Widths::apart(dims), rows)));
        }
    }
    let mut sources = Vec::new();
    for (dtype, widths, rows) in wanted {
        if let Some(tile) = choose(widths, rows, arch.shared_bytes) {
            sources.push(source(dtype, widths, &tile, arch.arch()));
            sources.push(combine::source(dtype, widths.value_dim, arch.arch()));
        }
    }
    sources
}

fn why_not(problem: &AttentionProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    for (name, channels) in [("D", problem.head_dim), ("Dv", problem.value_dim)] {
        if channels > 1024 {
            return Some(format!("needs {name} up to 1024, got {channels}"));
        }
    }
    if choose(Widths::of(problem), rows(problem), here.shared_bytes).is_none() {
        return Some(format!(
            "no tile for D {} and Dv {} fits the {} bytes of shared memory of a block here",
            problem.head_dim, problem.value_dim, here.shared_bytes
        ));
    }
    not_half(problem)
}

fn source(dtype: DType, widths: Widths, tile: &Tile, arch: GpuArch) -> KernelSource {
    let dims = (widths.head_dim, widths.value_dim / tile.value_splits);
    let mut source = KernelSource::new("attention_decode", DECODE, arch);
    if widths.in_keys {
        source = source.define("VALUES_IN_KEYS", 1);
    }
    shape_macros(source, dtype, dims)
        .define("SPLIT_ROWS", tile.split_rows)
        .define("KEY_STAGES", tile.key_stages)
        .define("VALUE_SPLITS", tile.value_splits)
        .define("BLOCK_ROWS", tile.block_rows)
        .define("BLOCK_KEYS", tile.block_keys)
        .define("WARPS", tile.warps)
        .define("STAGES", tile.stages)
        .define("BLOCKS_PER_SM", tile.blocks)
}

arguments! {
    AttentionDecode: attention_decode {
        q: Pointer, k: Pointer, v: Pointer, o: Pointer, lse: Pointer, partial_o: Nullable, partial_lse: Nullable, cu_q: Nullable,
        cu_k: Nullable, cache_seqlens: Nullable, block_table: Nullable, tq: i32, tk: i32, total_q: i32, heads: i32,
        kv_heads: i32, block_size: i32, max_blocks: i32, longest: i32, kv_strides: (KvStrides), window_left: i32, window_right: i32, scale: f32, softcap: f32,
    }
}

fn plan(problem: &AttentionProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let widths @ Widths { head_dim, .. } = Widths::of(problem);
    let Some(tile) = choose(widths, rows(problem), planner.here().shared_bytes) else {
        return Err(DeviceError::Refused { what: format!("decode has no tile for D {head_dim}") });
    };
    let arch = planner.arch();
    let kernel = planner.kernel(&source(problem.dtype, widths, &tile, arch.clone()))?;
    let operands = Operands::new(problem, planner)?;
    let threads = 32 * tile.warps as u32;
    let shared = tile.shared_bytes(widths) as u32;
    let row_blocks = rows(problem).div_ceil(tile.block_rows);
    let slots =
        kernel.blocks_per_multiprocessor(threads, shared)?.max(1) * planner.here().multiprocessors;
    let seen = keys_seen(problem);
    let blocks_of_share = problem.kv_heads * row_blocks * tile.value_splits;
    let splits = splits(&seen, blocks_of_share, slots as usize, tile.block_keys);
    let parts = Parts::new(problem, planner, splits)?;
    let [partial_o, partial_lse] = parts.buffers();
    let args = AttentionDecode {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        o: &operands.o,
        lse: &operands.lse,
        partial_o,
        partial_lse,
        cu_q: operands.cu_queries.as_deref(),
        cu_k: operands.cu_keys.as_deref(),
        cache_seqlens: operands.key_counts.as_deref(),
        block_table: operands.block_table.as_deref(),
        tq: operands.queries,
        tk: operands.keys,
        total_q: operands.total,
        heads: operands.heads,
        kv_heads: operands.kv_heads,
        block_size: operands.block_size,
        max_blocks: operands.max_blocks,
        longest: seen.iter().copied().max().unwrap_or(0) as i32,
        kv_strides: operands.kv_strides(),
        window_left: operands.window_left,
        window_right: operands.window_right,
        scale: operands.scale,
        softcap: operands.softcap,
    };
    let grid = [blocks_of_share as u32, splits as u32, operands.batch as u32];
    let launch = planner.overlapping(Launch::new(grid, threads, shared));
    planner.launch(kernel, launch, args);
    parts.combine(problem, &operands, planner)
}
