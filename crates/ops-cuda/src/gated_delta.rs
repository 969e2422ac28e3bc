//! The gated delta rule on NVIDIA GPUs.

use crate::{CudaTable, kda};
use ops::kda::{Decays, KdaProblem};

/// kda's variants; the bundle contains their kernels with one decay per head.
pub(crate) static CUDA: CudaTable<KdaProblem> = kda::table(|| kda::bundled(Decays::PerHead));
