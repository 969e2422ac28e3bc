//! Copies of sequences on the host: of their states, and of their keys and values.

use crate::ModelError;
use crate::pages::{By, Pages};
use std::any::Any;

/// A sequence as it was when an engine copied it to the host. It is that engine's: no other one takes it.
pub struct Saved {
    tokens: usize,
    bytes: u64,
    copy: Box<dyn Any + Send>,
}

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Saved({} tokens, {} bytes)", self.tokens, self.bytes)
    }
}

impl Saved {
    pub(crate) fn new(tokens: usize, bytes: u64, copy: impl Any + Send) -> Self {
        Self { tokens, bytes, copy: Box::new(copy) }
    }

    /// Tokens that the sequence had been advanced by.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of the host's memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the engine made.
    ///
    /// # Errors
    /// [`ModelError`] when another kind of engine made it.
    pub(crate) fn copy<T: Any>(&self) -> Result<&T, ModelError> {
        let copy = self.copy.downcast_ref();
        copy.ok_or_else(|| ModelError::fault("a sequence was saved by an engine of another kind"))
    }
}

/// Bytes of a sequence of so many tokens, by the bytes of a row of each pool.
pub(crate) fn bytes_of(rows: impl Iterator<Item = (By, usize)>, tokens: usize) -> u64 {
    let bytes = |(by, row): (By, usize)| match by {
        By::Slot => row as u64,
        By::Block => row as u64 * Pages::blocks_for(tokens) as u64,
    };
    rows.map(bytes).sum()
}
