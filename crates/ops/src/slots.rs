//! The row of `initial_state` and `final_state` that each sequence uses.

use crate::{Inputs, OpError, Sequences};
use std::ops::Range;

/// The state slot of each sequence. Without a pool sequence `n` has slot `n`; with `state_indices` the state tensors
/// are pools, sequence `n` reads and updates slot `state_indices[n]`, and a negative index marks a padding sequence,
/// which is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSlots {
    of_sequence: Vec<Option<usize>>,
    count: usize,
    is_pool: bool,
}

impl StateSlots {
    /// Reads `state_indices`, and the number of slots from the first dimension of `initial_state`; both are optional.
    ///
    /// # Errors
    /// [`OpError`] when a pool is indexed that was not given, an index leaves the pool, two sequences share a slot
    /// (which of them would leave its state there is undefined), or there is not one state per sequence.
    pub(crate) fn parse(inputs: Inputs<'_>, sequences: &Sequences) -> Result<Self, OpError> {
        let state = inputs.get("initial_state");
        let rows = state.map(|state| state.shape().first().copied().unwrap_or(0));
        if inputs.get("state_indices").is_none() {
            if let Some(rows) = rows
                && rows != sequences.count()
            {
                let wanted = format!("one state for each of the {} sequences", sequences.count());
                return Err(inputs.shape_error("initial_state", &wanted));
            }
            let of_sequence = (0..sequences.count()).map(Some).collect();
            return Ok(Self { of_sequence, count: sequences.count(), is_pool: false });
        }
        let indices = inputs.integers("state_indices")?;
        let Some(count) = rows else {
            let what = "needs the pool `initial_state` that it points into";
            return Err(inputs.value_error("state_indices", what));
        };
        if indices.len() != sequences.count() {
            let wanted = format!("one index for each of the {} sequences", sequences.count());
            return Err(inputs.shape_error("state_indices", &wanted));
        }
        let mut user = vec![None; count];
        let mut of_sequence = Vec::with_capacity(indices.len());
        for (sequence, index) in indices.iter().enumerate() {
            let Ok(slot) = usize::try_from(*index) else {
                of_sequence.push(None);
                continue;
            };
            if slot >= count {
                let what = format!(
                    "is {slot} for sequence {sequence}, but `initial_state` has {count} slots"
                );
                return Err(inputs.value_error("state_indices", what));
            }
            if let Some(other) = user[slot].replace(sequence) {
                let what = format!("gives slot {slot} to sequence {other} and to {sequence}");
                return Err(inputs.value_error("state_indices", what));
            }
            of_sequence.push(Some(slot));
        }
        Ok(Self { of_sequence, count, is_pool: true })
    }

    /// Number of slots: the first dimension of the state tensors.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the states are a pool.
    pub fn is_pool(&self) -> bool {
        self.is_pool
    }

    /// The slot of a sequence; `None` when the sequence is padding.
    pub fn of(&self, sequence: usize) -> Option<usize> {
        self.of_sequence[sequence]
    }

    /// Token rows of each sequence that is not padding, in order.
    pub fn real(&self, sequences: &Sequences) -> impl Iterator<Item = Range<usize>> {
        let both = self.of_sequence.iter().zip(sequences.iter());
        both.filter_map(|(slot, tokens)| slot.map(|_| tokens))
    }

    /// Tokens of the sequences that are not padding.
    pub(crate) fn tokens(&self, sequences: &Sequences) -> usize {
        self.real(sequences).map(|tokens| tokens.len()).sum()
    }

    /// Slots that no sequence uses, ascending: the final state keeps them bit for bit.
    pub fn untouched(&self) -> Vec<usize> {
        let mut touched = vec![false; self.count];
        for slot in self.of_sequence.iter().flatten() {
            touched[*slot] = true;
        }
        (0..self.count).filter(|slot| !touched[*slot]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, TensorMap};

    fn check(
        slots: Option<usize>,
        indices: Option<Vec<i32>>,
        expect: Result<(&[Option<usize>], &[usize]), &str>,
    ) {
        let mut tensors = TensorMap::new();
        if let Some(slots) = slots {
            tensors.insert("initial_state".into(), Tensor::new(&[slots, 1], vec![0f32; slots]));
        }
        if let Some(indices) = indices {
            tensors.insert("state_indices".into(), Tensor::new(&[indices.len()], indices));
        }
        let is_pool = tensors.contains_key("state_indices");
        let spec = <crate::ssd::SsdOp as crate::Family>::SPEC;
        let got = StateSlots::parse(Inputs::of_map(spec, &tensors), &Sequences::dense(3, 5));
        match expect {
            Ok((of_sequence, untouched)) => {
                let got = got.unwrap();
                assert_eq!(got.of_sequence, of_sequence);
                assert_eq!(got.untouched(), untouched);
                assert_eq!(got.is_pool(), is_pool);
            }
            Err(words) => assert_eq!(got.unwrap_err().to_string(), words),
        }
    }

    #[test]
    fn sequences_find_their_slots() {
        let plain = [Some(0), Some(1), Some(2)];
        check(None, None, Ok((&plain, &[])));
        check(Some(3), None, Ok((&plain, &[])));
        check(Some(6), Some(vec![4, -1, 0]), Ok((&[Some(4), None, Some(0)], &[1, 2, 3, 5])));
        check(
            Some(2),
            None,
            Err(
                "ssd: tensor `initial_state` has shape [2, 1], wanted one state for each of the 3 sequences",
            ),
        );
        check(
            None,
            Some(vec![0, 1, 2]),
            Err("ssd: tensor `state_indices` needs the pool `initial_state` that it points into"),
        );
        check(
            Some(6),
            Some(vec![0, 1]),
            Err(
                "ssd: tensor `state_indices` has shape [2], wanted one index for each of the 3 sequences",
            ),
        );
        check(
            Some(2),
            Some(vec![0, 1, 2]),
            Err("ssd: tensor `state_indices` is 2 for sequence 2, but `initial_state` has 2 slots"),
        );
        check(
            Some(6),
            Some(vec![5, 1, 5]),
            Err("ssd: tensor `state_indices` gives slot 5 to sequence 0 and to 2"),
        );
    }
}
