//! Constraints on the next token of a sequence.

/// A constraint on a sequence, usually a grammar.
///
/// It has no errors here: a guide that fails allows every token, ends its sequence with the next token, and reports the
/// error to its creator.
pub trait Guide: Send {
    /// Clears the bits of forbidden tokens, 32 tokens per word, lowest token in the lowest bit. All bits are set
    /// before.
    fn mask(&mut self, allowed: &mut [u32]);
    /// Adds the chosen token; returns whether nothing may follow.
    fn take(&mut self, token: u32) -> bool;
}
