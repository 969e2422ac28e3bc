//! `cluster`: a decode step in one launch, a thread block cluster for each query and key head. The contract is in
//! `step_cluster.cu`.

use super::operands::{Gates, HOPPER, Operands, Sequences, shape_macros};
use super::stages::{self, compress};
use super::step::attend_bytes;
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    Part,
};
use ops::nsa::NsaProblem;
use ops::{ChoiceTable, DType};

pub(super) const VARIANT: CudaVariant<NsaProblem> = CudaVariant { name: "cluster", why_not, plan };

const PARTS: &[Part] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("step.cuh"),
    source!("importance.cuh"),
    source!("step_select.cuh"),
    source!("step_cluster.cu"),
];

/// Blocks of a cluster: the portable maximum.
const CLUSTER: usize = 8;
/// Warps of a block, and tokens that each reads at a time: the first useful pair that fits in shared memory.
const TILES: &[(usize, usize)] = &[(8, 32), (8, 16), (4, 16)];
/// Most queries of a sequence: each reads its tokens separately.
const MOST_QUERIES: usize = 64;
/// Most blocks of a query that are ordered by counting.
const MOST_BLOCKS: usize = 1024;
/// Most heads of a group: the rows of one product.
const MOST_GROUP: usize = 16;
/// Most static shared memory of the kernel.
const STATIC_BYTES: usize = 6144;

/// Data-center GPUs from Hopper on; small GPUs of later generations have too small clusters and too little shared
/// memory.
fn has_clusters(compute: ComputeCapability, shared_bytes: u32) -> bool {
    compute >= HOPPER && shared_bytes >= 227 << 10
}

/// Compressed tokens of a block, of all, and select blocks, of the longest sequence.
fn counts(problem: &NsaProblem) -> [usize; 3] {
    let keys = problem.keys.longest();
    let tokens = problem.compressed_tokens(keys);
    let blocks = keys.div_ceil(problem.select_block).max(1);
    [tokens.div_ceil(CLUSTER).max(1), tokens, blocks]
}

/// Keys, and their rounding errors: none if the compressed keys are an input.
fn key_copies(problem: &NsaProblem) -> usize {
    if problem.given_compressed.is_some() { 1 } else { 2 }
}

fn shared_bytes(problem: &NsaProblem, tile: (usize, usize)) -> usize {
    let dims = (problem.head_dim, problem.value_dim);
    let [share, tokens, blocks] = counts(problem);
    // Each block and branch receives values of 16 columns by 16 rows, and two values per row.
    let own_pieces = problem.value_dim.div_ceil(16).div_ceil(CLUSTER);
    let inbox = 3 * CLUSTER * (own_pieces * 256 + 32);
    attend_bytes(dims, tile, key_copies(problem))
        + DType::F32.bytes() * (inbox + 16 * share + tokens + blocks + problem.select_count)
}

/// Large tiles if a block has more compressed tokens than small ones take at once; few warps if not all clusters run
/// at once, so that an SM has several resident blocks.
fn choose(problem: &NsaProblem, here: &CudaCapabilities) -> Option<(usize, usize)> {
    let most = (here.shared_bytes as usize).saturating_sub(STATIC_BYTES);
    let [share, ..] = counts(problem);
    let clusters = problem.queries.count() * problem.queries.longest() * problem.kv_heads;
    let at_once = clusters * CLUSTER <= here.multiprocessors as usize;
    let (fewest, smallest) = TILES[TILES.len() - 1];
    let of_use = |&(warps, tile): &(usize, usize)| {
        (at_once || warps == fewest) && (tile == smallest || share > warps * smallest)
    };
    let mut tiles = TILES.iter().copied().filter(of_use);
    tiles.find(|tile| shared_bytes(problem, *tile) <= most)
}

fn source(
    dtype: DType,
    dims: (usize, usize),
    ((warps, tile), key_copies): ((usize, usize), usize),
    arch: GpuArch,
) -> KernelSource {
    shape_macros(KernelSource::new("nsa_step_cluster", PARTS, arch), dtype, dims)
        .define("TILE", tile)
        .define("WARPS", warps)
        .define("KEY_COPIES", key_copies)
        .define("CLUSTER", CLUSTER)
}

/// Common shapes over a cache that keeps its compressed tokens, for the bundle.
pub(super) fn bundled(dtype: DType, dims: (usize, usize), arch: &BundledArch) -> Vec<KernelSource> {
    if !has_clusters(arch.compute, arch.shared_bytes) {
        return Vec::new();
    }
    TILES.iter().map(|tile| source(dtype, dims, (*tile, 1), arch.arch())).collect()
}

pub(super) fn table() -> ChoiceTable {
    ChoiceTable {
        title: "tile of nsa_step_cluster: the first whose shared memory the GPU has, the last where not all clusters run at \
                once; 32 tokens only for more than the second takes",
        columns: &["warps", "tokens of a warp", "blocks of a cluster"],
        rows: TILES
            .iter()
            .map(|(warps, tile)| [*warps, *tile, CLUSTER].iter().map(usize::to_string).collect())
            .collect(),
    }
}

fn why_not(problem: &NsaProblem, here: &CudaCapabilities) -> Option<String> {
    if !has_clusters(here.compute, here.shared_bytes) {
        return Some(format!(
            "needs clusters of {CLUSTER} blocks: compute capability 9.0 to 10.3, this GPU has {}",
            here.compute
        ));
    }
    if !problem.selects() {
        return Some("needs a selected branch without given blocks".to_owned());
    }
    let queries = problem.queries.longest();
    let rows = problem.queries.count() * queries;
    for (what, got, most) in [
        ("queries in a sequence", queries, MOST_QUERIES),
        ("queries in all", rows, 65_535),
        ("heads in a group", problem.group(), MOST_GROUP),
        ("blocks of a query", problem.select_count, MOST_BLOCKS),
    ] {
        if got > most {
            return Some(format!("needs up to {most} {what}, got {got}"));
        }
    }
    if choose(problem, here).is_none() {
        let needed = shared_bytes(problem, TILES[TILES.len() - 1]) + STATIC_BYTES;
        let shared = here.shared_bytes;
        return Some(format!("needs {needed} bytes of shared memory of a block, got {shared}"));
    }
    stages::why_not(problem, here)
}

arguments! {
    StepCluster: nsa_step_cluster {
        q: Pointer, k: Pointer, v: Pointer, k_cmp: Pointer, k_rest: Nullable, v_cmp: Nullable, o: Pointer, indices: Pointer,
        reads: Pointer, gates: (Gates), sequences: (Sequences), heads: i32, kv_heads: i32, block: i32, stride: i32, rows_each: i32, most_share: i32,
        most_tokens: i32, most_blocks: i32, select_block: i32, select_count: i32, initial_blocks: i32, local_blocks: i32,
        window: i32, scale: f32,
    }
}

fn plan(problem: &NsaProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let dims = (problem.head_dim, problem.value_dim);
    let Some(tile) = choose(problem, planner.here()) else {
        return Err(DeviceError::Refused { what: format!("cluster has no tile for D {}", dims.0) });
    };
    let operands = Operands::new(problem, planner)?;
    let Some(compressed) = compress(problem, &operands, planner)? else {
        return Err(DeviceError::Refused {
            what: "cluster selects by compressed tokens".to_owned(),
        });
    };
    let macros = (tile, key_copies(problem));
    let kernel = planner.kernel(&source(problem.dtype, dims, macros, planner.arch()))?;
    let [share, tokens, blocks] = counts(problem);
    let args = StepCluster {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        k_cmp: &compressed.keys,
        k_rest: compressed.rest.as_deref(),
        v_cmp: compressed.values.as_deref(),
        o: &operands.o,
        indices: &operands.indices,
        reads: &operands.reads,
        gates: operands.gates(),
        sequences: operands.sequences(),
        heads: operands.heads,
        kv_heads: operands.kv_heads as i32,
        block: problem.compress_block as i32,
        stride: problem.compress_stride as i32,
        rows_each: int(compressed.rows_each)?,
        most_share: int(share)?,
        most_tokens: int(tokens)?,
        most_blocks: int(blocks)?,
        select_block: problem.select_block as i32,
        select_count: problem.select_count as i32,
        initial_blocks: int(problem.initial_blocks)?,
        local_blocks: int(problem.local_blocks)?,
        window: problem.window as i32,
        scale: problem.scale as f32,
    };
    let rows = operands.batch * operands.queries;
    let grid = [CLUSTER as u32, operands.kv_heads as u32, rows as u32];
    let shared = shared_bytes(problem, tile) as u32;
    let launch = Launch::new(grid, 32 * tile.0 as u32, shared);
    planner.launch(kernel, launch, args);
    Ok(())
}
