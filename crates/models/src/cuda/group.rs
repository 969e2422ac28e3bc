//! Consecutive sequences of a pass that share one mixer call: those that decode one token each, or those that prefill.

use ops::{OpError, Tensor, attention};
use std::ops::Range;

/// Consecutive sequences of a pass.
#[derive(Debug)]
pub(super) struct Group {
    /// Its tokens among those of the pass.
    pub(super) rows: Range<usize>,
    /// Sequences.
    pub(super) sequences: usize,
    /// Whether each sequence has one token.
    pub(super) one_token: bool,
    /// Whether no sequence has cached tokens.
    pub(super) fresh: bool,
    /// Length of its sequence after the step, if it is a single one whose length the host knows.
    pub(super) keys_known: Option<usize>,
    /// Slot of each sequence; empty if only the GPU knows.
    pub(super) slots_known: Vec<usize>,
    /// First token of each sequence, relative to the group `[sequences + 1]`.
    pub(super) offsets: Tensor,
    /// Slot of each sequence in the state pools `[sequences]`, -1 for padding. Ops are planned with placeholder slots
    /// of the same number.
    pub(super) slots: Tensor,
    /// Length of each sequence after the step `[sequences]`; the maximum if only the GPU knows.
    pub(super) lengths: Tensor,
    /// Blocks of each sequence `[sequences, blocks]`.
    pub(super) table: Tensor,
}

impl Group {
    /// Leading dimensions of tensors over its tokens: dense for one token per sequence and for a single sequence,
    /// packed otherwise.
    pub(super) fn leading(&self) -> Vec<usize> {
        match (self.one_token, self.sequences) {
            (true, sequences) => vec![sequences, 1],
            (false, 1) => vec![1, self.rows.len()],
            (false, _) => vec![self.rows.len()],
        }
    }

    /// Shape of tensors over its tokens with these dimensions per token.
    pub(super) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        [&self.leading(), rest].concat()
    }

    /// Its rows of a tensor over the pass's tokens, with these dimensions per token.
    pub(super) fn of(&self, x: &Tensor, rest: &[usize]) -> Result<Tensor, OpError> {
        x.rows(self.rows.start, self.rows.len())?.shaped(&self.shape(rest))
    }

    /// First token of each sequence of packed tokens; `None` for dense tokens.
    pub(super) fn offsets(&self) -> Option<&Tensor> {
        (!self.one_token && self.sequences > 1).then_some(&self.offsets)
    }

    /// The location of each sequence's keys and values in the pools.
    pub(super) fn cache(&self) -> attention::Keys<'_> {
        attention::Keys::Paged { table: &self.table, lengths: &self.lengths }
    }

    /// Maximum blocks per sequence.
    pub(super) fn table_width(&self) -> usize {
        self.table.shape()[1]
    }
}
