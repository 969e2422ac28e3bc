//! `blocked.<isa>`: each block attends from a few queries of one key head's group and computes all branches in registers
//! and caches. `crates/ops/src/nsa/README.md` has the layout.
#![allow(unsafe_code)] // Vector loads and disjoint rows of outputs; every bound is asserted.

mod block;
mod branch;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod pool;
mod select;
mod tile;

use crate::stored::{Stored, StoredMut};
use block::{Block, Context, Scratch, Tile};
use device::{Device, Isa, SharedMut};
use ops::nsa::NsaProblem;
use ops::{Inputs, TensorMap, elements, elements_mut, floats};
use pool::{Pooled, pool};
use std::ops::Range;

/// Query lanes of a tile: enough to use a widened tile of keys several times, few enough for its scores to stay in L2.
const TILE_LANES: usize = 64;

/// Runs the variant for `isa`.
pub(super) fn run(
    isa: Isa,
    problem: &NsaProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let (d, dv) = (problem.head_dim, problem.value_dim);
    let pooled = |given: &str, names, size| match inputs.get(given) {
        Some(tensor) => Pooled::given(problem, tensor, size),
        None => pool(isa, problem, inputs, device, names, size),
    };
    let keys = || pooled("k_cmp", ["k", "cmp_k_weight", "cmp_k_pos"], d);
    let values = || pooled("v_cmp", ["v", "cmp_v_weight", "cmp_v_pos"], dv);
    let compressed_keys = problem.scores_compressed().then(keys);
    let compressed_values = problem.branches.compressed.then(values);

    // Outputs are removed from the map for the launch so that each can be borrowed mutably.
    let mut o = outputs.remove("o");
    let mut indices = outputs.remove("indices");
    let mut reads = outputs.remove("reads");
    if let Some(o) = &mut o {
        let context = Context {
            problem,
            q: Stored::new(inputs.tensor("q")),
            k: Stored::new(inputs.tensor("k")),
            v: Stored::new(inputs.tensor("v")),
            gates: ["g_cmp", "g_slc", "g_swa"].map(|name| inputs.get(name).map(floats)),
            given: inputs.get("block_indices").map(elements),
            pairs: isa == Isa::Avx512Bf16,
            compressed_keys,
            compressed_values,
            o: StoredMut::new(o),
            indices: SharedMut::new(elements_mut(indices.as_mut())),
            reads: SharedMut::new(elements_mut(reads.as_mut())),
        };
        let tiles = tiles(problem);
        let kernel = format!("nsa.blocked.{isa}");
        device.launch(&kernel, tiles.len(), Scratch::default, |scratch, index| {
            let block = Block { context: &context, tile: &tiles[index], scratch };
            crate::simd::dispatch(isa, block);
        });
    }
    let back = [("o", o), ("indices", indices), ("reads", reads)];
    outputs.extend(back.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor?))));
}

/// The grid. Late queries see more keys, so their tiles are first, and the threads finish together.
fn tiles(problem: &NsaProblem) -> Vec<Tile> {
    let step = (TILE_LANES / problem.group()).max(1);
    let mut tiles = Vec::new();
    for (sequence, queries) in problem.queries.iter().enumerate() {
        for start in (0..queries.len()).step_by(step) {
            let queries: Range<usize> = start..queries.len().min(start + step);
            tiles.extend((0..problem.kv_heads).map(|kv_head| Tile {
                sequence,
                kv_head,
                queries: queries.clone(),
            }));
        }
    }
    tiles.reverse();
    tiles
}
