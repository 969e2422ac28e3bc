//! `hopper`: warp-specialized attention (TMA producer, wgmma consumers) for D up to 256 in steps of 8 channels. The kernel's contract
//! is in `hopper.cu`.

use super::operands::{Operands, Rows, Sizes, not_half, row_map, shape_macros, values_in_keys};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::attention::AttentionProblem;
use ops::{ChoiceTable, DType};

pub(super) const VARIANT: CudaVariant<AttentionProblem> =
    CudaVariant { name: "hopper", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/hopper.cuh"),
    source!("hopper_config.cuh"),
    source!("hopper_tile.cuh"),
    source!("hopper_softmax.cuh"),
    source!("hopper_products.cuh"),
    source!("hopper.cu"),
];

/// A row of the tile table.
struct Tile {
    /// Maximum D, and below maximum Dv.
    head_dim: usize,
    value_dim: usize,
    /// Only for D = Dv without softcap: other variants would spill registers.
    plain: bool,
    /// Keys per tile (`BLOCK_K`).
    block_keys: usize,
    /// Consumer warpgroups, each with 64 query rows.
    consumers: usize,
}

const fn row(
    [head_dim, value_dim]: [usize; 2],
    plain: bool,
    block_keys: usize,
    consumers: usize,
) -> Tile {
    Tile { head_dim, value_dim, plain, block_keys, consumers }
}

/// The first row that fits is used. Shared memory limits the key tile, registers the consumers; measured on an H200, see
/// README-hopper.md.
const TILES: &[Tile] = &[
    row([32, 32], false, 128, 3),
    row([64, 64], true, 128, 3),
    row([64, 64], false, 112, 3),
    row([96, 96], false, 96, 3),
    row([128, 128], false, 128, 2),
    row([192, 128], false, 128, 2),
    row([192, 192], false, 112, 2),
    row([256, 256], false, 80, 2),
];

const STAGES: usize = 2;

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| {
        vec![
            tile.head_dim.to_string(),
            tile.value_dim.to_string(),
            if tile.plain { "D = Dv, no softcap" } else { "any" }.to_owned(),
            tile.block_keys.to_string(),
            (64 * tile.consumers).to_string(),
        ]
    };
    ChoiceTable {
        title: "tile of hopper: the first row that fits D and Dv, each padded to a multiple of 32",
        columns: &["D up to", "Dv up to", "forms", "keys of a block", "queries of a block"],
        rows: TILES.iter().map(row).collect(),
    }
}

fn tile(params: AttentionParams) -> Option<&'static Tile> {
    let plain = params.head_dim == params.value_dim && !params.softcap;
    TILES.iter().find(|tile| {
        params.head_dim <= tile.head_dim
            && params.value_dim <= tile.value_dim
            && (plain || !tile.plain)
    })
}

fn why_not(problem: &AttentionProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute != ComputeCapability::new(9, 0) {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    if problem.keys.block_size().is_some() {
        return Some("reads no paged keys".to_owned());
    }
    for (name, channels) in [("D", problem.head_dim), ("Dv", problem.value_dim)] {
        // TMA requires row strides that are multiples of 16 bytes.
        if !channels.is_multiple_of(8) || channels > 256 {
            return Some(format!("needs {name} a multiple of 8 up to 256, got {channels}"));
        }
    }
    if problem.scale <= 0.0 {
        return Some(format!("needs a scale above 0, got {}", problem.scale));
    }
    values_in_keys(problem).or_else(|| not_half(problem))
}

/// Compile-time parameters of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionParams {
    pub(super) dtype: DType,
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    pub(super) masked: bool,
    pub(super) softcap: bool,
}

impl AttentionParams {
    /// Parameters for both storage types, with and without a mask, without softcap.
    pub(super) fn common(dims: &[(usize, usize)]) -> Vec<Self> {
        let mut param_sets = Vec::new();
        for (head_dim, value_dim) in dims.iter().copied() {
            for dtype in [DType::Bf16, DType::F16] {
                for masked in [false, true] {
                    param_sets.push(Self { dtype, head_dim, value_dim, masked, softcap: false });
                }
            }
        }
        param_sets
    }

    pub(super) fn of(problem: &AttentionProblem) -> Self {
        Self {
            dtype: problem.dtype,
            head_dim: problem.head_dim,
            value_dim: problem.value_dim,
            masked: !problem.mask.is_full(),
            softcap: problem.softcap.is_some(),
        }
    }
}

/// Channels padded to the kernel's multiple of 32; TMA reads the padding as zeros.
fn padded(channels: usize) -> usize {
    channels.next_multiple_of(32)
}

fn source(params: AttentionParams, tile: &Tile) -> KernelSource {
    let arch = GpuArch::of(ComputeCapability::new(9, 0));
    let mut source = KernelSource::new("attention_hopper", PARTS, arch);
    if padded(params.value_dim) != params.value_dim {
        source = source.define("DV_STORED", params.value_dim);
    }
    shape_macros(source, params.dtype, (padded(params.head_dim), padded(params.value_dim)))
        .define("BLOCK_K", tile.block_keys)
        .define("CONSUMERS", tile.consumers)
        .define("STAGES", STAGES)
        .define("MASK", u8::from(params.masked))
        .define("SOFTCAP", u8::from(params.softcap))
}

/// Common shapes for the bundle.
pub(super) fn bundled() -> Vec<KernelSource> {
    let dims =
        [(32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256)];
    let param_sets = AttentionParams::common(&dims).into_iter();
    param_sets.filter_map(|params| Some(source(params, tile(params)?))).collect()
}

arguments! {
    AttentionHopper: attention_hopper {
        map_q: Map, map_k: Map, map_v: Map, output: Pointer, lse: Pointer, cu_queries: Nullable, cu_keys: Nullable,
        key_counts: Nullable, counter: Pointer, sizes: (Sizes), section: i32, scale: f32, softcap: f32,
    }
}

fn plan(problem: &AttentionProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let (head_dim, value_dim) = (padded(problem.head_dim), padded(problem.value_dim));
    let params = AttentionParams::of(problem);
    let Some(tile) = tile(params) else {
        return Err(DeviceError::Refused { what: format!("hopper has no tile for D {head_dim}") });
    };
    let kernel = planner.kernel(&source(params, tile))?;
    let operands = Operands::new(problem, planner)?;
    let width = |channels: usize| if channels.is_multiple_of(64) { 64 } else { 32 };
    let queries = Rows::of_queries(problem);
    let (keys, values) = Rows::of_keys(problem, &operands, planner);
    let dtype = problem.dtype;
    let of_q = (width(head_dim), 64);
    let of_k = (width(head_dim), tile.block_keys);
    let of_v = (width(value_dim), tile.block_keys);
    let map_q = row_map(planner, &operands.q, (queries, problem.head_dim), of_q, dtype)?;
    let map_k = row_map(planner, &operands.k, (keys, problem.head_dim), of_k, dtype)?;
    let map_v = row_map(planner, &operands.v, (values, problem.value_dim), of_v, dtype)?;
    let block_queries = 64 * tile.consumers;
    let tiles =
        problem.queries.count() * problem.heads * problem.queries.longest().div_ceil(block_queries);
    let blocks = (tiles as u64).min(u64::from(planner.here().multiprocessors)) as u32;
    let counter = planner.zeroed(2)?;
    let args = AttentionHopper {
        map_q: (&map_q).into(),
        map_k: (&map_k).into(),
        map_v: (&map_v).into(),
        output: &operands.o,
        lse: &operands.lse,
        cu_queries: operands.cu_queries.as_deref(),
        cu_keys: operands.cu_keys.as_deref(),
        key_counts: operands.key_counts.as_deref(),
        counter: &counter,
        sizes: operands.sizes(),
        section: section(problem, planner.here()),
        scale: operands.scale,
        softcap: if problem.softcap.is_some() { operands.softcap } else { 1.0 },
    };
    let shared =
        2 * head_dim * block_queries + 2 * STAGES * tile.block_keys * (head_dim + value_dim) + 2048;
    let threads = 128 * (tile.consumers as u32 + 1);
    planner.launch(kernel, Launch::new([blocks, 1, 1], threads, shared as u32), args);
    Ok(())
}

/// Number of (sequence, head) pairs per section: their keys and values fit in half of the L2 cache.
fn section(problem: &AttentionProblem, here: &CudaCapabilities) -> i32 {
    let bytes = 2 * (problem.head_dim + problem.value_dim) * problem.keys.longest().max(1);
    let pairs = (here.l2_bytes as usize / 2 / bytes).max(1) * (problem.heads / problem.kv_heads);
    i32::try_from(pairs).unwrap_or(i32::MAX)
}
