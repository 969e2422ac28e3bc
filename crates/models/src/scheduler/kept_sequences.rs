//! Finished sequences that keep their slots, for requests that continue them.
//!
//! A recurrent state cannot be rolled back, so a kept sequence only serves a request that starts with all of its
//! tokens.

/// A slot with a finished sequence.
pub(super) struct KeptSequence {
    pub(super) slot: usize,
    /// Its tokens that the engine has read.
    pub(super) tokens: Vec<u32>,
}

/// Kept sequences, oldest first.
#[derive(Default)]
pub(super) struct KeptSequences(Vec<KeptSequence>);

impl KeptSequences {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, slot: usize, tokens: Vec<u32>) {
        self.0.push(KeptSequence { slot, tokens });
    }

    /// Index of the longest sequence for which `begins` holds.
    pub(super) fn longest(&self, begins: impl Fn(&[u32]) -> bool) -> Option<usize> {
        let begin = (0..self.0.len()).filter(|at| begins(&self.0[*at].tokens));
        begin.max_by_key(|at| self.0[*at].tokens.len())
    }

    pub(super) fn get(&self, at: usize) -> Option<&KeptSequence> {
        self.0.get(at)
    }

    pub(super) fn take(&mut self, at: usize) -> KeptSequence {
        self.0.remove(at)
    }

    /// Removes the oldest one, except the one with index `but`.
    pub(super) fn oldest(&mut self, but: Option<usize>) -> Option<KeptSequence> {
        let oldest = (0..self.0.len()).find(|at| Some(*at) != but)?;
        Some(self.0.remove(oldest))
    }
}
