//! Times only kernels that `verify` has passed.
//!
//! Ceilings (memory copy, matrix product) are measured first, in the same run on the same device, so that no percentage
//! refers to a datasheet. A kernel is timed only as the [`verify::Verified`] execution that was just checked.

mod branches;
mod ceiling_check;
mod ceilings;
mod dense;
mod error;
mod peer_budget;
mod peers;
mod precompile;
mod run;
mod sustained;
mod sweep;
mod timing;
mod tune;
mod workloads;

pub use branches::branches;
pub use ceilings::ceilings;
pub use error::BenchError;
pub use precompile::PrecompiledPeers;
pub use run::{BenchPlan, Size, Step, budget, count, run};
pub use sustained::sustained;
pub use sweep::Sweep;
pub use timing::{Samples, time, time_steps};
pub use tune::{TuningResult, tune};
pub use workloads::{OpWorkloads, WORKLOADS, Workload};
