//! `hopper_wide` and `hopper_cluster`: D from 320 to 1024 at exact widths. The contracts are in `hopper_wide.cu` and
//! `hopper_cluster.cu`.

use super::hopper::AttentionParams;
use super::operands::{
    Operands, Rows, Sizes, Strides, not_half, row_map, shape_macros, values_in_keys,
};
use crate::{CudaVariant, Planner, arguments, map_element, source};
use device::cuda::{
    Args, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    SourcePart, Swizzle, TiledLayout, TmaDescriptor,
};
use ops::attention::AttentionProblem;
use std::ops::RangeInclusive;

/// All channels in one block.
pub(super) const WIDE: CudaVariant<AttentionProblem> = CudaVariant {
    name: "hopper_wide",
    why_not: |problem, here| why_not(problem, here, &ONE),
    plan: |problem, planner| plan(problem, planner, &ONE),
};

/// Channels split over the two blocks of a cluster.
pub(super) const CLUSTER: CudaVariant<AttentionProblem> = CudaVariant {
    name: "hopper_cluster",
    why_not: |problem, here| why_not(problem, here, &TWO),
    plan: |problem, planner| plan(problem, planner, &TWO),
};

macro_rules! parts {
    ($last:literal) => {
        &[
            source!("hopper_wide_config.cuh"),
            source!("../include/hopper.cuh"),
            source!("hopper_tile.cuh"),
            source!("hopper_softmax.cuh"),
            source!("hopper_wide.cuh"),
            source!("hopper_wide_consumer.cuh"),
            source!("hopper_wide_kernel.cuh"),
            source!($last),
        ]
    };
}

/// Query rows of a block.
const BLOCK_ROWS: usize = 64;

/// One of the two kernels.
struct Kind {
    function: &'static str,
    parts: &'static [SourcePart],
    /// Blocks that share the channels of 64 rows.
    split: usize,
    head_dims: RangeInclusive<usize>,
    value_dims: RangeInclusive<usize>,
}

static ONE: Kind = Kind {
    function: "attention_hopper_wide",
    parts: parts!("hopper_wide.cu"),
    split: 1,
    head_dims: 320..=640,
    value_dims: 128..=640,
};

static TWO: Kind = Kind {
    function: "attention_hopper_cluster",
    parts: parts!("hopper_cluster.cu"),
    split: 2,
    head_dims: 576..=1024,
    value_dims: 256..=1024,
};

/// Maximum shared memory of a block: only one block fits on an SM anyway.
const SHARED_BYTES: u32 = 232_448;

fn why_not(problem: &AttentionProblem, here: &CudaCapabilities, kind: &Kind) -> Option<String> {
    if here.compute != ComputeCapability::new(9, 0) {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    if problem.keys.block_size().is_some() {
        return Some("reads no paged keys".to_owned());
    }
    let dims =
        [("D", problem.head_dim, &kind.head_dims), ("Dv", problem.value_dim, &kind.value_dims)];
    for (name, channels, range) in dims {
        if !channels.is_multiple_of(64) || !range.contains(&channels) {
            return Some(format!(
                "needs {name} a multiple of 64 from {} to {}, got {channels}",
                range.start(),
                range.end()
            ));
        }
    }
    if problem.scale <= 0.0 {
        return Some(format!("needs a scale above 0, got {}", problem.scale));
    }
    values_in_keys(problem).or_else(|| not_half(problem))
}

/// Keys per warpgroup and step (`BLOCK_K`): with more than 256 accumulator channels per warpgroup, registers allow fewer.
fn block_keys(value_dim: usize, kind: &Kind) -> usize {
    if kind.split == 1 && value_dim > 512 { 48 } else { 64 }
}

fn source(params: AttentionParams, kind: &Kind) -> KernelSource {
    let arch = GpuArch::of(ComputeCapability::new(9, 0));
    let source = KernelSource::new(kind.function, kind.parts, arch);
    shape_macros(source, params.dtype, (params.head_dim, params.value_dim))
        .define("SPLIT", kind.split)
        .define("BLOCK_K", block_keys(params.value_dim, kind))
        .define("MASK", u8::from(params.masked))
        .define("SOFTCAP", u8::from(params.softcap))
}

/// Common shapes for the bundle.
pub(super) fn bundled() -> Vec<KernelSource> {
    let one = [320, 384, 448, 512, 576, 640].map(|dim| (dim, dim));
    let latent = [(576, 512)];
    let two: Vec<(usize, usize)> = (704..=1024).step_by(64).map(|dim| (dim, dim)).collect();
    let one = AttentionParams::common(&one).into_iter().chain(AttentionParams::common(&latent));
    let one = one.map(|params| source(params, &ONE));
    one.chain(AttentionParams::common(&two).into_iter().map(|params| source(params, &TWO)))
        .collect()
}

arguments! {
    AttentionHopperWide: attention_hopper_wide {
        map_q: Map, map_k: Map, map_v: Map, output: Pointer, lse: Pointer, cu_queries: Nullable, cu_keys: Nullable,
        key_counts: Nullable, sizes: (Sizes), section: i32, scale: f32, softcap: f32,
    }
}

arguments! {
    AttentionHopperCluster: attention_hopper_cluster {
        map_q: Map, map_k: Map, map_v: Map, map_v_high: Map, output: Pointer, lse: Pointer, cu_queries: Nullable,
        cu_keys: Nullable, key_counts: Nullable, sizes: (Sizes), section: i32, scale: f32, softcap: f32,
    }
}

fn plan(
    problem: &AttentionProblem,
    planner: &mut Planner<'_>,
    kind: &Kind,
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&source(AttentionParams::of(problem), kind))?;
    let operands = Operands::new(problem, planner)?;
    let queries = Rows::of_queries(problem);
    let (keys, values) = Rows::of_keys(problem, &operands, planner);
    let (dtype, value_dim) = (problem.dtype, problem.value_dim);
    let map_q =
        row_map(planner, &operands.q, (queries, problem.head_dim), (64, BLOCK_ROWS), dtype)?;
    let box_keys = 2 * block_keys(value_dim, kind);
    let map_k = row_map(planner, &operands.k, (keys, problem.head_dim), (64, box_keys), dtype)?;
    let groups = value_dim / 64;
    let low = if kind.split == 2 { groups / 2 } else { groups };
    let map_v = value_map(planner, &operands, values, problem, low)?;
    macro_rules! arguments_of {
        ($name:ident { $($more:ident: $value:expr)? }) => {
            Args::from($name {
                $($more: $value,)?
                map_q: (&map_q).into(),
                map_k: (&map_k).into(),
                map_v: (&map_v).into(),
                output: &operands.o,
                lse: &operands.lse,
                cu_queries: operands.cu_queries.as_deref(),
                cu_keys: operands.cu_keys.as_deref(),
                key_counts: operands.key_counts.as_deref(),
                sizes: operands.sizes(),
                section: 1,
                scale: operands.scale,
                softcap: if problem.softcap.is_some() { operands.softcap } else { 1.0 },
            })
        };
    }
    let args = if kind.split == 2 {
        let map_v_high = value_map(planner, &operands, values, problem, groups - low)?;
        arguments_of!(AttentionHopperCluster { map_v_high: (&map_v_high).into() })
    } else {
        arguments_of!(AttentionHopperWide {})
    };
    let tiles =
        problem.queries.count() * problem.heads * problem.queries.longest().div_ceil(BLOCK_ROWS);
    let blocks = (tiles * kind.split) as u32;
    planner.launch(kernel, Launch::new([blocks, 1, 1], 384, SHARED_BYTES), args);
    Ok(())
}

/// The TMA descriptor of the values: one copy has eight tokens of `groups` groups of 64 channels.
fn value_map(
    planner: &mut Planner<'_>,
    operands: &Operands,
    rows: Rows,
    problem: &AttentionProblem,
    groups: usize,
) -> Result<TmaDescriptor, DeviceError> {
    let channels = problem.value_dim;
    let (stand_in, rows) = rows.stand_in(planner, channels)?;
    let Strides { batch, token, head } = rows.strides;
    let layout = TiledLayout {
        element: map_element(problem.dtype),
        offset: 0,
        sizes: &[
            64,
            rows.tokens as u64,
            channels as u64 / 64,
            rows.heads as u64,
            rows.batch as u64,
        ],
        strides: &[2 * token as u64, 128, 2 * head as u64, 2 * batch as u64],
        tile: &[64, 8, groups as u32, 1, 1],
        swizzle: Swizzle::Bytes128,
    };
    planner.tensor_map(stand_in.as_ref().unwrap_or(&operands.v), &layout)
}
