//! `chunk.hopper`: what a chunk needs besides the state, of all chunks at once, and then the state's walk over them. The
//! contracts stand in `prepare.cu` (one decay a channel), `prepare_head.cu` (one a head), `package.cuh` and `walk.cu`.

use super::operands::{Gates, Operands, storage_macros, too_many};
use crate::DType;
use crate::cuda::source;
use crate::cuda::{CudaVariant, Planner, arguments, int, slots};
use crate::kda::{Decays, KdaProblem};
use device::cuda::{
    ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch, Part,
};

pub(super) const VARIANT: CudaVariant<KdaProblem> =
    CudaVariant { name: "chunk.hopper", why_not, plan };

const PREPARE: &[Part] = &[
    source!("../../cuda/hopper.cuh"),
    source!("gates.cuh"),
    source!("package.cuh"),
    source!("prepare_gates.cuh"),
    source!("prepare_load.cuh"),
    source!("prepare_solve.cuh"),
    source!("prepare_parts.cuh"),
    source!("prepare.cu"),
];
const PREPARE_HEAD: &[Part] = &[
    source!("../../cuda/hopper.cuh"),
    source!("gates.cuh"),
    source!("package.cuh"),
    source!("prepare_gates.cuh"),
    source!("prepare_load.cuh"),
    source!("prepare_solve.cuh"),
    source!("prepare_parts.cuh"),
    source!("prepare_head.cu"),
];
const WALK: &[Part] = &[
    source!("../../cuda/hopper.cuh"),
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

/// `PACKAGE_BYTES` of `package.cuh`.
fn package_bytes(key_dim: usize) -> usize {
    let padded = key_dim.next_multiple_of(64);
    3 * padded / 64 * BOX_BYTES + 2 * BOX_BYTES + 4 * padded
}

/// `SHARED_BYTES` of `prepare.cu` or `prepare_head.cu`.
fn prepare_bytes(decays: Decays, key_dim: usize) -> usize {
    let padded = key_dim.next_multiple_of(64);
    let (tile, matrix) = (16 * 2 * padded, 4 * CHUNK * 68);
    match decays {
        Decays::PerChannel => (12 * tile).max(2 * matrix) + 24 * padded + 4 * CHUNK,
        Decays::PerHead => (8 * tile).max(matrix) + matrix + 36 * CHUNK + 16,
    }
}

/// Chunks in shared memory at once: as many as fit.
fn stages(warpgroups: usize) -> usize {
    if warpgroups == 1 { 3 } else { 2 }
}

/// `SHARED_BYTES` of `walk.cu`.
fn walk_bytes(key_dim: usize, warpgroups: usize) -> usize {
    let stage = package_bytes(key_dim) + warpgroups * BOX_BYTES;
    stages(warpgroups) * stage + warpgroups * 4 * CHUNK * 32 + 1024
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
    storage_macros(KernelSource::new(name, parts, arch), dtype).define("KD", key_dim)
}

fn walk_source(
    dtype: DType,
    (key_dim, value_dim): (usize, usize),
    warpgroups: usize,
    arch: GpuArch,
) -> KernelSource {
    storage_macros(KernelSource::new("kda_walk", WALK, arch), dtype)
        .define("KD", key_dim)
        .define("VD", value_dim)
        .define("WARPGROUPS", warpgroups)
        .define("STAGES", stages(warpgroups))
}

/// Common shapes, for the bundle. The walk does not depend on the decays.
pub(super) fn bundled(decays: Decays) -> Vec<KernelSource> {
    let arch = || GpuArch::of(HOPPER);
    let mut sources = Vec::new();
    for dtype in [DType::Bf16, DType::F16] {
        for dim in [64, 128] {
            sources.push(prepare_source(decays, dtype, dim, arch()));
            for warpgroups in 1..=dim / 64 {
                sources.push(walk_source(dtype, (dim, dim), warpgroups, arch()));
            }
        }
    }
    sources
}

arguments! {
    Prepare: kda_prepare | gated_delta_prepare {
        q: Pointer, k: Pointer, g: Pointer, beta: Pointer, a_log: Nullable, dt_bias: Nullable, packages: Pointer,
        offsets: Nullable, slots: Nullable, tokens: i32, heads: i32, value_heads: i32, gates: (Gates),
    }
}

arguments! {
    Walk: kda_walk {
        packages: Pointer, v: Pointer, initial: Nullable, o: Pointer, final_state: Pointer, offsets: Nullable, slots: Nullable,
        tokens: i32, value_heads: i32, types: i32,
    }
}

fn plan(problem: &KdaProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (key_dim, value_dim) = (problem.key_dim, problem.value_dim);
    let source = prepare_source(problem.decays, problem.dtype, key_dim, planner.arch());
    let prepare = planner.kernel(&source)?;
    let warpgroups = warpgroups(problem, planner.here().multiprocessors);
    let source = walk_source(problem.dtype, (key_dim, value_dim), warpgroups, planner.arch());
    let walk = planner.kernel(&source)?;
    let operands = Operands::new(problem, planner)?;

    let (count, heads) = (problem.sequences.count(), problem.value_heads);
    let chunks = problem.sequences.longest().div_ceil(CHUNK);
    // As `find_sequence` of package.cuh places them.
    let slots = match operands.offsets {
        Some(_) => problem.sequences.total() / CHUNK + count,
        None => count * chunks,
    };
    let packages = planner.scratch(slots * heads * package_bytes(key_dim) / 4)?;

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
    let grid = [heads as u32, chunks as u32, count as u32];
    let bytes = prepare_bytes(problem.decays, key_dim);
    planner.launch(prepare, Launch::new(grid, 128, bytes as u32), args);

    let args = Walk {
        packages: &packages,
        v: &operands.v,
        initial: operands.initial.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        offsets: operands.offsets.as_deref(),
        slots: operands.slots.as_deref(),
        tokens: operands.tokens,
        value_heads: int(problem.value_heads)?,
        types: operands.types,
    };
    let blocks = value_dim.div_ceil(64 * warpgroups) as u32;
    let threads = 128 * (warpgroups as u32 + 1);
    let launch = Launch::new(
        [blocks, heads as u32, count as u32],
        threads,
        walk_bytes(key_dim, warpgroups) as u32,
    );
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
        assert_eq!([60, 64, 128].map(package_bytes), [41_216, 41_216, 66_048]);
        let prepare = |decays| [64, 128].map(|key_dim| prepare_bytes(decays, key_dim));
        assert_eq!(prepare(Decays::PerChannel), [36_608, 52_480]);
        assert_eq!(prepare(Decays::PerHead), [37_136, 52_496]);
        assert_eq!(walk_bytes(64, 1), 157_440);
        assert_eq!(walk_bytes(128, 1), 231_936);
        assert_eq!(walk_bytes(128, 2), 182_272);
    }
}
