//! NSA in float64, query by query, from the formulas. It tests the visibility of each token, and shares no code with the
//! fast variants.

use super::check::{is_forced, visible_blocks};
use super::{Gate, NsaProblem, Pooling, check_selection};
use crate::{Inputs, Tensor, TensorMap};
use rayon::prelude::*;
use std::ops::Range;

/// The outputs with the reference's own selection.
pub(super) fn reference(problem: &NsaProblem, inputs: Inputs<'_>) -> TensorMap {
    match solve(problem, inputs, None) {
        Ok(outputs) => outputs,
        Err(broken) => unreachable!("only a selection from outside can be wrong: {broken}"),
    }
}

/// The outputs with the selection in `outputs`, after checking it; with the reference's own if `outputs` has none.
pub(super) fn reference_given(
    problem: &NsaProblem,
    inputs: Inputs<'_>,
    outputs: &TensorMap,
) -> Result<TensorMap, String> {
    let Some(indices) = outputs.get("indices") else { return solve(problem, inputs, None) };
    match indices.view::<i32>() {
        Some(values) if values.len() == rows(problem) * problem.select_count => {
            solve(problem, inputs, Some(values))
        }
        _ => Err(format!(
            "tensor `indices` is {} of shape {:?}, wanted i32 of {} rows of {}",
            indices.dtype(),
            indices.shape(),
            rows(problem),
            problem.select_count
        )),
    }
}

/// Rows of `indices` and `reads`: one per query and key head.
fn rows(problem: &NsaProblem) -> usize {
    problem.queries.total() * problem.kv_heads
}

/// Vectors of one key head of one sequence.
type Vectors = Vec<Vec<f64>>;

/// Keys and values of one key head of one sequence.
struct Head {
    /// [Tk][D]
    keys: Vectors,
    /// [Tk][Dv]
    values: Vectors,
    /// [Nc][D]
    compressed_keys: Vectors,
    /// [Nc][Dv]
    compressed_values: Vectors,
}

/// One query against one key head.
struct Row {
    /// [group][Dv]
    o: Vectors,
    /// Ascending.
    blocks: Vec<usize>,
    /// Compressed, selected, window.
    reads: [usize; 3],
}

struct Tensors {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Gate tensors of the three branches.
    gates: [Option<Vec<f64>>; 3],
    given: Option<Vec<f64>>,
    pooling: [Option<Vec<f64>>; 4],
    /// [B, Nc, Hkv, D] and [B, Nc, Hkv, Dv]
    compressed: [Option<Vec<f64>>; 2],
}

fn solve(
    problem: &NsaProblem,
    inputs: Inputs<'_>,
    chosen: Option<&[i32]>,
) -> Result<TensorMap, String> {
    let read = |name| inputs.get(name).map(Tensor::to_f64);
    let tensors = Tensors {
        q: inputs.tensor("q").to_f64(),
        k: inputs.tensor("k").to_f64(),
        v: inputs.tensor("v").to_f64(),
        gates: ["g_cmp", "g_slc", "g_swa"].map(read),
        given: read("block_indices"),
        pooling: ["cmp_k_weight", "cmp_k_pos", "cmp_v_weight", "cmp_v_pos"].map(read),
        compressed: ["k_cmp", "v_cmp"].map(read),
    };
    let (group, n) = (problem.group(), problem.select_count);
    let mut o = vec![0f64; problem.queries.total() * problem.heads * problem.value_dim];
    let mut indices = vec![-1f64; rows(problem) * n];
    let mut reads = vec![0f64; rows(problem) * 3];
    for (queries, keys) in problem.queries.iter().zip(problem.keys.iter()) {
        for kv_head in 0..problem.kv_heads {
            let head = head(problem, &tensors, keys.clone(), kv_head);
            let row = |query: usize| {
                // Queries are the last of the keys.
                let position =
                    (query - queries.start) as i64 + keys.len() as i64 - queries.len() as i64;
                let row = query * problem.kv_heads + kv_head;
                let chosen = chosen.map(|indices| &indices[row * n..][..n]);
                attend_all(problem, &tensors, &head, query, kv_head, position, chosen)
                    .map_err(|broken| format!("query {query}, key head {kv_head}: {broken}"))
            };
            let results: Vec<Result<Row, String>> =
                queries.clone().into_par_iter().map(row).collect();
            for (query, result) in queries.clone().zip(results) {
                let result = result?;
                let row = query * problem.kv_heads + kv_head;
                for (to, block) in indices[row * n..][..n].iter_mut().zip(&result.blocks) {
                    *to = *block as f64;
                }
                for (to, read) in reads[row * 3..][..3].iter_mut().zip(result.reads) {
                    *to = read as f64;
                }
                for (g, from) in result.o.iter().enumerate() {
                    let row = query * problem.heads + kv_head * group + g;
                    o[row * problem.value_dim..][..problem.value_dim].copy_from_slice(from);
                }
            }
        }
    }
    let shape = |rest: &[usize]| problem.queries.shape(rest);
    Ok(TensorMap::from([
        ("o".into(), Tensor::new(&shape(&[problem.heads, problem.value_dim]), o)),
        ("indices".into(), Tensor::new(&shape(&[problem.kv_heads, n]), indices)),
        ("reads".into(), Tensor::new(&shape(&[problem.kv_heads, 3]), reads)),
    ]))
}

fn head(problem: &NsaProblem, tensors: &Tensors, keys: Range<usize>, kv_head: usize) -> Head {
    let vectors = |from: &[f64], size: usize| -> Vectors {
        keys.clone()
            .map(|token| from[(token * problem.kv_heads + kv_head) * size..][..size].to_vec())
            .collect()
    };
    let [key_weight, key_positions, value_weight, value_positions] = &tensors.pooling;
    let pool = |vectors: &Vectors, weight: &Option<Vec<f64>>, positions: &Option<Vec<f64>>| {
        let size = vectors.first().map_or(0, Vec::len);
        let block = problem.compress_block * size;
        let weight = weight.as_ref().map(|w| &w[kv_head * block * size..][..block * size]);
        let positions = positions.as_ref().map(|p| &p[kv_head * block..][..block]);
        compress(problem, vectors, weight, positions)
    };
    let keys_here = vectors(&tensors.k, problem.head_dim);
    let values_here = vectors(&tensors.v, problem.value_dim);
    // Tensors that no branch needs are not computed: their pooling weights may be missing.
    let none = Vectors::new();
    let [given_keys, given_values] = &tensors.compressed;
    let given = |from: &Vec<f64>, size: usize| -> Vectors {
        // Cached compressed tokens exist for dense sequences only, so every sequence has `rows` of them.
        let rows = problem.compressed_tokens(keys.len());
        let sequence = if keys.is_empty() { 0 } else { keys.start / keys.len() };
        let tokens = sequence * rows..(sequence + 1) * rows;
        tokens
            .map(|token| from[(token * problem.kv_heads + kv_head) * size..][..size].to_vec())
            .collect()
    };
    let compressed_keys = if let Some(from) = given_keys {
        given(from, problem.head_dim)
    } else if problem.scores_compressed() {
        pool(&keys_here, key_weight, key_positions)
    } else {
        none.clone()
    };
    let compressed_values = if let Some(from) = given_values {
        given(from, problem.value_dim)
    } else if problem.branches.compressed {
        pool(&values_here, value_weight, value_positions)
    } else {
        none
    };
    Head { keys: keys_here, values: values_here, compressed_keys, compressed_values }
}

/// K_cmp[i] = phi(k[i d : i d + l]): the mean, or the concatenated block (plus positions) times `weight`.
fn compress(
    problem: &NsaProblem,
    vectors: &Vectors,
    weight: Option<&[f64]>,
    positions: Option<&[f64]>,
) -> Vectors {
    let (l, d) = (problem.compress_block, problem.compress_stride);
    let starts = (0..).map(|i| i * d).take_while(|start| start + l <= vectors.len());
    let starts: Vec<usize> = starts.collect();
    let one = |start: &usize| {
        let mut flat = vectors[*start..*start + l].concat(); // [l * size]
        let size = flat.len() / l;
        if let Some(positions) = positions {
            flat.iter_mut().zip(positions).for_each(|(x, p)| *x += p);
        }
        let mut pooled = vec![0f64; size];
        match (problem.pooling, weight) {
            (Pooling::Learned, Some(weight)) => {
                for (x, row) in flat.iter().zip(weight.chunks_exact(size)) {
                    pooled.iter_mut().zip(row).for_each(|(sum, w)| *sum += x * w);
                }
            }
            _ => {
                for token in flat.chunks_exact(size) {
                    pooled.iter_mut().zip(token).for_each(|(sum, x)| *sum += x / l as f64);
                }
            }
        }
        pooled
    };
    starts.par_iter().map(one).collect()
}

/// The three branches of one query for each head of its group.
fn attend_all(
    problem: &NsaProblem,
    tensors: &Tensors,
    head: &Head,
    query: usize,
    kv_head: usize,
    position: i64,
    chosen: Option<&[i32]>,
) -> Result<Row, String> {
    let (l, d, block) = (problem.compress_block, problem.compress_stride, problem.select_block);
    let group = problem.group();
    let query_heads = (0..group).map(|g| query * problem.heads + kv_head * group + g);
    let q: Vec<&[f64]> = query_heads
        .clone()
        .map(|row| &tensors.q[row * problem.head_dim..][..problem.head_dim])
        .collect();

    // A compressed block is visible iff it ends at or before the query.
    let ends_before = |i: &usize| (i * d + l) as i64 - 1 <= position;
    let compressed: Vec<usize> = (0..head.compressed_keys.len()).filter(ends_before).collect();
    // p_cmp[g][i]
    let p_cmp: Vectors =
        q.iter().map(|q| softmax(problem.scale, q, &head.compressed_keys, &compressed)).collect();

    let blocks = if problem.selects() {
        let scores = importance(problem, &p_cmp, visible_blocks(problem, position));
        match chosen {
            Some(chosen) => {
                check_selection(problem, position, &scores, chosen)?;
                chosen.iter().filter(|j| **j >= 0).map(|j| *j as usize).collect()
            }
            None => top(problem, &scores),
        }
    } else {
        let row = query * problem.kv_heads + kv_head;
        let n = problem.select_count;
        let given = tensors.given.as_ref().map(|given| &given[row * n..][..n]);
        let blocks = given_blocks(problem, given.unwrap_or(&[]), position);
        if let Some(chosen) = chosen {
            let chosen = chosen.iter().map(|j| i64::from(*j));
            let wanted = blocks.iter().map(|j| *j as i64).chain(std::iter::repeat(-1)).take(n);
            if !chosen.clone().eq(wanted) {
                let chosen: Vec<i64> = chosen.collect();
                return Err(format!("{chosen:?} were selected where {blocks:?} were given"));
            }
        }
        blocks
    };
    let tokens = 0..head.keys.len();
    let before = |token: &usize| *token as i64 <= position;
    let is_selected = |token: &usize| blocks.binary_search(&(token / block)).is_ok();
    let selected: Vec<usize> = tokens.clone().filter(before).filter(is_selected).collect();
    let in_window = |token: &usize| *token as i64 > position - problem.window as i64;
    let window: Vec<usize> = tokens.filter(before).filter(in_window).collect();

    let mut o = Vectors::new();
    for ((q, p_cmp), row) in q.iter().zip(&p_cmp).zip(query_heads) {
        let gates = gates(problem, tensors, row);
        let mut sum = vec![0f64; problem.value_dim];
        let mut add = |gate: Option<f64>, p: &[f64], values: &Vectors, visible: &[usize]| {
            for (p, token) in p.iter().zip(visible) {
                let weight = gate.unwrap_or(0.0) * p;
                sum.iter_mut().zip(&values[*token]).for_each(|(sum, v)| *sum += weight * v);
            }
        };
        if problem.branches.compressed {
            add(gates[0], p_cmp, &head.compressed_values, &compressed);
        }
        if problem.branches.selected {
            add(
                gates[1],
                &softmax(problem.scale, q, &head.keys, &selected),
                &head.values,
                &selected,
            );
        }
        if problem.branches.window {
            add(gates[2], &softmax(problem.scale, q, &head.keys, &window), &head.values, &window);
        }
        o.push(sum);
    }
    let window = if problem.branches.window { window.len() } else { 0 };
    Ok(Row { o, blocks, reads: [compressed.len(), selected.len(), window] })
}

/// softmax(scale * q K^T) over the visible vectors, in their order; empty if none is visible.
fn softmax(scale: f64, q: &[f64], keys: &Vectors, visible: &[usize]) -> Vec<f64> {
    let dot = |key: &[f64]| q.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
    let scores: Vec<f64> = visible.iter().map(|token| scale * dot(&keys[*token])).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// p_slc[j] = sum over the heads of the group and the compressed blocks i of
/// `|[i d, i d + l) intersect [j l', (j + 1) l')| / d * p_cmp[i]`.
fn importance(problem: &NsaProblem, p_cmp: &Vectors, blocks: usize) -> Vec<f64> {
    (0..blocks)
        .map(|j| {
            let of_head = |p: &Vec<f64>| -> f64 {
                p.iter().enumerate().map(|(i, p)| overlap(problem, i, j) * p).sum()
            };
            p_cmp.iter().map(of_head).sum()
        })
        .collect()
}

/// Tokens that compressed block `i` shares with select block `j`, in strides `d`.
pub(super) fn overlap(problem: &NsaProblem, i: usize, j: usize) -> f64 {
    if !problem.overlap {
        return if i == j { 1.0 } else { 0.0 };
    }
    let (l, d, block) = (problem.compress_block, problem.compress_stride, problem.select_block);
    let start = (i * d).max(j * block);
    let end = (i * d + l).min((j + 1) * block);
    end.saturating_sub(start) as f64 / d as f64
}

/// The forced blocks and the most important others, `n` in all, the lower of equals first; ascending.
fn top(problem: &NsaProblem, scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let rank = |block: &usize| {
        if is_forced(problem, scores.len(), *block) { f64::INFINITY } else { scores[*block] }
    };
    // A stable sort keeps equals in rising order.
    order.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    order.truncate(problem.select_count);
    order.sort_unstable();
    order
}

/// A given selection as a set: without -1, repetitions, and blocks that start after the query.
fn given_blocks(problem: &NsaProblem, given: &[f64], position: i64) -> Vec<usize> {
    let visible = visible_blocks(problem, position);
    let mut blocks: Vec<usize> =
        given.iter().filter(|j| **j >= 0.0).map(|j| *j as usize).filter(|j| *j < visible).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// The gates of one query head; `None` for an absent branch.
fn gates(problem: &NsaProblem, tensors: &Tensors, row: usize) -> [Option<f64>; 3] {
    let raw = [0, 1, 2].map(|branch| tensors.gates[branch].as_ref().map(|gate| gate[row]));
    match problem.gate {
        Gate::Given => raw,
        Gate::Sigmoid => raw.map(|gate| gate.map(|x| 1.0 / (1.0 + (-x).exp()))),
        Gate::Softmax => {
            let max = raw.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = raw.iter().flatten().map(|x| (x - max).exp()).sum();
            raw.map(|gate| gate.map(|x| (x - max).exp() / sum))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Options, Settings, nsa::NsaOp};

    #[track_caller]
    fn check_overlap(settings: &[(&str, usize)], j: usize, expect: &[(usize, f64)]) {
        let mut tensors = TensorMap::new();
        for name in ["q", "k", "v"] {
            tensors.insert(name.into(), Tensor::new(&[1, 1, 1, 1], vec![0f32]));
        }
        tensors.insert("g_slc".into(), Tensor::new(&[1, 1, 1], vec![1f32]));
        let settings = settings.iter().fold(Settings::new(), |all, (name, x)| all.with(name, x));
        let problem =
            NsaOp::parse(Inputs::of_map(NsaOp::SPEC, &tensors), &Options::read(&settings).unwrap())
                .unwrap();
        let weights = (0..100).map(|i| (i, overlap(&problem, i, j)));
        assert_eq!(weights.filter(|(_, weight)| *weight > 0.0).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn the_papers_blocks_overlap_with_weights_1_2_2_2_1() {
        // 4j - 1 .. 4j + 3; the paper's Eq. 9 prints 4j - 4 .. 4j.
        check_overlap(&[], 1, &[(3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0), (7, 1.0)]);
        check_overlap(&[], 9, &[(35, 1.0), (36, 2.0), (37, 2.0), (38, 2.0), (39, 1.0)]);
        check_overlap(&[], 0, &[(0, 2.0), (1, 2.0), (2, 2.0), (3, 1.0)]);
    }

    #[test]
    fn other_blocks_overlap_by_their_shared_tokens() {
        let aligned = [("compress_block", 64), ("compress_stride", 64)];
        check_overlap(&aligned, 7, &[(7, 1.0)]);
        let odd = [("compress_block", 24), ("compress_stride", 10), ("select_block", 40)];
        check_overlap(&odd, 1, &[(2, 0.4), (3, 1.4), (4, 2.4), (5, 2.4), (6, 2.0), (7, 1.0)]);
    }
}
