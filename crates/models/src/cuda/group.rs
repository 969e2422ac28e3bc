//! Neighbouring sequences of a pass whose mixers run by one call: those that decode a token each, or those whose prompts are read.

use kernels::{OpError, Tensor, attention};
use std::ops::Range;

/// Some of a pass's sequences.
#[derive(Debug)]
pub(super) struct Group {
    /// Its tokens among those of the pass.
    pub(super) rows: Range<usize>,
    /// Sequences.
    pub(super) sequences: usize,
    /// Whether each sequence has one token.
    pub(super) one_token: bool,
    /// Whether no sequence had a token before.
    pub(super) fresh: bool,
    /// Tokens of its sequence with those of the step, where it is one and the host knows.
    pub(super) keys_known: Option<usize>,
    /// Slot of each sequence; empty where the GPU alone knows.
    pub(super) slots_known: Vec<usize>,
    /// Where each sequence begins, counted from the first `[sequences + 1]`.
    pub(super) offsets: Tensor,
    /// The slot of each sequence in pools of states `[sequences]`, -1 for padding. Ops plan with others, of which there are as
    /// many.
    pub(super) slots: Tensor,
    /// Tokens of each sequence with those of the step `[sequences]`; where the GPU alone knows, the most there may be.
    pub(super) lengths: Tensor,
    /// Blocks of each sequence `[sequences, blocks]`.
    pub(super) table: Tensor,
}

impl Group {
    /// The leading dimensions of tensors over its tokens: dense for one token a sequence and for one sequence, packed else.
    pub(super) fn leading(&self) -> Vec<usize> {
        match (self.one_token, self.sequences) {
            (true, sequences) => vec![sequences, 1],
            (false, 1) => vec![1, self.rows.len()],
            (false, _) => vec![self.rows.len()],
        }
    }

    /// The shape of tensors over its tokens that have so much of each.
    pub(super) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        [&self.leading(), rest].concat()
    }

    /// Its rows of a tensor over the pass's tokens, which has so much of each.
    pub(super) fn of(&self, x: &Tensor, rest: &[usize]) -> Result<Tensor, OpError> {
        x.rows(self.rows.start, self.rows.len())?.shaped(&self.shape(rest))
    }

    /// Where each sequence of packed tokens begins; none where tokens are dense.
    pub(super) fn offsets(&self) -> Option<&Tensor> {
        (!self.one_token && self.sequences > 1).then_some(&self.offsets)
    }

    /// Where the keys and values of each sequence lie in the pools.
    pub(super) fn cache(&self) -> attention::Keys<'_> {
        attention::Keys::Paged { table: &self.table, lengths: &self.lengths }
    }

    /// Blocks that its longest sequence has, or may have.
    pub(super) fn table_width(&self) -> usize {
        self.table.shape()[1]
    }
}
