//! The gated delta rule on the CPU, and its gradient.

use crate::CpuTable;
use crate::kda::{backward, backward_variants, chunk, recurrent, variants};
use ops::GradientProblem;
use ops::kda::KdaProblem;

/// kda's variants under this name.
pub(crate) static CPU: CpuTable<KdaProblem> = CpuTable(variants!("gated_delta"));

/// kda's variants of the gradient under this name.
pub(crate) static BACKWARD: CpuTable<GradientProblem<KdaProblem>> =
    CpuTable(backward_variants!("gated_delta_backward"));
