//! Computes packages with one decay per head concurrently with `walk.cu`, on SMs that it leaves idle. The contract is in
//! `prepare_rest.cu`.

use super::kind::prepare_parts;
use super::per_head::{KIND, pairs};
use super::{CHUNK, Prepare};
use crate::{Planner, arguments, int, source};
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::DType;
use ops::kda::KdaProblem;

const PARTS: &[SourcePart] = prepare_parts!("../prepare_head.cuh", "../prepare_rest.cu");

/// `MARKS_AT` and `MARK_CHUNKS` of `package.cuh`.
const MARKS_AT: usize = 32;
const MARK_CHUNKS: usize = 8;
/// `TEAMS` of `prepare_rest.cu`, and its bytes of a warp.
const TEAMS: usize = 3;
const OF_WARP: usize = 8;

/// Minimum number of idle SMs, and of chunks of the longest sequence, for concurrent preparation. 32 chunks gain 2 %; fewer SMs were
/// not measured.
const MIN_IDLE_SMS: usize = 24;
const MIN_CHUNKS: usize = 24;
/// Minimum number of chunks prepared in advance, which `walk.cu` processes until the first concurrent ones are ready.
const START: usize = 16;

/// The split between chunks prepared before `walk.cu` starts and chunks prepared concurrently.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ConcurrentPrepare {
    /// Chunks per sequence prepared before, and concurrently.
    pub first: usize,
    later: usize,
    /// SMs that prepare concurrently.
    sms: usize,
}

impl ConcurrentPrepare {
    /// The split for a `walk.cu` grid whose blocks occupy one SM each; `None` if preparing all chunks before is better.
    pub(super) fn of(problem: &KdaProblem, sms: u32, walk_grid: [u32; 3]) -> Option<Self> {
        let chunks = problem.sequences.longest().div_ceil(CHUNK);
        let idle = sms.checked_sub(walk_grid.iter().product())? as usize;
        Self::of_chunks(chunks, problem.sequences.count() * (KIND.blocks)(problem), idle)
    }

    /// The split for `chunks` chunks of the longest sequence and `packages` blocks per chunk over all sequences.
    fn of_chunks(chunks: usize, packages: usize, idle: usize) -> Option<Self> {
        if idle < MIN_IDLE_SMS || chunks < MIN_CHUNKS {
            return None;
        }
        // Nanoseconds per chunk of all sequences on one H200, heads of 128: of `walk.cu`, and of the preparation on `idle` SMs. A block
        // of packages takes 4,500 ns of an SM alone, and about 5,000 ns while `walk.cu` runs. If the preparation is slower, it gets a
        // head start of the chunks that it would fall short by.
        let walk_ns = 1_250;
        let prepare_ns = 5_000 * packages / idle;
        let first = chunks * prepare_ns.saturating_sub(walk_ns) / prepare_ns.max(1) + START;
        let later = chunks.checked_sub(first).filter(|later| *later > 0)?;
        Some(Self { first, later, sms: idle })
    }

    /// Flags per sequence and key head.
    pub(super) fn groups(self) -> usize {
        self.later.div_ceil(MARK_CHUNKS)
    }

    /// Words of all flags.
    pub(super) fn mark_count(self, problem: &KdaProblem) -> usize {
        MARKS_AT + problem.sequences.count() * self.groups() * problem.heads
    }

    /// Adds the concurrent launch, after that of the first chunks, which sets `marks` to 0.
    pub(super) fn launch<'a>(
        self,
        problem: &KdaProblem,
        planner: &mut Planner<'_>,
        all: Prepare<'a>,
        marks: &'a Buffer,
    ) -> Result<(), DeviceError> {
        let kernel = planner.kernel(&source(problem.dtype, problem.key_dim, planner.arch()))?;
        let (sequences, blocks) = (problem.sequences.count(), (KIND.blocks)(problem));
        let args = PrepareRest {
            all,
            marks,
            sequences: int(sequences)?,
            first_chunk: int(self.first)?,
            groups: int(self.groups())?,
            of_key_head: int(problem.value_heads / problem.heads)?,
            pairs: int(pairs(problem))?,
            blocks: int(blocks)?,
            end: int(self.later * sequences * blocks)?,
        };
        let bytes = TEAMS * ((KIND.bytes)(problem.key_dim) + 8 * OF_WARP);
        let grid = [self.sms as u32, 1, 1];
        let launch = Launch::new(grid, 256 * TEAMS as u32, bytes as u32);
        planner.launch(kernel, planner.overlapping(launch), args);
        Ok(())
    }
}

pub(super) fn source(dtype: DType, key_dim: usize, arch: GpuArch) -> KernelSource {
    KIND.source("gated_delta_prepare_rest", PARTS, (dtype, key_dim), arch).define("REST", 1)
}

arguments! {
    PrepareRest: gated_delta_prepare_rest {
        all: (Prepare), marks: Pointer, sequences: i32, first_chunk: i32, groups: i32, of_key_head: i32, pairs: i32, blocks: i32,
        end: i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_preparation_gets_a_head_start() {
        let first = |chunks, packages, idle| {
            let concurrent = ConcurrentPrepare::of_chunks(chunks, packages, idle)?;
            assert_eq!([concurrent.first + concurrent.later, concurrent.sms], [chunks, idle]);
            Some(concurrent.first)
        };
        // 32 value heads of 128 columns on an H200, of 8192 and 65536 tokens: `walk.cu` is slower.
        assert_eq!([first(128, 16, 68), first(1024, 16, 68)], [Some(START); 2]);
        // 48 value heads leave 36 idle SMs, which prepare three chunks in the time of eight.
        assert_eq!(first(128, 24, 36), Some(128 * 2083 / 3333 + START));
        // Too few chunks, too few idle SMs, or no chunk that would be ready in time.
        assert_eq!([first(MIN_CHUNKS - 1, 16, 68), first(128, 16, 20)], [None; 2]);
        assert_eq!(first(MIN_CHUNKS, 160, 24), None);
    }

    #[test]
    fn each_group_of_later_chunks_has_a_mark() {
        let groups = |chunks| ConcurrentPrepare::of_chunks(chunks, 1, 128).unwrap().groups();
        assert_eq!([START + 8, START + 9, START + 16, START + 17].map(groups), [1, 2, 2, 3]);
    }
}
