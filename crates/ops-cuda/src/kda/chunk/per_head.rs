//! One decay per head: `prepare_head.cu`, and `prepare_rest.cu` concurrently with `walk.cu`.

use super::kind::{Kind, Package, prepare_parts};
use super::{BOX_BYTES, CHUNK, Prepare};
use crate::{arguments, source};
use ops::kda::KdaProblem;

/// Value heads of one key head per block.
const HEADS: usize = 2;

pub(super) static KIND: Kind = Kind {
    prepare: ("gated_delta_prepare", prepare_parts!("../prepare_head.cuh", "../prepare_head.cu")),
    threads: 256,
    blocks: |problem| problem.heads * pairs(problem),
    bytes: |key_dim| {
        let padded = key_dim.next_multiple_of(64);
        let (tiles, matrices) = (8 * 16 * 2 * padded, HEADS * 4 * CHUNK * 68);
        tiles.max(matrices) + matrices + (8 + HEADS * 12) * CHUNK + HEADS * 16
    },
    package: |key_dim| {
        let keys = key_dim.div_ceil(64) * BOX_BYTES;
        Package { of_keys: 2 * keys, own: 2 * BOX_BYTES + 8 * CHUNK + 16 }
    },
    launch: |planner, (kernel, launch), all, (marks, mark_count)| {
        planner.launch(kernel, launch, PrepareHead { all, marks, mark_count });
    },
    per_head: true,
    stages_of_two: 3,
    concurrent: true,
    overlaps: true,
};

/// Groups of [`HEADS`] value heads per key head.
pub(super) fn pairs(problem: &KdaProblem) -> usize {
    (problem.value_heads / problem.heads).div_ceil(HEADS)
}

arguments! {
    PrepareHead: gated_delta_prepare { all: (Prepare), marks: Nullable, mark_count: i32 }
}
