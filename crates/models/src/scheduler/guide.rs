//! What may come next in a sequence, where not everything may.

/// A grammar, mostly, that a sequence has to keep to.
///
/// It cannot fail here: one that cannot go on lets everything pass, ends its sequence with the next token, and says so to whoever
/// made it.
pub trait Guide: Send {
    /// Clears the bits of tokens that may not come next: 32 a word, the lowest token's lowest. All are set before.
    fn mask(&mut self, allowed: &mut [u32]);
    /// Takes the token that was chosen; whether nothing may follow.
    fn take(&mut self, token: u32) -> bool;
}
