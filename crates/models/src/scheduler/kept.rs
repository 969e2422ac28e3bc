//! Sequences that ended and stay in their slots, for a request that goes on where they did.
//!
//! A recurrent state cannot go back: a kept sequence serves a request whose tokens begin with all of its own, and no other.

/// A slot whose sequence nobody continues yet.
pub(super) struct Kept {
    pub(super) slot: usize,
    /// The tokens that the engine has read of it.
    pub(super) tokens: Vec<u32>,
}

/// Kept sequences, the one that was kept first in front.
#[derive(Default)]
pub(super) struct Keep(Vec<Kept>);

impl Keep {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, slot: usize, tokens: Vec<u32>) {
        self.0.push(Kept { slot, tokens });
    }

    /// The longest sequence that `begins` what is asked about, by its place.
    pub(super) fn longest(&self, begins: impl Fn(&[u32]) -> bool) -> Option<usize> {
        let begin = (0..self.0.len()).filter(|at| begins(&self.0[*at].tokens));
        begin.max_by_key(|at| self.0[*at].tokens.len())
    }

    pub(super) fn get(&self, at: usize) -> Option<&Kept> {
        self.0.get(at)
    }

    pub(super) fn take(&mut self, at: usize) -> Kept {
        self.0.remove(at)
    }

    /// The one that was kept first, but for the one in this place; it is no longer kept.
    pub(super) fn oldest(&mut self, but: Option<usize>) -> Option<Kept> {
        let oldest = (0..self.0.len()).find(|at| Some(*at) != but)?;
        Some(self.0.remove(oldest))
    }
}
