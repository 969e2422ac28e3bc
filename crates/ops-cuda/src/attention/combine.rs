//! Split-KV attention: the number of splits, the buffers of their partial results, and the kernel that combines them. Its
//! contract is in `combine.cu`.

use super::operands::Operands;
use crate::{Planner, arguments, source};
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::DType;
use ops::attention::AttentionProblem;
use std::sync::Arc;

const SOURCE: &[SourcePart] = &[source!("../include/ampere.cuh"), source!("combine.cu")];

arguments! {
    AttentionCombine: attention_combine {
        partial_o: Pointer, partial_lse: Pointer, o: Pointer, lse: Pointer, cu_q: Nullable, splits: i32, rows: i32, heads: i32,
        tq: i32,
    }
}

/// Columns of a block: narrow, so that a few rows with many splits still give every SM a block.
fn columns(value_dim: usize) -> usize {
    [64, 96].into_iter().find(|columns| value_dim.is_multiple_of(*columns)).unwrap_or(value_dim)
}

pub(super) fn source(dtype: DType, value_dim: usize, arch: GpuArch) -> KernelSource {
    KernelSource::new("attention_combine", SOURCE, arch)
        .define("DV", value_dim)
        .define("COLUMNS", columns(value_dim))
        .define("DTYPE", dtype)
}

/// Buffers for the partial results of a split call; without buffers if the keys are not split.
pub(super) struct Parts {
    splits: usize,
    /// Query rows times heads.
    rows: usize,
    /// Partial outputs `[splits, rows, Dv]` and their log-sum-exp `[splits, rows]`, f32.
    memory: Option<(Arc<Buffer>, Arc<Buffer>)>,
}

impl Parts {
    pub(super) fn new(
        problem: &AttentionProblem,
        planner: &mut Planner<'_>,
        splits: usize,
    ) -> Result<Self, DeviceError> {
        let rows = problem.queries.total() * problem.heads;
        let memory = if splits > 1 {
            let values = planner.scratch(splits * rows * problem.value_dim)?;
            Some((values, planner.scratch(splits * rows)?))
        } else {
            None
        };
        Ok(Self { splits, rows, memory })
    }

    /// The buffers of partial outputs and of their log-sum-exp.
    pub(super) fn buffers(&self) -> [Option<&Buffer>; 2] {
        let (values, lse) = self.memory.as_ref().map(|(values, lse)| (&**values, &**lse)).unzip();
        [values, lse]
    }

    /// Adds the launch that combines the partial results, if the keys are split.
    pub(super) fn combine(
        &self,
        problem: &AttentionProblem,
        operands: &Operands,
        planner: &mut Planner<'_>,
    ) -> Result<(), DeviceError> {
        let Some((values, lse)) = &self.memory else { return Ok(()) };
        let kernel = planner.kernel(&source(problem.dtype, problem.value_dim, planner.arch()))?;
        let args = AttentionCombine {
            partial_o: values,
            partial_lse: lse,
            o: &operands.o,
            lse: &operands.lse,
            cu_q: operands.cu_queries.as_deref(),
            splits: self.splits as i32,
            rows: self.rows as i32,
            heads: operands.heads,
            tq: operands.queries,
        };
        let shares = problem.value_dim / columns(problem.value_dim);
        let grid = [self.rows as u32, shares as u32, 1];
        let launch = planner.overlapping(Launch::new(grid, 256, 0));
        planner.launch(kernel, launch, args);
        Ok(())
    }
}

/// Number of keys of each sequence that at least one of its queries sees.
pub(super) fn keys_seen(problem: &AttentionProblem) -> Vec<usize> {
    let seen = |(queries, keys)| problem.mask.visible_to_any(queries, keys, 0..queries).len();
    problem.lengths().map(seen).collect()
}

/// Number of splits of the longest sequence's keys; shorter sequences get proportionally fewer. It minimizes the number of waves
/// times (tiles per block + 2), where 2 tiles are the cost of starting and ending a block. `README-decode.md` derives it.
pub(super) fn splits(
    seen: &[usize],
    blocks_of_share: usize,
    slots: usize,
    block_keys: usize,
) -> usize {
    let tiles: Vec<usize> = seen.iter().map(|keys| keys.div_ceil(block_keys)).collect();
    let most = tiles.iter().copied().max().unwrap_or(0).max(1);
    let cost = |splits: usize| {
        let shares = |tiles: &usize| splits.min((tiles * splits).div_ceil(most));
        let blocks = blocks_of_share * tiles.iter().map(shares).sum::<usize>();
        blocks.div_ceil(slots) as f64 * (most as f64 / splits as f64 + 2.0)
    };
    let mut best = 1;
    for splits in 2..=most.min(256) {
        if cost(splits) < cost(best) {
            best = splits;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_one_wave_and_are_one_when_sequences_suffice() {
        let check = |seen: &[usize], blocks, expect| {
            assert_eq!(splits(seen, blocks, 264, 64), expect, "{seen:?} {blocks}");
        };
        // One sequence with eight key heads: the splits fill exactly one wave.
        check(&[32768], 8, 33);
        // This many sequences fill the GPU without splits.
        check(&[1024; 264], 1, 1);
        check(&[], 8, 1);
        check(&[0, 0], 8, 1);
        check(&[1], 8, 1);
    }
}
