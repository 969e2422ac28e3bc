//! One decay per channel: `prepare.cu`.

use super::kind::{Kind, Package, prepare_parts};
use super::{BOX_BYTES, CHUNK};
use crate::source;

pub(super) static KIND: Kind = Kind {
    prepare: ("kda_prepare", prepare_parts!("../prepare.cu")),
    threads: 128,
    blocks: |problem| problem.value_heads,
    bytes: |key_dim| {
        let padded = key_dim.next_multiple_of(64);
        let (tile, matrix) = (16 * 2 * padded, 4 * CHUNK * 68);
        (12 * tile).max(2 * matrix) + 24 * padded + 4 * CHUNK
    },
    package: |key_dim| {
        let boxes = key_dim.div_ceil(64);
        Package { of_keys: 0, own: (3 * boxes + 2) * BOX_BYTES + 4 * 64 * boxes }
    },
    launch: |planner, (kernel, launch), args, _| planner.launch(kernel, launch, args),
    per_head: false,
    stages_of_two: 2,
    concurrent: false,
    // With overlap, 64 heads took an eighth longer.
    overlaps: false,
};
