//! `decode`: the keys are shared out among blocks, and a second kernel puts the parts together. Runs on every GPU from
//! compute capability 8.0 on. The contracts stand in `decode.cu` and `combine.cu`.

use super::operands::{Operands, not_half, shape_macros};
use crate::attention::AttentionProblem;
use crate::cuda::{CudaVariant, Planner};
use crate::{ChoiceTable, DType};
use device::cuda::{
    Args, ComputeCapability, CudaCapabilities, CudaError, GpuArch, Kernel, KernelSource, Launch,
};

pub(super) const VARIANT: CudaVariant<AttentionProblem> =
    CudaVariant { name: "decode", why_not, plan };

const DECODE: &[&str] = &[include_str!("../../cuda/ampere.cuh"), include_str!("decode.cu")];
const COMBINE: &[&str] = &[include_str!("../../cuda/ampere.cuh"), include_str!("combine.cu")];

/// A row of the tile table.
#[derive(Debug)]
struct Tile {
    /// The larger of D and Dv, at most.
    channels: usize,
    /// Rows (queries times heads of a group) of a sequence, at most.
    rows: usize,
    block_rows: usize,
    block_keys: usize,
    warps: usize,
    stages: usize,
    /// Blocks that a multiprocessor must be able to hold: caps the registers.
    blocks: usize,
}

const ANY: usize = usize::MAX;

const fn tile(
    [channels, rows]: [usize; 2],
    [block_rows, block_keys, warps, stages, blocks]: [usize; 5],
) -> Tile {
    Tile { channels, rows, block_rows, block_keys, warps, stages, blocks }
}

/// The first row that fits and whose shared memory the GPU has.
const TILES: &[Tile] = &[
    tile([64, 16], [16, 128, 4, 3, 2]),
    tile([128, 16], [16, 64, 4, 3, 2]),
    tile([256, 16], [16, 32, 4, 3, 2]),
    tile([128, ANY], [64, 64, 4, 2, 2]),
    tile([320, ANY], [64, 64, 8, 1, 1]),
    tile([512, ANY], [64, 32, 8, 1, 1]),
    tile([576, ANY], [32, 32, 8, 2, 1]),
    tile([768, ANY], [32, 32, 8, 1, 1]),
    tile([1024, 16], [16, 16, 8, 2, 1]),
    tile([1024, ANY], [32, 16, 8, 2, 1]),
    // For GPUs with 99 KB of shared memory.
    tile([512, ANY], [32, 16, 4, 1, 1]),
    tile([1024, ANY], [16, 16, 4, 1, 1]),
];

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| {
        let most = |limit: usize| if limit == ANY { "any".to_owned() } else { limit.to_string() };
        vec![
            most(tile.channels),
            most(tile.rows),
            tile.block_rows.to_string(),
            tile.block_keys.to_string(),
            tile.warps.to_string(),
            tile.stages.to_string(),
        ]
    };
    ChoiceTable {
        title: "tile of decode: the first row that fits and whose shared memory the GPU has",
        columns: &["channels up to", "rows up to", "rows", "keys", "warps", "stages"],
        rows: TILES.iter().map(row).collect(),
    }
}

/// Bytes of a row of `channels` in shared memory: padded so that columns meet different banks.
fn row_bytes(channels: usize) -> usize {
    let padded = channels.next_multiple_of(16);
    2 * padded + if padded.is_multiple_of(64) { 0 } else { 16 }
}

impl Tile {
    /// `SHARED_BYTES` of `decode.cu`.
    fn shared_bytes(&self, head_dim: usize, value_dim: usize) -> usize {
        let split_keys = self.warps.min(self.block_keys / 16);
        let split_depth = self.warps / split_keys;
        let scores = self.block_rows * (self.block_keys + 8);
        self.stages * self.block_keys * (row_bytes(head_dim) + row_bytes(value_dim))
            + self.block_rows * row_bytes(head_dim)
            + 4 * split_depth * scores
            + 2 * scores
            + 12 * self.block_rows
            + 4 * (self.stages + 1) * self.block_keys
    }
}

/// Rows of the matrix products of one sequence and key head.
fn rows(problem: &AttentionProblem) -> usize {
    problem.queries.longest() * (problem.heads / problem.kv_heads)
}

fn choose(problem: &AttentionProblem, here: &CudaCapabilities) -> Option<&'static Tile> {
    let (head_dim, value_dim) = (problem.head_dim, problem.value_dim);
    TILES.iter().find(|tile| {
        head_dim.max(value_dim) <= tile.channels
            && rows(problem) <= tile.rows
            && tile.shared_bytes(head_dim, value_dim) <= here.shared_bytes as usize
    })
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
    if choose(problem, here).is_none() {
        return Some(format!(
            "no tile for D {} and Dv {} fits the {} bytes of shared memory of a block here",
            problem.head_dim, problem.value_dim, here.shared_bytes
        ));
    }
    not_half(problem)
}

fn source(dtype: DType, dims: (usize, usize), tile: &Tile, arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("attention_decode", DECODE, arch), dtype, dims)
        .define("BLOCK_ROWS", tile.block_rows)
        .define("BLOCK_KEYS", tile.block_keys)
        .define("WARPS", tile.warps)
        .define("STAGES", tile.stages)
        .define("BLOCKS_PER_SM", tile.blocks)
}

fn combine_source(dtype: DType, value_dim: usize, arch: GpuArch) -> KernelSource {
    let source = KernelSource::new("attention_combine", COMBINE, arch);
    source.define("DV", value_dim).define("DTYPE", dtype)
}

fn plan(problem: &AttentionProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (head_dim, value_dim) = (problem.head_dim, problem.value_dim);
    let Some(tile) = choose(problem, planner.here()) else {
        return Err(CudaError::Refused { what: format!("decode has no tile for D {head_dim}") });
    };
    let arch = planner.arch();
    let kernel =
        planner.kernel(&source(problem.dtype, (head_dim, value_dim), tile, arch.clone()))?;
    let operands = Operands::new(problem, planner)?;
    let threads = 32 * tile.warps as u32;
    let shared = tile.shared_bytes(head_dim, value_dim) as u32;
    let row_blocks = rows(problem).div_ceil(tile.block_rows);
    let slots =
        kernel.blocks_per_multiprocessor(threads, shared)?.max(1) * planner.here().multiprocessors;
    let sequences = problem.queries.count();
    let splits = splits(
        sequences * problem.kv_heads * row_blocks,
        slots as usize,
        problem.keys.longest().div_ceil(tile.block_keys),
    );
    let query_rows = problem.queries.total() * problem.heads;
    let partial = if splits > 1 {
        let values = planner.scratch(splits * query_rows * value_dim)?;
        Some((values, planner.scratch(splits * query_rows)?))
    } else {
        None
    };
    let args = Args::new()
        .buffer(&operands.q)
        .buffer(&operands.k)
        .buffer(&operands.v)
        .buffer(&operands.o)
        .buffer(&operands.lse)
        .maybe(partial.as_ref().map(|(values, _)| &**values))
        .maybe(partial.as_ref().map(|(_, lse)| &**lse))
        .maybe(operands.cu_queries.as_deref())
        .maybe(operands.cu_keys.as_deref())
        .maybe(operands.key_counts.as_deref())
        .maybe(operands.block_table.as_deref())
        .i32(operands.queries)
        .i32(operands.keys)
        .i32(operands.total)
        .i32(operands.heads)
        .i32(operands.kv_heads)
        .i32(operands.block_size)
        .i32(operands.max_blocks)
        .i32(operands.window_left)
        .i32(operands.window_right)
        .f32(operands.scale)
        .f32(operands.softcap);
    let grid = [(problem.kv_heads * row_blocks) as u32, splits as u32, sequences as u32];
    planner.launch(kernel, Launch::new(grid, threads, shared), args);
    if let Some((values, lse)) = &partial {
        let kernel = planner.kernel(&combine_source(problem.dtype, value_dim, arch))?;
        combine(planner, kernel, &operands, (values, lse), (splits, query_rows));
    }
    Ok(())
}

fn combine(
    planner: &mut Planner<'_>,
    kernel: Kernel,
    operands: &Operands,
    (values, lse): (&device::cuda::Buffer, &device::cuda::Buffer),
    (splits, query_rows): (usize, usize),
) {
    let args = Args::new()
        .buffer(values)
        .buffer(lse)
        .buffer(&operands.o)
        .buffer(&operands.lse)
        .maybe(operands.cu_queries.as_deref())
        .i32(splits as i32)
        .i32(query_rows as i32)
        .i32(operands.heads)
        .i32(operands.queries);
    let mut launch = Launch::new([query_rows as u32, 1, 1], 256, 0);
    // Its start overlaps the end of the parts; it waits for them itself.
    launch.overlaps = planner.here().compute >= ComputeCapability::new(9, 0);
    planner.launch(kernel, launch, args);
}

/// Shares of the keys: the fewest whose last wave of blocks is nearly as full as that of any other number. Each share
/// has at least two tiles of keys.
fn splits(blocks: usize, slots: usize, key_tiles: usize) -> usize {
    let most = (key_tiles / 2).clamp(1, 128);
    let filling = |splits: usize| {
        let waves = (blocks * splits) as f64 / slots as f64;
        if waves == 0.0 { 1.0 } else { waves / waves.ceil() }
    };
    let best = (1..=most).map(filling).fold(0.0, f64::max);
    (1..=most).find(|splits| filling(*splits) >= 0.95 * best).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_the_gpu_and_no_more() {
        for (blocks, slots, key_tiles, expect) in [
            (8, 264, 512, 32),
            (64, 264, 512, 4),
            (264, 264, 512, 1),
            (1000, 264, 512, 1),
            (8, 264, 4, 2),
            (8, 264, 0, 1),
            (0, 264, 512, 1),
        ] {
            assert_eq!(splits(blocks, slots, key_tiles), expect, "{blocks} {slots} {key_tiles}");
        }
    }

    #[test]
    fn shared_memory_is_what_the_kernel_declares() {
        // 3 stages of 64 keys and values of 256 bytes, 16 queries, scores, weights, row data and row numbers.
        let small = &TILES[1];
        assert_eq!(
            small.shared_bytes(128, 128),
            3 * 64 * 512 + 16 * 256 + 4 * 16 * 72 + 2 * 16 * 72 + 12 * 16 + 4 * 4 * 64
        );
        assert_eq!(row_bytes(60), 128);
        assert_eq!(row_bytes(72), 176);
    }
}
