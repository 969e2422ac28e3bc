//! The gated delta rule on the CPU.

use crate::CpuTable;
use crate::kda::{chunk, recurrent, variants};
use ops::kda::KdaProblem;

/// kda's variants under this name.
pub(crate) static CPU: CpuTable<KdaProblem> = CpuTable(variants!("gated_delta"));
