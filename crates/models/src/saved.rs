//! Copies of sequences in host memory: states, keys and values.

use crate::ModelError;
use crate::pages::{By, Pages};
use std::any::Any;

/// A sequence saved to the host. Only the engine that saved it can restore it.
pub struct SavedSequence {
    tokens: usize,
    bytes: u64,
    copy: Box<dyn Any + Send>,
}

impl std::fmt::Debug for SavedSequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Saved({} tokens, {} bytes)", self.tokens, self.bytes)
    }
}

impl SavedSequence {
    pub(crate) fn new(tokens: usize, bytes: u64, copy: impl Any + Send) -> Self {
        Self { tokens, bytes, copy: Box::new(copy) }
    }

    /// Tokens that the sequence had been advanced by.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of host memory it uses.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The engine's data.
    ///
    /// # Errors
    /// [`ModelError`] when another kind of engine saved it.
    pub(crate) fn copy<T: Any>(&self) -> Result<&T, ModelError> {
        let copy = self.copy.downcast_ref();
        copy.ok_or_else(|| ModelError::fault("a sequence was saved by an engine of another kind"))
    }
}

/// Bytes of a sequence of `tokens` tokens, given the bytes per row of each pool.
pub(crate) fn bytes_of(rows: impl Iterator<Item = (By, usize)>, tokens: usize) -> u64 {
    let bytes = |(by, row): (By, usize)| match by {
        By::Slot => row as u64,
        By::Block => row as u64 * Pages::blocks_for(tokens) as u64,
    };
    rows.map(bytes).sum()
}
