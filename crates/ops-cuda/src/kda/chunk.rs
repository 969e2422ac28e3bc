//! `chunk.hopper`: the chunked form. One launch computes the state-independent matrices of all chunks (a package per chunk and
//! head), then the kernel `walk.cu` runs the recurrence over chunks. The contracts are in `prepare.cu` (one decay per channel),
//! `prepare_head.cu` (one per head), `package.cuh` and `walk.cu`. [`concurrent`] computes packages while `walk.cu` runs.

use super::operands::{Gates, Operands, too_many};
use crate::{CudaVariant, Planner, arguments, int, slots, source};
use device::cuda::{
    ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, Part,
};
use ops::DType;
use ops::kda::{Decays, KdaProblem};

mod concurrent;
mod kind;
mod per_channel;
mod per_head;
use concurrent::ConcurrentPrepare;
use kind::Kind;

pub(super) const VARIANT: CudaVariant<KdaProblem> =
    CudaVariant { name: "chunk.hopper", why_not, plan };

const WALK: &[Part] = &[
    source!("../include/hopper.cuh"),
    source!("../include/order.cuh"),
    source!("gates.cuh"),
    source!("package.cuh"),
    source!("walk_copy.cuh"),
    source!("walk.cu"), // words: allow(walk)
];

const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);
/// A larger K would not fit the registers that hold the state.
const LARGEST_KEY_DIM: usize = 128;
const CHUNK: usize = 64;
/// Bytes of 64 rows of 64 channels.
const BOX_BYTES: usize = CHUNK * 128;
/// Maximum number of chunks per sequence: the grid's limit in y.
const MOST_CHUNKS: usize = 65_535;

/// Pipeline stages of `walk.cu`, one chunk each: as many as fit in shared memory.
fn stages(kind: &Kind, warpgroups: usize) -> usize {
    if warpgroups == 1 { 3 } else { kind.stages_of_two }
}

/// `SHARED_BYTES` of `walk.cu`.
fn walk_bytes(kind: &Kind, key_dim: usize, warpgroups: usize) -> usize {
    let package = (kind.package)(key_dim);
    let stage = package.of_keys + package.own + warpgroups * BOX_BYTES;
    stages(kind, warpgroups) * stage + warpgroups * 4 * CHUNK * 32 + 1024
}

/// Consumer warpgroups per block of `walk.cu`, each with 64 value columns. Two share a chunk's package; one per block keeps more
/// SMs busy.
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

fn walk_source(
    kind: &Kind,
    dtype: DType,
    (key_dim, value_dim): (usize, usize),
    warpgroups: usize,
    arch: GpuArch,
) -> KernelSource {
    kind.source("kda_walk", WALK, (dtype, key_dim), arch)
        .define("VD", value_dim)
        .define("WARPGROUPS", warpgroups)
        .define("STAGES", stages(kind, warpgroups))
}

/// Common shapes for the bundle.
pub(super) fn bundled(decays: Decays) -> Vec<KernelSource> {
    let arch = || GpuArch::of(HOPPER);
    let kind = Kind::of(decays);
    let mut sources = Vec::new();
    for dtype in [DType::Bf16, DType::F16] {
        for dim in [64, 128] {
            sources.push(kind.prepare_source(dtype, dim, arch()));
            if kind.concurrent {
                sources.push(concurrent::source(dtype, dim, arch()));
            }
            for warpgroups in 1..=dim / 64 {
                sources.push(walk_source(kind, dtype, (dim, dim), warpgroups, arch()));
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
    Walk: kda_walk {
        packages: Pointer, v: Pointer, initial: Nullable, o: Pointer, final_state: Pointer, offsets: Nullable, slots: Nullable,
        tokens: i32, heads: i32, value_heads: i32, types: i32, marks: Nullable, first_marked: i32, groups: i32,
    }
}

fn plan(problem: &KdaProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let (key_dim, value_dim) = (problem.key_dim, problem.value_dim);
    let kind = Kind::of(problem.decays);
    let prepare = planner.kernel(&kind.prepare_source(problem.dtype, key_dim, planner.arch()))?;
    let warpgroups = warpgroups(problem, planner.here().multiprocessors);
    let dims = (key_dim, value_dim);
    let source = walk_source(kind, problem.dtype, dims, warpgroups, planner.arch());
    let walk_kernel = planner.kernel(&source)?;
    let operands = Operands::new(problem, planner)?;

    let count = problem.sequences.count();
    let chunks = problem.sequences.longest().div_ceil(CHUNK);
    // The slot numbering of `find_sequence` in package.cuh.
    let slots = match operands.offsets {
        Some(_) => problem.sequences.total() / CHUNK + count,
        None => count * chunks,
    };
    let of_chunk = (kind.package)(key_dim).of_chunk(problem);
    let packages = planner.scratch(slots * of_chunk / 4)?;
    let blocks = value_dim.div_ceil(64 * warpgroups);
    let walk_grid = [blocks, problem.value_heads, count].map(|size| size as u32);
    // The condition of `EARLY` in `walk.cu`.
    let waits = kind.concurrent && warpgroups == 1;
    let concurrent = if waits {
        ConcurrentPrepare::of(problem, planner.here().multiprocessors, walk_grid)
    } else {
        None
    };
    let (first, groups) =
        concurrent.map_or((chunks, 0), |concurrent| (concurrent.first, concurrent.groups()));
    let mark_count = concurrent.map_or(0, |concurrent| concurrent.mark_count(problem));
    let marks = concurrent.map(|_| planner.scratch(mark_count)).transpose()?;

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
    let grid = [(kind.blocks)(problem), first, count].map(|size| size as u32);
    let launch = Launch::new(grid, kind.threads, (kind.bytes)(key_dim) as u32);
    (kind.launch)(planner, (prepare, launch), args, (marks.as_deref(), int(mark_count)?));
    if let (Some(concurrent), Some(marks)) = (concurrent, &marks) {
        concurrent.launch(problem, planner, args, marks)?;
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
    let bytes = walk_bytes(kind, key_dim, warpgroups) as u32;
    let launch = Launch::new(walk_grid, threads, bytes);
    let launch = if kind.overlaps { planner.overlapping(launch) } else { launch };
    planner.launch(walk_kernel, launch, args);
    slots::plan_unused_slots(
        planner,
        &problem.slots,
        problem.sequences.count(),
        problem.value_heads * problem.state_len(),
    )
}

#[cfg(test)]
mod tests {
    use super::kind::Package;
    use super::*;

    #[test]
    fn sizes_equal_those_of_the_kernels() {
        // Constants of `package.cuh`, `prepare.cu`, `prepare_head.cu` and `walk.cu`, as computed by their compiler.
        let [channel, head] = [Decays::PerChannel, Decays::PerHead].map(Kind::of);
        let package = |kind: &Kind| [60, 64, 128].map(|key_dim| (kind.package)(key_dim));
        let of = |of_keys, own| Package { of_keys, own };
        assert_eq!(package(channel), [of(0, 41_216), of(0, 41_216), of(0, 66_048)]);
        assert_eq!(package(head), [of(16_384, 16_912), of(16_384, 16_912), of(32_768, 16_912)]);
        let prepare = |kind: &Kind| [64, 128].map(|key_dim| (kind.bytes)(key_dim));
        assert_eq!(prepare(channel), [36_608, 52_480]);
        assert_eq!(prepare(head), [71_712, 71_712]);
        let walk = |kind| [(64, 1), (128, 1), (128, 2)].map(|(k, n)| walk_bytes(kind, k, n));
        assert_eq!(walk(channel), [157_440, 231_936, 182_272]);
        assert_eq!(walk(head), [133_680, 182_832, 215_600]);
    }
}
