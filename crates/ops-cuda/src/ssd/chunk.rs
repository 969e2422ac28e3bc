//! `chunk`: chunks of 64 tokens by matrix products; long sequences are split into segments if there are few of them.
//! The contracts are in `states.cu`, `combine.cu` and `chunk.cu`.

use super::operands::{MAX_GRID_YZ, Operands, Settings, TokenStrides, unfit};
use super::segments;
use crate::{CudaVariant, Planner, arguments, int, slots, source};
use device::cuda::{
    BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::ssd::SsdProblem;
use ops::{ChoiceTable, DType};

pub(super) const VARIANT: CudaVariant<SsdProblem> = CudaVariant { name: "chunk", why_not, plan };

const CHUNK: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("../include/storage.cuh"),
    source!("decays.cuh"),
    source!("state.cuh"),
    source!("chunk.cuh"),
    source!("chunk.cu"),
];
const STATES: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("../include/storage.cuh"),
    source!("decays.cuh"),
    source!("state.cuh"),
    source!("chunk.cuh"),
    source!("states.cu"),
];
/// Maximum number of warps of a block: a warp's state takes half of its registers.
const MAX_WARPS: usize = 8;

/// Tiling of the work: macros of `chunk.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    heads: usize,
    column_tiles: usize,
    stages: usize,
}

/// Heads of a block and stages of its loads, in order of preference: the first whose heads divide a group and whose
/// warps and shared memory are within the limits.
const SHAPES: &[(usize, usize)] = &[(4, 2), (2, 2), (4, 1), (2, 1), (1, 2), (1, 1)];

pub(super) fn table() -> ChoiceTable {
    let row = |(heads, stages): &(usize, usize)| vec![heads.to_string(), stages.to_string()];
    ChoiceTable {
        title: "block of ssd's chunk: the first row whose heads divide a group and whose shared memory the GPU has",
        columns: &["heads", "stages"],
        rows: SHAPES.iter().map(row).collect(),
    }
}

/// Bytes of a row of storage elements, as `Rows` of `ampere.cuh` has them.
fn row_bytes(columns: usize) -> usize {
    2 * columns + if columns.is_multiple_of(64) { 0 } else { 16 }
}

impl Tile {
    fn warps(&self, head_dim: usize) -> usize {
        self.heads * head_dim / (16 * self.column_tiles)
    }

    /// `SHARED_BYTES` of `chunk.cuh`.
    fn shared_bytes(&self, head_dim: usize, state_dim: usize, states_only: bool) -> usize {
        let width = self.heads * head_dim;
        let projections = if states_only { 1 } else { 2 };
        let stage =
            segments::CHUNK_TOKENS * (projections * row_bytes(state_dim) + row_bytes(width));
        let loads = self.stages * stage + 2 * self.heads * 4 * segments::CHUNK_TOKENS * 4 + 16;
        if states_only {
            return loads;
        }
        let mixes = self.heads * segments::CHUNK_TOKENS * row_bytes(segments::CHUNK_TOKENS);
        let staging = self.warps(head_dim) * 16 * (32 * self.column_tiles + 16);
        loads + mixes + staging + 4 * width
    }
}

fn choose(problem: &SsdProblem, shared_bytes: u32) -> Option<Tile> {
    let (head_dim, state_dim) = (problem.head_dim, problem.state_dim);
    let fits = head_dim > 0
        && state_dim > 0
        && head_dim.is_multiple_of(16)
        && state_dim.is_multiple_of(32)
        && state_dim <= 256;
    if !fits {
        return None;
    }
    let column_tiles = if head_dim.is_multiple_of(32) && state_dim <= 128 { 2 } else { 1 };
    let mut tiles =
        SHAPES.iter().map(|(heads, stages)| Tile { heads: *heads, column_tiles, stages: *stages });
    tiles.find(|tile| {
        problem.heads_per_group().is_multiple_of(tile.heads)
            && tile.warps(head_dim) <= MAX_WARPS
            && tile.shared_bytes(head_dim, state_dim, false) <= shared_bytes as usize
    })
}

fn why_not(problem: &SsdProblem, here: &CudaCapabilities) -> Option<String> {
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    if problem.sequences.count() > MAX_GRID_YZ {
        return Some(format!(
            "needs up to {MAX_GRID_YZ} sequences, got {}",
            problem.sequences.count()
        ));
    }
    if choose(problem, here.shared_bytes).is_none() {
        return Some(format!(
            "needs P a multiple of 16 up to 128 (256 where it is one of 32 and N is up to 128), N one of 32 up to \
             256, and shared memory for both, got P {} and N {}",
            problem.head_dim, problem.state_dim
        ));
    }
    unfit(problem, here)
}

fn source(
    (name, parts): (&'static str, &'static [SourcePart]),
    dtype: DType,
    (head_dim, state_dim): (usize, usize),
    tile: Tile,
    arch: GpuArch,
) -> KernelSource {
    KernelSource::new(name, parts, arch)
        .define("DTYPE", dtype)
        .define("P", head_dim)
        .define("N", state_dim)
        .define("HEADS", tile.heads)
        .define("COLUMN_TILES", tile.column_tiles)
        .define("STAGES", tile.stages)
        .define("STATES_ONLY", usize::from(name == STATES_KERNEL.0))
}

/// The chunk kernel for states of a type.
fn chunk(source: KernelSource, states: DType) -> KernelSource {
    source.define("STATE_BF16", u8::from(states == DType::Bf16))
}

/// The kernel for tensors with strided tokens: an additional argument takes registers, which are scarce.
fn form(source: KernelSource, strided: bool) -> KernelSource {
    if strided { source.define("STRIDED", 1) } else { source }
}

/// Whether any tensor has strided tokens.
fn strided(problem: &SsdProblem, operands: &Operands) -> Result<bool, DeviceError> {
    let TokenStrides { x, b, c, z, .. } = operands.strides;
    // Rows of these are copied in pieces of 16 bytes.
    for (tensor, stride) in [("x", x), ("B", b), ("C", c), ("z", z)] {
        if stride % 8 != 0 {
            return Err(DeviceError::Layout {
                tensor,
                wanted: "with tokens at multiples of 16 bytes",
            });
        }
    }
    if b != c {
        return Err(DeviceError::Layout {
            tensor: "C",
            wanted: "with tokens as far apart as those of B",
        });
    }
    Ok(operands.strides != TokenStrides::dense(problem)?)
}

const CHUNK_KERNEL: (&str, &[SourcePart]) = ("ssd_chunk", CHUNK);
const STATES_KERNEL: (&str, &[SourcePart]) = ("ssd_states", STATES);

/// Targets for which the compiler spills no registers of the chunk kernel; other GPUs compile it on first use.
fn fits_registers(arch: &BundledArch) -> bool {
    [(8, 6), (8, 9), (9, 0)].contains(&(arch.compute.major, arch.compute.minor))
}

/// P 64 and N 128 with heads in fours, as the models have them.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let dims = (64, 128);
    let fits = |(heads, stages): &(usize, usize)| {
        let tile = Tile { heads: *heads, column_tiles: 2, stages: *stages };
        (tile.shared_bytes(dims.0, dims.1, false) <= arch.shared_bytes as usize).then_some(tile)
    };
    let combine = |states| segments::combine_source(states, arch.arch());
    let combine = [DType::F32, DType::Bf16].map(combine);
    let Some(tile) = SHAPES.iter().find_map(fits).filter(|_| fits_registers(arch)) else {
        return combine.to_vec();
    };
    let of = |kernel| source(kernel, DType::Bf16, dims, tile, arch.arch());
    let chunk_of = |states| chunk(of(CHUNK_KERNEL), states);
    let dense = [chunk_of(DType::F32), of(STATES_KERNEL)];
    // As models pass them: parts of one projection.
    let strided = [chunk_of(DType::F32), chunk_of(DType::Bf16), of(STATES_KERNEL)];
    let strided = strided.map(|source| form(source, true));
    dense.into_iter().chain(combine).chain(strided).collect()
}

arguments! {
    SsdChunk: ssd_chunk {
        x: Pointer, dt: Pointer, rate: Pointer, b: Pointer, c: Pointer, d: Nullable, z: Nullable, dt_bias: Nullable,
        initial_state: Nullable, cu_seqlens: Nullable, state_indices: Nullable, states: Nullable, o: Pointer,
        final_state: Pointer, tokens: i32, heads: i32, groups: i32, x_row: i32, dt_row: i32, b_row: i32, z_row: i32,
        segments: i32, settings: (Settings),
    }
}

fn plan(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let Some(tile) = choose(problem, planner.here().shared_bytes) else {
        return Err(DeviceError::Refused {
            what: format!("chunk has no tile for P {}", problem.head_dim),
        });
    };
    let dims = (problem.head_dim, problem.state_dim);
    let operands = Operands::new(problem, planner)?;
    let strided = strided(problem, &operands)?;
    let sequences = problem.sequences.count();
    // With in-place states, the first segment's block would read the state that the last segment's block writes.
    let before = operands.initial_state.as_ref().map(|state| state.address());
    let segments = if before == Some(operands.final_state.address()) {
        1
    } else {
        segments::count(problem, tile.heads, planner.here().multiprocessors as usize)
    };
    let head_blocks = (problem.heads / tile.heads) as u32;
    let threads = 32 * tile.warps(problem.head_dim) as u32;
    let states = if segments > 1 {
        let kernel =
            form(source(STATES_KERNEL, problem.dtype, dims, tile, planner.arch()), strided);
        let kernel = planner.kernel(&kernel)?;
        let shared = tile.shared_bytes(dims.0, dims.1, true) as u32;
        let launch =
            Launch::new([head_blocks, segments as u32 - 1, sequences as u32], threads, shared);
        let states = (kernel, launch);
        Some(segments::plan_states(problem, planner, &operands, states, segments)?)
    } else {
        None
    };
    let kernel = source(CHUNK_KERNEL, problem.dtype, dims, tile, planner.arch());
    let kernel = planner.kernel(&form(chunk(kernel, problem.state_dtype), strided))?;
    let args = SsdChunk {
        x: &operands.x,
        dt: &operands.dt,
        rate: &operands.rate,
        b: &operands.b,
        c: &operands.c,
        d: operands.d.as_deref(),
        z: operands.z.as_deref(),
        dt_bias: operands.dt_bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        states: states.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        x_row: operands.strides.x,
        dt_row: operands.strides.dt,
        b_row: operands.strides.b,
        z_row: operands.strides.z,
        segments: int(segments)?,
        settings: operands.settings(),
    };
    let shared = tile.shared_bytes(dims.0, dims.1, false) as u32;
    let grid = [head_blocks, segments as u32, sequences as u32];
    let launch = Launch { overlaps: segments > 1, ..Launch::new(grid, threads, shared) };
    planner.launch(kernel, launch, args);
    slots::copy_unused(planner, &problem.slots, sequences, problem.heads * problem.state_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_for_the_models_are_bundled_and_fit() {
        for arch in BundledArch::ALL {
            let expect = if fits_registers(arch) { 7 } else { 2 };
            assert_eq!(bundled(arch).len(), expect, "{}", arch.arch());
        }
        // By hand: stages of 2 * 16 KiB of B and C and 32 KiB of x, decays, mixing weights, staging, D.
        let tile = Tile { heads: 4, column_tiles: 2, stages: 2 };
        let expect = 2 * (65536 + 4 * 1024) + 4 * 8192 + 8 * 16 * 80 + 4 * 256 + 16;
        assert_eq!(tile.shared_bytes(64, 128, false), expect);
        assert_eq!(tile.shared_bytes(64, 128, true), 2 * (49152 + 4 * 1024) + 16);
    }
}
