use super::AttentionProblem;
use crate::Variant;

/// The op's variants, best first.
pub(super) const VARIANTS: &[Variant<AttentionProblem>] = &[];
