//! Importance of blocks from the compressed branch's probabilities, and the top n of them.

use super::branch::Buffers;
use crate::simd::Simd;
use ops::nsa::NsaProblem;

/// `importance[query * blocks + j]` for the select blocks `j < blocks` and every query of a tile whose compressed
/// scores (`tokens` of them) are in `buffers`.
#[inline(always)]
pub(super) fn importance<S: Simd>(
    s: S,
    problem: &NsaProblem,
    queries: usize,
    tokens: usize,
    blocks: usize,
    buffers: &Buffers,
    importance: &mut Vec<f32>,
) {
    let (l, d, block) = (problem.compress_block, problem.compress_stride, problem.select_block);
    let group = problem.group();
    importance.clear();
    importance.resize(queries * blocks, 0.0);
    let vectors = (queries * group).div_ceil(S::LANES);
    for j in 0..blocks {
        // Compressed blocks that start before the end of j and end after its start.
        let first = (j * block + 1).saturating_sub(l).div_ceil(d);
        let last = ((j + 1) * block).div_ceil(d).min(tokens);
        for vector in 0..vectors {
            let p = &buffers.scores[vector * tokens * S::LANES..][..tokens * S::LANES];
            let mut sum = s.splat(0.0);
            let mut lanes = [0f32; 16];
            // SAFETY: rows and `lanes` are whole vectors.
            unsafe {
                for (i, row) in p.chunks_exact(S::LANES).enumerate().take(last).skip(first) {
                    let shared = (i * d + l).min((j + 1) * block) - (i * d).max(j * block);
                    let weight = s.splat(shared as f32 / d as f32);
                    sum = s.fma(weight, s.load(row.as_ptr()), sum);
                }
                let inverse = s.load(buffers.inverse[vector * S::LANES..][..S::LANES].as_ptr());
                s.store(lanes[..S::LANES].as_mut_ptr(), s.mul(sum, inverse));
            }
            let first_lane = vector * S::LANES;
            let real = S::LANES.min(queries * group - first_lane);
            for (at, x) in lanes[..real].iter().enumerate() {
                importance[(first_lane + at) / group * blocks + j] += x;
            }
        }
    }
}

/// Adds to `chosen` the forced and the most important blocks of one query, `n` of its visible blocks, ascending. Ties are
/// broken by the lowest index, so the result does not depend on the sorting algorithm.
pub(super) fn top(
    problem: &NsaProblem,
    scores: &[f32],
    order: &mut Vec<u32>,
    chosen: &mut Vec<u32>,
) {
    let visible = scores.len();
    let forced = |j: usize| j < problem.initial_blocks || j + problem.local_blocks >= visible;
    let start = chosen.len();
    chosen.extend((0..visible).filter(|j| forced(*j)).map(|j| j as u32));
    let places = problem.select_count.min(visible) - (chosen.len() - start);
    order.clear();
    order.extend((0..visible).filter(|j| !forced(*j)).map(|j| j as u32));
    if places > 0 && places < order.len() {
        let importance = |j: &u32| scores[*j as usize];
        order.select_nth_unstable_by(places - 1, |a, b| {
            importance(b).total_cmp(&importance(a)).then(a.cmp(b))
        });
    }
    chosen.extend(&order[..places]);
    chosen[start..].sort_unstable();
}
