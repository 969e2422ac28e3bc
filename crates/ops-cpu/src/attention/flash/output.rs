#![allow(unsafe_code)] // Blocks write disjoint rows of shared outputs.

use super::plan::{Item, Merge};
use device::SharedMut;
use ops::Element;
use ops::attention::AttentionProblem;

/// Destinations of finished rows: the outputs, or the partial results of a split.
pub(super) struct Output<'a, E> {
    pub(super) problem: &'a AttentionProblem,
    /// [query rows, H, Dv].
    pub(super) o: SharedMut<'a, E>,
    /// [B, H, Tq] or [H, total].
    pub(super) lse: SharedMut<'a, f32>,
    /// Normalised outputs of splits, [partial rows, Dv].
    pub(super) partial_o: SharedMut<'a, f32>,
    /// Base-2 log-sum-exp of splits, [partial rows].
    pub(super) partial_lse: SharedMut<'a, f32>,
}

impl<E: Element> Output<'_, E> {
    /// Takes stacked row `row` of a head of an item: accumulated values, and the largest base-2 logit with the sum of
    /// weights.
    pub(super) fn finish(
        &self,
        item: &Item,
        (kv_head, row): (usize, usize),
        values: &mut [f32],
        (max, sum): (f32, f32),
    ) {
        let lse = if max == f32::NEG_INFINITY {
            // No visible key: the definition is 0, whatever was accumulated.
            values.fill(0.0);
            f32::NEG_INFINITY
        } else {
            values.iter_mut().for_each(|value| *value /= sum);
            max + sum.log2()
        };
        match item.partial {
            None => self.write(item.sequence, kv_head, row, values, lse),
            Some(first) => {
                let head = kv_head - item.kv_heads.start;
                let at = first + head * item.rows.len() + row - item.rows.start;
                let dim = values.len();
                // SAFETY: the plan gives every split of every item its own rows.
                unsafe {
                    self.partial_o.slice(at * dim..(at + 1) * dim).copy_from_slice(values);
                    self.partial_lse.slice(at..at + 1)[0] = lse;
                }
            }
        }
    }

    /// Merges the splits of every row of `merge`, in their order.
    pub(super) fn merge(&self, merge: &Merge, values: &mut Vec<f32>) {
        let dim = self.problem.value_dim;
        values.resize(dim, 0.0);
        for (index, row) in merge.rows.clone().enumerate() {
            let at = |split: usize| merge.partial + split * merge.stride + index;
            // SAFETY: the launch that wrote the partial results is over, and no other block merges these rows.
            let (lse_of, o_of) = unsafe {
                (
                    |split: usize| self.partial_lse.slice(at(split)..at(split) + 1)[0],
                    |split: usize| &*self.partial_o.slice(at(split) * dim..(at(split) + 1) * dim),
                )
            };
            let max = (0..merge.splits).map(lse_of).fold(f32::NEG_INFINITY, f32::max);
            values.fill(0.0);
            let mut sum = 0.0;
            if max > f32::NEG_INFINITY {
                for split in 0..merge.splits {
                    let weight = (lse_of(split) - max).exp2();
                    sum += weight;
                    for (value, part) in values.iter_mut().zip(o_of(split)) {
                        *value += weight * part;
                    }
                }
                values.iter_mut().for_each(|value| *value /= sum);
            }
            let lse = max + if sum > 0.0 { sum.log2() } else { 0.0 };
            self.write(merge.sequence, merge.kv_head, row, values, lse);
        }
    }

    fn write(&self, sequence: usize, kv_head: usize, row: usize, values: &[f32], lse: f32) {
        let problem = self.problem;
        let group = problem.group();
        let (i, head) = (row / group, kv_head * group + row % group);
        let token = problem.queries.range(sequence).start + i;
        let at = (token * problem.heads + head) * values.len();
        let lse_at = match problem.queries.batch_and_tokens() {
            Some((_, tokens)) => (sequence * problem.heads + head) * tokens + i,
            None => head * problem.queries.total() + token,
        };
        // SAFETY: one item, or one merge, owns each (query, head).
        unsafe {
            E::narrow(values, self.o.slice(at..at + values.len()));
            self.lse.slice(lse_at..lse_at + 1)[0] =
                (f64::from(lse) * std::f64::consts::LN_2) as f32;
        }
    }
}
