use super::KdaProblem;
use crate::Variant;

/// Every variant, best first.
pub(super) const VARIANTS: &[Variant<KdaProblem>] = &[];
