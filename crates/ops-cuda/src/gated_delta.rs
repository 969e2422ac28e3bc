//! The gated delta rule and its gradient on NVIDIA GPUs.

use crate::{CudaTable, kda};
use ops::GradientProblem;
use ops::kda::{Decays, KdaProblem};

/// kda's variants; the bundle contains their kernels with one decay per head.
pub(crate) static CUDA: CudaTable<KdaProblem> = kda::table(|| kda::bundled(Decays::PerHead));

/// kda's variants of the gradient.
pub(crate) static BACKWARD: CudaTable<GradientProblem<KdaProblem>> = kda::backward::table();
