//! The cases of the matrix: one file an op, gathered in [`CASES`].
//!
//! Shapes and edges come from the ops' own suites and from bugs seen in the field; a case's name says which.

use crate::Case;

/// An op's name and its cases.
pub type OpCases = (&'static str, fn() -> Vec<Case>);

/// Each op with its cases. A test holds this list against [`kernels::OPS`].
pub const CASES: &[OpCases] = &[];

/// The cases of one op; none for an unknown name.
pub fn cases(op: &str) -> Vec<Case> {
    CASES.iter().filter(|(name, _)| *name == op).flat_map(|(_, cases)| cases()).collect()
}
