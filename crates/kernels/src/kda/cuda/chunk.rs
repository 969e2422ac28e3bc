//! `chunk.hopper`: what a chunk needs besides the state, of all chunks at once, and then the state's walk over them. The
//! contracts stand in `prepare.cu` (one decay a channel), `prepare_head.cu` (one a head), `package.cuh` and `walk.cu`. What is made while
//! the walk is under way: [`beside`].

use super::operands::{Gates, Operands, storage_macros, too_many};
use crate::DType;
use crate::cuda::source;
use crate::cuda::{CudaVariant, Planner, arguments, int, slots};
use crate::kda::{Decays, KdaProblem};
use device::cuda::{
    ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch, Part,
};

mod beside;
use beside::Beside;

pub(super) const VARIANT: CudaVariant<KdaProblem> =
    CudaVariant { name: "chunk.hopper", why_not, plan };

/// A kernel of `package.cuh`'s packages behind what all that make them share.
macro_rules! prepare_parts {
    ($($own:expr),+) => {
        &[
            source!("../../cuda/hopper.cuh"),
            source!("../../cuda/order.cuh"),
            source!("gates.cuh"),
            source!("package.cuh"),
            source!("prepare_gates.cuh"),
            source!("prepare_load.cuh"),
            source!("prepare_solve.cuh"),
            source!("prepare_parts.cuh"),
            $($own),+,
        ]
    };
}

const PREPARE: &[Part] = prepare_parts!(source!("prepare.cu"));
const PREPARE_HEAD: &[Part] =
    prepare_parts!(source!("prepare_head.cuh"), source!("prepare_head.cu"));
const PREPARE_REST: &[Part] =
    prepare_parts!(source!("prepare_head.cuh"), source!("prepare_rest.cu"));
const WALK: &[Part] = &[
    source!("../../cuda/hopper.cuh"),
    source!("../../cuda/order.cuh"),
    source!("gates.cuh"),
    source!("package.cuh"),
    source!("walk_copy.cuh"),
    source!("walk.cu"),
];

const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);
/// More would not fit the registers that hold the state.
const LARGEST_KEY_DIM: usize = 128;
const CHUNK: usize = 64;
/// Bytes of 64 rows of 64 channels.
const BOX_BYTES: usize = CHUNK * 128;
/// Chunks of a sequence, at most: what a grid's y takes.
const MOST_CHUNKS: usize = 65_535;

/// What the kernels make of a chunk, as `package.cuh` has it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Package {
    /// `OF_KEYS`: what value heads of a key head share, bytes.
    of_keys: usize,
    /// `PACKAGE_BYTES`, of a value head.
    own: usize,
}

impl Package {
    fn new(decays: Decays, key_dim: usize) -> Self {
        let padded = key_dim.next_multiple_of(64);
        let (keys, scores) = (padded / 64 * BOX_BYTES, 2 * BOX_BYTES);
        match decays {
            Decays::PerChannel => Self { of_keys: 0, own: 3 * keys + scores + 4 * padded },
            Decays::PerHead => Self { of_keys: 2 * keys, own: scores + 8 * CHUNK + 16 },
        }
    }

    /// Of all heads: `chunk_bytes`.
    fn of_chunk(self, problem: &KdaProblem) -> usize {
        problem.heads * self.of_keys + problem.value_heads * self.own
    }
}

/// Value heads of a key head that a block of `prepare_head.cu` has at once.
const HEADS: usize = 2;

/// Blocks that prepare a chunk.
fn blocks_of_chunk(problem: &KdaProblem) -> usize {
    match problem.decays {
        Decays::PerChannel => problem.value_heads,
        Decays::PerHead => problem.heads * (problem.value_heads / problem.heads).div_ceil(HEADS),
    }
}

/// `SHARED_BYTES` of `prepare.cu` or `prepare_head.cuh`.
fn prepare_bytes(decays: Decays, key_dim: usize) -> usize {
    let padded = key_dim.next_multiple_of(64);
    let (tile, matrix) = (16 * 2 * padded, 4 * CHUNK * 68);
    match decays {
        Decays::PerChannel => (12 * tile).max(2 * matrix) + 24 * padded + 4 * CHUNK,
        Decays::PerHead => {
            let matrices = HEADS * matrix;
            (8 * tile).max(matrices) + matrices + (8 + HEADS * 12) * CHUNK + HEADS * 16
        }
    }
}

/// Chunks in shared memory at once: as many as fit.
fn stages(decays: Decays, warpgroups: usize) -> usize {
    if warpgroups == 1 || decays == Decays::PerHead { 3 } else { 2 }
}

/// `SHARED_BYTES` of `walk.cu`.
fn walk_bytes(decays: Decays, key_dim: usize, warpgroups: usize) -> usize {
    let package = Package::new(decays, key_dim);
    let stage = package.of_keys + package.own + warpgroups * BOX_BYTES;
    stages(decays, warpgroups) * stage + warpgroups * 4 * CHUNK * 32 + 1024
}

/// Warpgroups of a block of the walk, each with 64 value columns. Two share what a chunk brings; one a block leaves
/// more multiprocessors something to do.
fn warpgroups(problem: &KdaProblem, multiprocessors: u32) -> usize {
    let heads = problem.sequences.count() * problem.value_heads;
    let columns = problem.value_dim.div_ceil(64);
    if columns == 1 || heads * columns <= multiprocessors as usize { 1 } else { 2 }
}

fn why_not(problem: &KdaProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute != HOPPER {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    if problem.key_dim > LARGEST_KEY_DIM {
        return Some(format!("needs K up to {LARGEST_KEY_DIM}, got {}", problem.key_dim));
    }
    let chunks = problem.sequences.longest().div_ceil(CHUNK);
    if chunks > MOST_CHUNKS {
        return Some(format!("needs up to {MOST_CHUNKS} chunks of 64 tokens, got {chunks}"));
    }
    too_many(problem)
}

fn prepare_source(decays: Decays, dtype: DType, key_dim: usize, arch: GpuArch) -> KernelSource {
    let (name, parts) = match decays {
        Decays::PerChannel => ("kda_prepare", PREPARE),
        Decays::PerHead => ("gated_delta_prepare", PREPARE_HEAD),
    };
    shape_macros(KernelSource::new(name, parts, arch), decays, dtype, key_dim)
}

fn shape_macros(
    source: KernelSource,
    decays: Decays,
    dtype: DType,
    key_dim: usize,
) -> KernelSource {
    let source = storage_macros(source, dtype).define("KD", key_dim);
    if decays == Decays::PerHead { source.define("PER_HEAD", 1) } else { source }
}

fn walk_source(
    decays: Decays,
    dtype: DType,
    (key_dim, value_dim): (usize, usize),
    warpgroups: usize,
    arch: GpuArch,
) -> KernelSource {
    shape_macros(KernelSource::new("kda_walk", WALK, arch), decays, dtype, key_dim)
        .define("VD", value_dim)
        .define("WARPGROUPS", warpgroups)
        .define("STAGES", stages(decays, warpgroups))
}

/// Common shapes, for the bundle.
pub(super) fn bundled(decays: Decays) -> Vec<KernelSource> {
    let arch = || GpuArch::of(HOPPER);
    let mut sources = Vec::new();
    for dtype in [DType::Bf16, DType::F16] {
        for dim in [64, 128] {
            sources.push(prepare_source(decays, dtype, dim, arch()));
            if decays == Decays::PerHead {
                sources.push(beside::source(dtype, dim, arch()));
            }
            for warpgroups in 1..=dim / 64 {
                sources.push(walk_source(decays, dtype, (dim, dim), warpgroups, arch()));
            }
        }
    }
    sources
}

arguments! {
    Prepare: kda_prepare {
        q: Pointer, k: Pointer, g: Pointer, beta: Pointer, a_log: Nullable, dt_bias: Nullable, packages: Pointer,
        offsets: Nullable, slots: Nullable, tokens: i32, heads: i32, value_heads: i32, gates: (Gates),
    }
}

arguments! {
    PrepareHead: gated_delta_prepare { all: (Prepare), marks: Nullable, mark_count: i32 }
}

arguments! {
    Walk: kda_walk {
        packages: Pointer, v: Pointer, initial: Nullable, o: Pointer, final_state: Pointer, offsets: Nullable, slots: Nullable,
        tokens: i32, heads: i32, value_heads: i32, types: i32, marks: Nullable, first_marked: i32, groups: i32,
    }
}

fn plan(problem: &KdaProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (key_dim, value_dim) = (problem.key_dim, problem.value_dim);
    let source = prepare_source(problem.decays, problem.dtype, key_dim, planner.arch());
    let prepare = planner.kernel(&source)?;
    let warpgroups = warpgroups(problem, planner.here().multiprocessors);
    let (decays, dims) = (problem.decays, (key_dim, value_dim));
    let source = walk_source(decays, problem.dtype, dims, warpgroups, planner.arch());
    let walk = planner.kernel(&source)?;
    let operands = Operands::new(problem, planner)?;

    let count = problem.sequences.count();
    let chunks = problem.sequences.longest().div_ceil(CHUNK);
    // As `find_sequence` of package.cuh places them.
    let slots = match operands.offsets {
        Some(_) => problem.sequences.total() / CHUNK + count,
        None => count * chunks,
    };
    let of_chunk = Package::new(decays, key_dim).of_chunk(problem);
    let packages = planner.scratch(slots * of_chunk / 4)?;
    let blocks = value_dim.div_ceil(64 * warpgroups);
    let walk_grid = [blocks, problem.value_heads, count].map(|size| size as u32);
    // As `EARLY` in walk.cu.
    let waits = decays == Decays::PerHead && warpgroups == 1;
    let beside =
        if waits { Beside::of(problem, planner.here().multiprocessors, walk_grid) } else { None };
    let (first, groups) = beside.map_or((chunks, 0), |beside| (beside.first, beside.groups()));
    let mark_count = beside.map_or(0, |beside| beside.mark_count(problem));
    let marks = beside.map(|_| planner.scratch(mark_count)).transpose()?;

    let args = Prepare {
        q: &operands.q,
        k: &operands.k,
        g: &operands.g,
        beta: &operands.beta,
        a_log: operands.a_log.as_deref(),
        dt_bias: operands.dt_bias.as_deref(),
        packages: &packages,
        offsets: operands.offsets.as_deref(),
        slots: operands.slots.as_deref(),
        tokens: operands.tokens,
        heads: int(problem.heads)?,
        value_heads: int(problem.value_heads)?,
        gates: operands.gates(problem),
    };
    let grid = [blocks_of_chunk(problem) as u32, first as u32, count as u32];
    let launch = |threads| Launch::new(grid, threads, prepare_bytes(decays, key_dim) as u32);
    match decays {
        Decays::PerChannel => planner.launch(prepare, launch(128), args),
        Decays::PerHead => {
            let (marks, mark_count) = (marks.as_deref(), int(mark_count)?);
            planner.launch(prepare, launch(256), PrepareHead { all: args, marks, mark_count });
        }
    }
    if let (Some(beside), Some(marks)) = (beside, &marks) {
        beside.launch(problem, planner, args, marks)?;
    }

    let args = Walk {
        packages: &packages,
        v: &operands.v,
        initial: operands.initial.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        offsets: operands.offsets.as_deref(),
        slots: operands.slots.as_deref(),
        tokens: operands.tokens,
        heads: int(problem.heads)?,
        value_heads: int(problem.value_heads)?,
        types: operands.types,
        marks: marks.as_deref(),
        first_marked: int(first)?,
        groups: int(groups)?,
    };
    let threads = 128 * (warpgroups as u32 + 1);
    let bytes = walk_bytes(decays, key_dim, warpgroups) as u32;
    let launch = Launch::new(walk_grid, threads, bytes);
    // With a decay a channel 64 heads took an eighth longer so.
    let launch = match decays {
        Decays::PerChannel => launch,
        Decays::PerHead => planner.overlapping(launch),
    };
    planner.launch(walk, launch, args);
    slots::hand_on(
        planner,
        &problem.slots,
        problem.sequences.count(),
        problem.value_heads * problem.state_len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_the_kernels_declare() {
        // Taken from the constants of package.cuh, prepare.cu, prepare_head.cu and walk.cu by their compiler.
        use Decays::{PerChannel, PerHead};
        let package = |decays| [60, 64, 128].map(|key_dim| Package::new(decays, key_dim));
        let of = |of_keys, own| Package { of_keys, own };
        assert_eq!(package(PerChannel), [of(0, 41_216), of(0, 41_216), of(0, 66_048)]);
        assert_eq!(package(PerHead), [of(16_384, 16_912), of(16_384, 16_912), of(32_768, 16_912)]);
        let prepare = |decays| [64, 128].map(|key_dim| prepare_bytes(decays, key_dim));
        assert_eq!(prepare(PerChannel), [36_608, 52_480]);
        assert_eq!(prepare(PerHead), [71_712, 71_712]);
        let walk = |decays| [(64, 1), (128, 1), (128, 2)].map(|(k, n)| walk_bytes(decays, k, n));
        assert_eq!(walk(PerChannel), [157_440, 231_936, 182_272]);
        assert_eq!(walk(PerHead), [133_680, 182_832, 215_600]);
    }
}
