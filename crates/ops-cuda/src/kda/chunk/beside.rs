//! Packages with one decay a head that are made while the walk is under way, on multiprocessors that it leaves idle. The contract stands in
//! `prepare_rest.cu`.

use super::kind::prepare_parts;
use super::per_head::{KIND, pairs};
use super::{CHUNK, Prepare};
use crate::{Planner, arguments, int, source};
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, Part};
use ops::DType;
use ops::kda::KdaProblem;

const PARTS: &[Part] = prepare_parts!("../prepare_head.cuh", "../prepare_rest.cu");

/// `MARKS_AT` and `MARK_CHUNKS` of `package.cuh`.
const MARKS_AT: usize = 32;
const MARK_CHUNKS: usize = 8;
/// `TEAMS` of `prepare_rest.cu`, and its bytes of a warp.
const TEAMS: usize = 3;
const OF_WARP: usize = 8;

/// Idle multiprocessors, and chunks of the longest sequence, below which all is made before the walk: 32 chunks gain 2 %, fewer
/// multiprocessors were not measured.
const FEWEST_MULTIPROCESSORS: usize = 24;
const FEWEST_CHUNKS: usize = 24;
/// Chunks that the walk has before it until the first of the others are ready.
const START: usize = 16;

/// What is left to be made beside the walk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Beside {
    /// Chunks of each sequence that are made before, and after these.
    pub first: usize,
    later: usize,
    /// Multiprocessors that make them.
    multiprocessors: usize,
}

impl Beside {
    /// `None` where it is better to make all before a walk of these blocks, each of which has a multiprocessor.
    pub(super) fn of(problem: &KdaProblem, multiprocessors: u32, walk: [u32; 3]) -> Option<Self> {
        let chunks = problem.sequences.longest().div_ceil(CHUNK);
        let idle = multiprocessors.checked_sub(walk.iter().product())? as usize;
        Self::of_chunks(chunks, problem.sequences.count() * (KIND.blocks)(problem), idle)
    }

    /// Of so many chunks of the longest sequence, each of so many packages that a block makes at once.
    fn of_chunks(chunks: usize, packages: usize, idle: usize) -> Option<Self> {
        if idle < FEWEST_MULTIPROCESSORS || chunks < FEWEST_CHUNKS {
            return None;
        }
        // Nanoseconds of a chunk of all sequences on one H200, heads of 128: of the walk, and where so many make packages, of which one takes
        // 4,500 of a multiprocessor by itself, with room for the walk beside it. What is slower gets ahead by what it will fall behind.
        let walked = 1_250;
        let made = 5_000 * packages / idle;
        let first = chunks * made.saturating_sub(walked) / made.max(1) + START;
        let later = chunks.checked_sub(first).filter(|later| *later > 0)?;
        Some(Self { first, later, multiprocessors: idle })
    }

    /// Marks of a sequence and key head.
    pub(super) fn groups(self) -> usize {
        self.later.div_ceil(MARK_CHUNKS)
    }

    /// Words that marks take.
    pub(super) fn mark_count(self, problem: &KdaProblem) -> usize {
        MARKS_AT + problem.sequences.count() * self.groups() * problem.heads
    }

    /// Behind the launch of the first chunks, which sets `marks` to 0.
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
        let grid = [self.multiprocessors as u32, 1, 1];
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
    fn what_cannot_be_made_in_time_is_made_before() {
        let first = |chunks, packages, idle| {
            let beside = Beside::of_chunks(chunks, packages, idle)?;
            assert_eq!([beside.first + beside.later, beside.multiprocessors], [chunks, idle]);
            Some(beside.first)
        };
        // 32 value heads of 128 columns on an H200, of 8192 and 65536 tokens: the walk is slower.
        assert_eq!([first(128, 16, 68), first(1024, 16, 68)], [Some(START); 2]);
        // 48 of them leave 36 multiprocessors, which make three chunks in the time of eight.
        assert_eq!(first(128, 24, 36), Some(128 * 2083 / 3333 + START));
        // Too few chunks, or too few to make them, or none that could be made in time.
        assert_eq!([first(FEWEST_CHUNKS - 1, 16, 68), first(128, 16, 20)], [None; 2]);
        assert_eq!(first(FEWEST_CHUNKS, 160, 24), None);
    }

    #[test]
    fn each_group_of_later_chunks_has_a_mark() {
        let groups = |chunks| Beside::of_chunks(chunks, 1, 128).unwrap().groups();
        assert_eq!([START + 8, START + 9, START + 16, START + 17].map(groups), [1, 2, 2, 3]);
    }
}
