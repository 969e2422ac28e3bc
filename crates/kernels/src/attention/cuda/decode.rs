//! `decode`: the keys are shared out among blocks, and a second kernel puts the parts together. Runs on every GPU from
//! compute capability 8.0 on. The contracts stand in `decode.cu` and `combine.cu`.

use super::operands::{Operands, not_half, shape_macros};
use crate::attention::AttentionProblem;
use crate::cuda::{CudaVariant, Planner};
use crate::{ChoiceTable, DType};
use device::cuda::{
    Args, BundledArch, ComputeCapability, CudaCapabilities, CudaError, GpuArch, Kernel,
    KernelSource, Launch,
};

pub(super) const VARIANT: CudaVariant<AttentionProblem> =
    CudaVariant { name: "decode", why_not, plan };

const DECODE: &[&str] = &[include_str!("../../cuda/ampere.cuh"), include_str!("decode.cu")];
const COMBINE: &[&str] = &[include_str!("../../cuda/ampere.cuh"), include_str!("combine.cu")];

/// A row of the tile table. The fields from `block_rows` on are macros of `decode.cu`.
#[derive(Debug)]
struct Tile {
    /// The larger of D and Dv, at most.
    channels: usize,
    /// Rows (queries times heads of a group) of a sequence, at most.
    rows: usize,
    block_rows: usize,
    block_keys: usize,
    warps: usize,
    split_rows: usize,
    stages: usize,
    key_stages: usize,
    value_splits: usize,
    /// Blocks that a multiprocessor must be able to hold: caps the registers.
    blocks: usize,
}

const ANY: usize = usize::MAX;

/// A tile for few rows.
const fn few(channels: usize, [block_keys, warps, stages, blocks]: [usize; 4]) -> Tile {
    Tile { rows: 16, ..many(channels, [16, block_keys, warps, 1, stages, blocks]) }
}

/// A tile for any number of rows.
const fn many(
    channels: usize,
    [block_rows, block_keys, warps, split_rows, stages, blocks]: [usize; 6],
) -> Tile {
    Tile {
        channels,
        rows: ANY,
        block_rows,
        block_keys,
        warps,
        split_rows,
        stages,
        key_stages: stages,
        value_splits: 1,
        blocks,
    }
}

/// The first row that fits and whose shared memory the GPU has: measured in `README-decode.md` (few rows) and
/// `README-mma.md` (many). Where several rows have the same channels, the later ones are for less shared memory.
const TILES: &[Tile] = &[
    few(32, [128, 8, 3, 2]),
    few(64, [64, 4, 2, 4]),
    few(96, [64, 4, 2, 3]),
    few(128, [64, 4, 2, 2]),
    few(192, [32, 4, 4, 2]),
    few(192, [32, 4, 2, 2]),
    few(256, [32, 4, 2, 2]),
    few(512, [32, 8, 2, 1]),
    few(512, [16, 4, 2, 1]),
    few(1024, [16, 8, 2, 1]),
    few(960, [16, 4, 1, 1]),
    many(128, [64, 64, 4, 1, 2, 2]),
    many(128, [32, 32, 4, 1, 2, 2]),
    many(256, [64, 32, 8, 1, 1, 1]),
    many(256, [32, 32, 4, 1, 1, 1]),
    many(320, [64, 64, 8, 1, 1, 1]),
    many(320, [64, 32, 8, 2, 1, 1]),
    many(320, [32, 32, 4, 2, 1, 1]),
    many(384, [64, 64, 16, 2, 1, 1]),
    many(384, [64, 32, 8, 2, 1, 1]),
    many(384, [32, 16, 4, 2, 1, 1]),
    many(512, [64, 32, 8, 1, 1, 1]),
    many(512, [64, 32, 8, 2, 1, 1]),
    many(512, [32, 16, 4, 2, 1, 1]),
    many(576, [64, 32, 16, 2, 1, 1]),
    many(576, [32, 16, 8, 2, 1, 1]),
    many(576, [32, 16, 4, 2, 1, 1]),
    many(640, [64, 32, 8, 2, 1, 1]),
    Tile { key_stages: 2, ..many(768, [32, 32, 16, 2, 1, 1]) },
    many(768, [32, 16, 8, 2, 1, 1]),
    many(896, [32, 32, 8, 1, 1, 1]),
    many(960, [32, 32, 8, 1, 1, 1]),
    many(1024, [32, 32, 16, 2, 1, 1]),
    many(1024, [32, 16, 8, 2, 1, 1]),
    many(960, [16, 16, 4, 1, 1, 1]),
    Tile { value_splits: 2, ..many(1024, [16, 16, 4, 1, 1, 1]) },
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
            tile.split_rows.to_string(),
            tile.stages.to_string(),
            tile.key_stages.to_string(),
            tile.value_splits.to_string(),
        ]
    };
    ChoiceTable {
        title: "tile of decode: the first row that fits and whose shared memory the GPU has",
        columns: &[
            "channels up to",
            "rows up to",
            "rows",
            "keys",
            "warps",
            "split rows",
            "stages",
            "key stages",
            "value splits",
        ],
        rows: TILES.iter().map(row).collect(),
    }
}

/// Bytes of a row of `channels` in shared memory: padded so that columns meet different banks.
pub(super) fn row_bytes(channels: usize) -> usize {
    let padded = channels.next_multiple_of(16);
    2 * padded + if padded.is_multiple_of(64) { 0 } else { 16 }
}

impl Tile {
    /// `SHARED_BYTES` of `decode.cu`.
    fn shared_bytes(&self, head_dim: usize, value_dim: usize) -> usize {
        let key_warps = self.warps / self.split_rows;
        let split_keys = key_warps.min(self.block_keys / 16);
        let split_depth = key_warps / split_keys;
        let scores = self.block_rows * (self.block_keys + 8);
        let keys = self.key_stages * row_bytes(head_dim);
        let values = self.stages * row_bytes(value_dim / self.value_splits);
        self.block_keys * (keys + values)
            + self.block_rows * row_bytes(head_dim)
            + 4 * split_depth * scores
            + 2 * scores
            + 12 * self.block_rows
            + 4 * (self.key_stages + 1) * self.block_keys
    }

    /// Whether it is for these channels: columns that blocks share must be whole vectors.
    fn takes(&self, (head_dim, value_dim): (usize, usize)) -> bool {
        head_dim.max(value_dim) <= self.channels
            && (self.value_splits == 1 || value_dim.is_multiple_of(16 * self.value_splits))
    }
}

/// Rows of the matrix products of one sequence and key head.
fn rows(problem: &AttentionProblem) -> usize {
    problem.queries.longest() * (problem.heads / problem.kv_heads)
}

fn choose(dims: (usize, usize), rows: usize, shared_bytes: u32) -> Option<&'static Tile> {
    TILES.iter().find(|tile| {
        tile.takes(dims)
            && rows <= tile.rows
            && tile.shared_bytes(dims.0, dims.1) <= shared_bytes as usize
    })
}

/// Common shapes, for the bundle: one query and many.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    const DIMS: [(usize, usize); 7] =
        [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)];
    let mut sources = Vec::new();
    for dtype in [DType::Bf16, DType::F16] {
        for dims in DIMS {
            for rows in [16, ANY] {
                if let Some(tile) = choose(dims, rows, arch.shared_bytes) {
                    sources.push(source(dtype, dims, tile, arch.arch()));
                    sources.push(combine_source(dtype, dims.1, arch.arch()));
                }
            }
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
    let dims = (problem.head_dim, problem.value_dim);
    if choose(dims, rows(problem), here.shared_bytes).is_none() {
        return Some(format!(
            "no tile for D {} and Dv {} fits the {} bytes of shared memory of a block here",
            problem.head_dim, problem.value_dim, here.shared_bytes
        ));
    }
    not_half(problem)
}

fn source(dtype: DType, dims: (usize, usize), tile: &Tile, arch: GpuArch) -> KernelSource {
    let dims = (dims.0, dims.1 / tile.value_splits);
    shape_macros(KernelSource::new("attention_decode", DECODE, arch), dtype, dims)
        .define("SPLIT_ROWS", tile.split_rows)
        .define("KEY_STAGES", tile.key_stages)
        .define("VALUE_SPLITS", tile.value_splits)
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
    let shared_bytes = planner.here().shared_bytes;
    let Some(tile) = choose((head_dim, value_dim), rows(problem), shared_bytes) else {
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
    let seen = keys_seen(problem);
    let blocks_of_share = problem.kv_heads * row_blocks * tile.value_splits;
    let splits = splits(&seen, blocks_of_share, slots as usize, tile.block_keys);
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
        .i32(seen.iter().copied().max().unwrap_or(0) as i32)
        .i32(operands.window_left)
        .i32(operands.window_right)
        .f32(operands.scale)
        .f32(operands.softcap);
    let grid = [blocks_of_share as u32, splits as u32, operands.batch as u32];
    let launch = planner.overlapping(Launch::new(grid, threads, shared));
    planner.launch(kernel, launch, args);
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
    let launch = planner.overlapping(Launch::new([query_rows as u32, 1, 1], 256, 0));
    planner.launch(kernel, launch, args);
}

/// Keys that the queries of each sequence see together.
fn keys_seen(problem: &AttentionProblem) -> Vec<usize> {
    let seen = |(queries, keys)| problem.mask.visible_to_any(queries, keys, 0..queries).len();
    problem.lengths().map(seen).collect()
}

/// Shares that the keys of the longest sequence are cut into; shorter ones get fewer. `README-decode.md` derives it:
/// waves of blocks, times the tiles of a block and two more that starting and ending one costs.
fn splits(seen: &[usize], blocks_of_share: usize, slots: usize, block_keys: usize) -> usize {
    let tiles: Vec<usize> = seen.iter().map(|keys| keys.div_ceil(block_keys)).collect();
    let most = tiles.iter().copied().max().unwrap_or(0).max(1);
    let cost = |splits: usize| {
        let shares = |tiles: &usize| splits.min((tiles * splits).div_ceil(most));
        let blocks = blocks_of_share * tiles.iter().map(shares).sum::<usize>();
        blocks.div_ceil(slots) as f64 * (most as f64 / splits as f64 + 2.0)
    };
    let mut best = 1;
    for splits in 2..=most.min(256) {
        if cost(splits) < cost(best) {
            best = splits;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_has_a_tile_on_every_bundled_gpu() {
        for gpu in BundledArch::ALL {
            for dim in (16..=960).step_by(16).chain([1024]) {
                for rows in [1, 16, 17, 4096] {
                    let tile = choose((dim, dim), rows, gpu.shared_bytes);
                    assert!(tile.is_some(), "{} D {dim} rows {rows}", gpu.arch());
                }
            }
        }
    }

    #[test]
    fn splits_follow_the_rule() {
        let check = |seen: &[usize], blocks, expect| {
            assert_eq!(splits(seen, blocks, 264, 64), expect, "{seen:?} {blocks}");
        };
        // One sequence over eight key heads: every block in the one wave there is room for.
        check(&[32768], 8, 33);
        // Enough sequences fill the GPU by themselves.
        check(&[1024; 264], 1, 1);
        check(&[], 8, 1);
        check(&[0, 0], 8, 1);
        check(&[1], 8, 1);
    }

    #[test]
    fn shared_memory_is_what_the_kernel_declares() {
        // `SHARED_BYTES` of decode.cu for the tiles of README-decode.md, which the compiler was asked for.
        for (dims, expect) in [
            ((32, 32), 78_016),
            ((64, 64), 42_688),
            ((96, 96), 64_448),
            ((128, 128), 77_504),
            ((192, 192), 111_680),
            ((256, 256), 80_704),
            ((512, 512), 159_552),
            ((1024, 1024), 177_280),
        ] {
            let tile = choose(dims, 16, 227 << 10).unwrap();
            assert_eq!(tile.shared_bytes(dims.0, dims.1), expect, "{dims:?}");
        }
        assert_eq!(row_bytes(60), 128);
        assert_eq!(row_bytes(72), 176);
    }
}
