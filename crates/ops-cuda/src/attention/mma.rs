//! `mma`: mma.sync attention for any D up to 256, on every GPU from compute capability 8.0 on. The contract is in `mma.cu`.

use super::decode_tiles::row_bytes;
use super::operands::{KvStrides, Operands, not_half, shape_macros, values_in_keys};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    SourcePart,
};
use ops::attention::AttentionProblem;
use ops::{ChoiceTable, DType};

pub(super) const VARIANT: CudaVariant<AttentionProblem> =
    CudaVariant { name: "mma", why_not, plan };

const PARTS: &[SourcePart] = &[source!("../include/ampere.cuh"), source!("mma.cu")];

/// A row of the tile table.
#[derive(Debug)]
struct Tile {
    /// Maximum of max(D, Dv).
    channels: usize,
    /// Whether D and Dv must equal it.
    exact: bool,
    /// Whether it requires contiguous rows, D and Dv in multiples of 8, and Dv up to max(D, 96): other forms need more registers.
    regular: bool,
    /// Latest supported major compute capability: on later GPUs it spills registers.
    newest: u32,
    /// Tiles of 16 query rows per warp.
    row_tiles: usize,
    block_keys: usize,
    warps: usize,
    stages: usize,
    /// Minimum number of resident blocks per SM, which limits the registers.
    blocks: usize,
}

const ANY: u32 = u32::MAX;

const fn tile(channels: usize, [row_tiles, block_keys, warps, stages, blocks]: [usize; 5]) -> Tile {
    Tile {
        channels,
        exact: false,
        regular: false,
        newest: ANY,
        row_tiles,
        block_keys,
        warps,
        stages,
        blocks,
    }
}

/// The first row that fits and whose shared memory the GPU has is used; measured in `README-mma.md`.
const TILES: &[Tile] = &[
    tile(32, [2, 64, 4, 2, 2]),
    Tile { exact: true, ..tile(64, [2, 96, 4, 2, 2]) },
    tile(64, [2, 64, 4, 2, 2]),
    Tile { regular: true, newest: 11, ..tile(128, [2, 48, 4, 2, 2]) },
    Tile { regular: true, ..tile(128, [2, 32, 4, 2, 2]) },
    tile(128, [1, 64, 8, 2, 1]),
    tile(128, [2, 32, 4, 2, 2]),
    tile(192, [1, 64, 8, 2, 1]),
    tile(192, [1, 32, 4, 2, 1]),
    tile(256, [1, 64, 8, 2, 1]),
    tile(256, [1, 32, 8, 2, 1]),
    tile(256, [1, 32, 4, 2, 1]),
];

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| {
        let channels = match (tile.exact, tile.regular) {
            (true, _) => "exactly ",
            (_, true) => "whole pieces, ",
            _ => "",
        };
        let newest = if tile.newest == ANY { "any".to_owned() } else { tile.newest.to_string() };
        let mut row = vec![format!("{channels}{}", tile.channels), newest];
        let cells = [tile.block_rows(), tile.block_keys, tile.warps, tile.stages];
        row.extend(cells.iter().map(usize::to_string));
        row
    };
    ChoiceTable {
        title: "tile of mma: the first row that fits and whose shared memory the GPU has",
        columns: &["channels up to", "generation up to", "queries", "keys", "warps", "stages"],
        rows: TILES.iter().map(row).collect(),
    }
}

impl Tile {
    fn block_rows(&self) -> usize {
        16 * self.row_tiles * self.warps
    }

    /// `SHARED_BYTES` of `mma.cu`.
    fn shared_bytes(&self, (head_dim, value_dim): (usize, usize)) -> usize {
        self.block_rows() * row_bytes(head_dim)
            + self.stages * self.block_keys * (row_bytes(head_dim) + row_bytes(value_dim))
    }
}

fn choose(
    dims: (usize, usize),
    compute: ComputeCapability,
    shared_bytes: u32,
    strided: bool,
) -> Option<&'static Tile> {
    let regular = !strided
        && dims.0.is_multiple_of(8)
        && dims.1.is_multiple_of(8)
        && dims.1 <= dims.0.max(96);
    TILES.iter().filter(|tile| regular || !tile.regular).find(|tile| {
        let fits = if tile.exact {
            dims == (tile.channels, tile.channels)
        } else {
            dims.0.max(dims.1) <= tile.channels
        };
        fits && compute.major <= tile.newest && tile.shared_bytes(dims) <= shared_bytes as usize
    })
}

fn why_not(problem: &AttentionProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if problem.keys.block_size().is_some() {
        return Some("reads no paged keys".to_owned());
    }
    for (name, channels) in [("D", problem.head_dim), ("Dv", problem.value_dim)] {
        if channels > 256 {
            return Some(format!("needs {name} up to 256, got {channels}"));
        }
    }
    let dims = (problem.head_dim, problem.value_dim);
    if choose(dims, here.compute, here.shared_bytes, true).is_none() {
        let shared = here.shared_bytes;
        return Some(format!("no tile fits the {shared} bytes of shared memory of a block here"));
    }
    values_in_keys(problem).or_else(|| not_half(problem))
}

fn source(dtype: DType, dims: (usize, usize), tile: &Tile, arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("attention_mma", PARTS, arch), dtype, dims)
        .define("ROW_TILES", tile.row_tiles)
        .define("BLOCK_KEYS", tile.block_keys)
        .define("WARPS", tile.warps)
        .define("STAGES", tile.stages)
        .define("BLOCKS_PER_SM", tile.blocks)
}

/// Common shapes for the bundle.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for dtype in [DType::Bf16, DType::F16] {
        for dim in [32, 64, 96, 128, 192, 256] {
            if let Some(tile) = choose((dim, dim), arch.compute, arch.shared_bytes, false) {
                sources.push(source(dtype, (dim, dim), tile, arch.arch()));
            }
        }
    }
    sources
}

arguments! {
    AttentionMma: attention_mma {
        q: Pointer, k: Pointer, v: Pointer, o: Pointer, lse: Pointer, cu_q: Nullable, cu_k: Nullable, cache_seqlens: Nullable,
        tq: i32, tk: i32, total_q: i32, heads: i32, kv_heads: i32, kv_strides: (KvStrides), window_left: i32, window_right: i32, scale: f32, softcap: f32,
    }
}

fn plan(problem: &AttentionProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let dims = (problem.head_dim, problem.value_dim);
    let operands = Operands::new(problem, planner)?;
    let strided = !operands.is_dense(problem);
    let here = planner.here();
    let Some(tile) = choose(dims, here.compute, here.shared_bytes, strided) else {
        return Err(DeviceError::Refused { what: format!("mma has no tile for D {}", dims.0) });
    };
    let mut source = source(problem.dtype, dims, tile, planner.arch());
    if strided {
        source = source.define("STRIDED", 1);
    }
    let kernel = planner.kernel(&source)?;
    let args = AttentionMma {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        o: &operands.o,
        lse: &operands.lse,
        cu_q: operands.cu_queries.as_deref(),
        cu_k: operands.cu_keys.as_deref(),
        cache_seqlens: operands.key_counts.as_deref(),
        tq: operands.queries,
        tk: operands.keys,
        total_q: operands.total,
        heads: operands.heads,
        kv_heads: operands.kv_heads,
        kv_strides: operands.kv_strides(),
        window_left: operands.window_left,
        window_right: operands.window_right,
        scale: operands.scale,
        softcap: operands.softcap,
    };
    let row_blocks = problem.queries.longest().div_ceil(tile.block_rows());
    let grid = [row_blocks as u32, operands.heads as u32, operands.batch as u32];
    let shared = tile.shared_bytes(dims) as u32;
    planner.launch(kernel, Launch::new(grid, 32 * tile.warps as u32, shared), args);
    Ok(())
}
