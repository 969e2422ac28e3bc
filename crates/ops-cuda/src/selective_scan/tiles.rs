//! `tiles`: prefill, with tiles of tokens in shared memory. The contract is in `tiles.cu`.

use super::operands::{MAX_GRID_YZ, Operands, ScanArguments, TokenStrides, unfit};
use crate::{CudaVariant, Planner, arguments, slots, source};
use device::cuda::{
    BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::selective_scan::SelectiveScanProblem;

pub(super) const VARIANT: CudaVariant<SelectiveScanProblem> =
    CudaVariant { name: "tiles", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("../include/storage.cuh"),
    source!("update.cuh"),
    source!("tiles.cu"),
];

/// Lanes per channel, `LANES` of the kernel.
const LANES: usize = 4;
/// Channels of a block: maximum and minimum.
const CHANNELS: [usize; 2] = [64, 16];

fn why_not(problem: &SelectiveScanProblem, here: &CudaCapabilities) -> Option<String> {
    let sequences = problem.sequences.count();
    if sequences > MAX_GRID_YZ {
        return Some(format!("needs up to {MAX_GRID_YZ} sequences, got {sequences}"));
    }
    unfit(problem, here)
}

/// Compile-time parameters of the kernel.
#[derive(Debug, Clone, Copy)]
struct Tile {
    dtype: DType,
    /// Whether step sizes are float32.
    wide: bool,
    state_dim: usize,
    channels: usize,
    /// Elements per `cp.async`: of u, z and delta, and of B and C.
    pieces: [usize; 2],
}

impl Tile {
    /// Tokens of a tile: fewer for wide states, whose B and C fill the shared memory.
    fn tokens(&self) -> usize {
        match self.state_dim {
            ..=32 => 32,
            33..=128 => 16,
            _ => 8,
        }
    }

    /// Dynamic shared memory of the kernel, bytes.
    fn shared_bytes(&self) -> usize {
        let (n, element) = (self.state_dim, self.dtype.bytes());
        let delta = if self.wide { 4 } else { element };
        let stage =
            (self.channels + 8) * (2 * element + delta) + 2 * (n * element).next_multiple_of(16);
        let vector = match n {
            ..=4 => 1,
            5..=8 => 2,
            _ => 4,
        };
        let wide = 8 * self.channels + 2 * 4 * n.next_multiple_of(LANES * vector);
        self.tokens() * (2 * stage + wide)
    }

    fn source(&self, arch: GpuArch) -> KernelSource {
        KernelSource::new("selective_scan_tiles", PARTS, arch)
            .define("DTYPE", self.dtype)
            .define("DELTA_F32", u8::from(self.wide))
            .define("N", self.state_dim)
            .define("CHANNELS", self.channels)
            .define("TOKENS", self.tokens())
            .define("PIECE", self.pieces[0])
            .define("PROJECTION", self.pieces[1])
    }
}

/// The kernels of the shapes that models use.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let of =
        |channels| Tile { dtype: DType::Bf16, wide: true, state_dim: 16, channels, pieces: [8, 8] };
    CHANNELS.map(|channels| of(channels).source(arch.arch())).to_vec()
}

/// Channels of a block: the minimum if that reduces the work of the busiest SM by a quarter; otherwise the maximum, whose
/// channels share B and C and whose accesses are wider.
fn channels(per_group: usize, others: usize, multiprocessors: usize) -> usize {
    let [most, least] = CHANNELS;
    let busiest = |channels: usize| {
        let blocks = per_group.div_ceil(channels) * others;
        blocks.div_ceil(multiprocessors.max(1)) * channels
    };
    if 4 * busiest(least) <= 3 * busiest(most) { least } else { most }
}

arguments! {
    SelectiveScanTiles: selective_scan_tiles { given: (ScanArguments) }
}

fn plan(problem: &SelectiveScanProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let strides = TokenStrides::of(problem, planner)?;
    let (sequences, per_group) = (problem.sequences.count(), problem.channels_per_group());
    let most = 16 / problem.dtype.bytes();
    let others = problem.groups * sequences;
    let tile = Tile {
        dtype: problem.dtype,
        wide: planner.is_f32("delta") == 1,
        state_dim: problem.state_dim,
        channels: channels(per_group, others, planner.here().multiprocessors as usize),
        pieces: [strides.channel_piece(problem, most), strides.state_piece(problem, most)],
    };
    let kernel = planner.kernel(&tile.source(planner.arch()))?;
    let operands = Operands::new(problem, strides, planner)?;
    let blocks = problem.groups * per_group.div_ceil(tile.channels);
    let threads = (LANES * tile.channels) as u32;
    let grid = [blocks as u32, sequences as u32, 1];
    let launch = planner.overlapping(Launch::new(grid, threads, tile.shared_bytes() as u32));
    planner.launch(kernel, launch, SelectiveScanTiles { given: operands.arguments() });
    slots::copy_unused(planner, &problem.slots, sequences, problem.channels * problem.state_dim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_narrow_when_wide_ones_leave_sms_idle() {
        for (per_group, others, expect) in [
            (8192, 1, 64),
            (8192, 8, 64),
            (1536, 1, 16),
            (1536, 64, 64),
            (5120, 1, 16),
            (4096, 1, 16),
        ] {
            assert_eq!(channels(per_group, others, 132), expect, "{per_group} {others}");
        }
    }

    #[test]
    fn shared_memory_of_every_tile_fits_every_gpu() {
        // By hand: stages of u, z and delta of 72 channels, B and C; steps of 64 channels, wide B and C.
        let tile =
            |dtype, state_dim, wide| Tile { dtype, wide, state_dim, channels: 64, pieces: [1, 1] };
        let stage = 32 * (72 * 2 * 2 + 72 * 4 + 2 * 32);
        let expect = 2 * stage + 32 * 64 * 8 + 2 * 32 * 16 * 4;
        assert_eq!(tile(DType::Bf16, 16, true).shared_bytes(), expect);
        for state_dim in 1..=256 {
            let bytes = tile(DType::F32, state_dim, true).shared_bytes();
            assert!(
                BundledArch::ALL.iter().all(|arch| bytes <= arch.shared_bytes as usize),
                "{state_dim}: {bytes}"
            );
        }
    }
}
