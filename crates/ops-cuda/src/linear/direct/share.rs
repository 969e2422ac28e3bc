//! Shared memory of a block of `direct`: rows of x, or the block's part of K, and partial sums.

use super::{
    AGAIN, BLOCK, FEW, LITTLE, ROWS, SEGMENT, SPLITS, SUM_STRIDE, WARPS, Weights, by_groups,
    in_registers, shares,
};
use device::cuda::{ComputeCapability, CudaCapabilities};
use ops::linear::{LinearProblem, SCALED, Scales};

/// The shared-memory layout of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Rows of x of a launch.
    pub(super) tokens: usize,
    /// Tiles whose sums are in shared memory at once.
    pub(super) held: usize,
    /// Whether x is not in shared memory.
    pub(super) through: bool,
    /// The split-K factor; a block has one part.
    pub(super) parts: usize,
    /// Bytes of x, and of everything.
    pub(super) x: usize,
    pub(super) bytes: usize,
}

impl Share {
    /// For all rows at once or for as many as fit: quantized weights are small enough to be read again for the other
    /// rows.
    pub(super) fn of(
        problem: &LinearProblem,
        weights: Weights,
        here: &CudaCapabilities,
    ) -> Option<Self> {
        let all = problem.tokens;
        let mut sizes = [all, 16, FEW].into_iter().filter(|size| *size <= all);
        sizes.find_map(|tokens| {
            let of_parts = |parts| Self::of_rows(problem, weights, tokens, parts, here);
            // Measured on Hopper alone.
            let many = tokens > 16 && here.compute >= ComputeCapability::new(9, 0);
            let parts = || SPLITS.into_iter().filter(|_| many).find_map(of_parts);
            of_parts(1).or_else(parts).or_else(|| of_parts(0))
        })
    }

    /// Holds the sums of all tiles, otherwise as many as fit in [`LITTLE`] or in the available shared memory. With
    /// `parts` 0, x is read from global memory where it is multiplied. That and split-K are for calls with few tiles
    /// per block; split-K also needs group scales.
    pub(super) fn of_rows(
        problem: &LinearProblem,
        weights: Weights,
        tokens: usize,
        parts: usize,
        here: &CudaCapabilities,
    ) -> Option<Self> {
        let (through, parts) = (parts == 0, parts.max(1));
        let inputs = problem.inputs / parts;
        let converts = here.compute >= ComputeCapability::new(8, 9);
        let folded = weights.block(problem).is_some() && tokens > FEW;
        let halved =
            if weights.integers() { tokens <= 16 && !folded } else { tokens <= FEW && converts };
        let squares = problem.tokens <= 1 && problem.norm.is_some();
        let segments = if squares { inputs.div_ceil(SEGMENT) } else { 0 };
        let by_block = by_groups(problem, BLOCK) && !folded;
        let rounds = inputs.div_ceil(weights.round(by_block));
        let columns = rounds * weights.round(by_block);
        let (of_segment, more) = match (weights.four_bits(), by_block) {
            (false, _) => (4, 0),
            (true, false) => (20, 4),
            (true, true) => (68, 4),
        };
        let beside_x = if halved { of_segment * columns / SEGMENT } else { 0 };
        let x = (tokens * (2 * columns + 64 + 4 * segments + beside_x) + more).next_multiple_of(16);
        let sums = tokens.max(1) * 4 * WARPS * SUM_STRIDE;
        let tile = if problem.swiglu { ROWS / 2 } else { ROWS };
        let tiles_of = |share: usize| share.div_ceil(tile).max(1);
        let share_of = |parts| problem.columns().div_ceil(shares(problem, here, parts).max(1));
        let (share, few) = (share_of(parts), tiles_of(share_of(1)) <= AGAIN);
        let tiles = tiles_of(share);
        let whole = problem.inputs.is_multiple_of(parts * weights.round(by_block));
        let plain = !problem.swiglu && problem.convolution.is_none();
        let in_parts = few && whole && plain && problem.scales == Some(Scales::Groups);
        let registers = folded || weights.block(problem).is_none() && !problem.zeros;
        if parts > 1 && !in_parts || through && (halved || !registers || !few) {
            return None;
        }
        let grouped = by_groups(problem, SCALED) && !in_registers(problem, weights);
        let grouped = grouped && problem.tokens > 0;
        let rows = if problem.swiglu { 2 * share } else { share };
        let factors = if grouped { 4 * (inputs.div_ceil(SCALED) * rows + 2 * ROWS) } else { 0 };
        // The threads' static shared memory is not part of the dynamic size, and a block occupies 1 KiB more than it
        // requests.
        let parked = if problem.convolution.is_some() { 20 << 10 } else { 10 << 10 };
        let most = (here.shared_bytes as usize).checked_sub(parked + factors)?;
        let x = if through { 0 } else { x };
        [LITTLE.min(most), most].into_iter().find_map(|room| {
            let fit = room.checked_sub(x)? / sums;
            let ring = weights.ring(by_block, tokens);
            let whole = (1..=fit).rev().find(|held| (held * rounds).is_multiple_of(ring));
            let held = if fit >= tiles { tiles } else { whole? };
            Some(Self { tokens, held, through, parts, x, bytes: x + held * sums + factors })
        })
    }
}
