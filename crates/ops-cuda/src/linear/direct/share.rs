//! What a block of `direct` has in shared memory: rows of x, or a part of their depth, and sums.

use super::{
    AGAIN, BLOCK, FEW, LITTLE, ROWS, SEGMENT, SPLITS, SUM_STRIDE, WARPS, Weights, by_groups,
    in_registers, shares,
};
use device::cuda::{ComputeCapability, CudaCapabilities};
use ops::linear::{LinearProblem, SCALED, Scales};

/// What a block has in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Rows of x of a launch.
    pub(super) tokens: usize,
    /// Tiles whose sums lie there at once.
    pub(super) held: usize,
    /// Whether x does not lie there.
    pub(super) through: bool,
    /// Into so many the depth is cut, of which a block has one.
    pub(super) parts: usize,
    /// Bytes that x takes, and all.
    pub(super) x: usize,
    pub(super) bytes: usize,
}

impl Share {
    /// Of all rows at once, or of as many as have room: narrow weights are so few bytes that they may be read again for the others.
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

    /// All tiles' sums, or as many as take little, or as there is room for beside so many parts of the depth; with none x is read where it
    /// is multiplied. Both is for calls of few tiles a block, and parts for weights with factors of groups.
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
        // What threads park of their own is not dynamic, and a block takes a KiB more than it asks for.
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
